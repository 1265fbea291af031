"""CelebA (Liu et al. 2015) by gender: 162,770 training and 19,962 test photographs of faces.

The files are those of `torchvision.datasets.CelebA`: ROOT/celeba/img_align_celeba/000001.jpg and
so on, ROOT/celeba/list_attr_celeba.txt and ROOT/celeba/list_eval_partition.txt. They are not
downloaded (their licence is agreed to by hand), and the root is only read.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedsink.data.labelled import Reading
from fedsink.data.sources.cache import cache_folder, fill_once, key_of
from fedsink.data.sources.inventory import Inventory
from fedsink.data.sources.picture_files import MODES, ChangedPictures, read_picture, vast_allowed
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError, DataError
from fedsink.values import read_json

ATTRIBUTE = "Male"
_SPLITS = {"train": "0", "test": "2"}  # "1" is the validation split, which nothing reads


def read(spec: DataSpec, split: str) -> Reading:
    """Returns uint8 images (N, *spec.shape) and labels: 1 where the attribute Male is 1, else 0."""
    # Scaled until they cover data.shape (antialiased) and cropped at the centre, as for
    # `image_folder`: that takes minutes, so the result is kept in the cache folder.
    if len(spec.shape) != 3 or spec.shape[0] not in MODES or len(spec.classes) != 2:
        raise ConfigError(
            "celeba needs data.shape = (1 or 3 channels, height, width) and two data.classes "
            f"(female, male), got {spec.shape} and {len(spec.classes)}."
        )
    if spec.root is None:
        raise ConfigError(
            "celeba is not downloaded: set data.root to the folder that contains celeba/."
        )
    folder = Path(spec.root).expanduser() / "celeba"
    labels = _labels(folder / "list_attr_celeba.txt")
    names = _members(folder / "list_eval_partition.txt", _SPLITS[split])
    if not names:
        raise DataError(
            f"{folder / 'list_eval_partition.txt'} lists no picture of the {split} set."
        )
    if missing := [name for name in names if name not in labels]:
        raise DataError(f"{folder / 'list_attr_celeba.txt'} has no line for {missing[0]}.")
    inventory = Inventory(folder)
    places = {name: folder / "img_align_celeba" / name for name in names}
    if missing := [name for name, place in places.items() if not place.is_file()]:
        raise DataError(
            f"{places[missing[0]]} is listed but not there as a file; unpack img_align_celeba.zip "
            "again."
        )
    names = [name for name, place in places.items() if inventory.is_new(place)]
    pictures, changes = _pictures([places[name] for name in names], spec.shape)
    notes = (*inventory.notes(len(names)), *changes)
    return Reading(pictures, torch.tensor([labels[name] for name in names]), notes=notes)


def _labels(path: Path) -> dict[str, int]:
    """Returns the attribute of every picture; the second line of the file names the attributes."""
    lines = _lines(path)
    names = lines[1].split() if len(lines) > 1 else []
    if ATTRIBUTE not in names:
        raise DataError(f"{path} does not name the attribute {ATTRIBUTE} in its second line.")
    place = 1 + names.index(ATTRIBUTE)
    labels = {}
    for number, line in enumerate(lines[2:], start=3):
        parts = line.split()
        if len(parts) != 1 + len(names) or parts[place] not in ("-1", "1"):
            raise DataError(
                f"Line {number} of {path} is not a file name with {len(names)} values -1 or 1; "
                "replace the file with an intact copy."
            )
        labels[parts[0]] = int(parts[place] == "1")
    return labels


def _members(path: Path, wanted: str) -> list[str]:
    """Returns the names of a split's pictures; a name that leads out of their folder is refused."""
    members: dict[str, str] = {}
    for number, line in enumerate(_lines(path), start=1):
        parts = line.split()
        if len(parts) != 2 or parts[1] not in ("0", "1", "2"):
            raise DataError(
                f"Line {number} of {path} is not a file name with a split 0, 1 or 2; replace the "
                "file with an intact copy."
            )
        name = parts[0]
        if name in members or Path(name).name != name or name in ("..", ".") or "\0" in name:
            raise DataError(
                f"Line {number} of {path} lists {name!r} "
                f"{'for the second time' if name in members else 'and no name of a file'}; replace "
                "the file with an intact copy."
            )
        members[name] = parts[1]
    return [name for name, split in members.items() if split == wanted]


def _lines(path: Path) -> list[str]:
    try:
        if not path.is_file():
            raise FileNotFoundError
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path.absolute()} cannot be read; set data.root to the folder that contains "
            "celeba/list_attr_celeba.txt, list_eval_partition.txt and img_align_celeba/."
        ) from error


def _pictures(files: list[Path], shape: tuple[int, ...]) -> tuple[Tensor, list[str]]:
    """Returns all pictures, decoded once and kept in the cache folder, and what that changed."""

    def fill(folder: Path) -> None:
        pixels = np.empty((len(files), *shape), dtype=np.uint8)
        changed = ChangedPictures(shape)
        with vast_allowed():
            for row, file in enumerate(files):
                pixels[row] = read_picture(file, shape, changed).numpy()
        np.save(folder / "pictures.npy", pixels)
        (folder / "notes.json").write_text(json.dumps(changed.notes()))

    folder = fill_once(cache_folder() / "celeba" / key_of(files, shape, "upright"), fill)
    # Mapped copy-on-write: every process on the machine shares one copy in memory.
    pictures = torch.from_numpy(np.load(folder / "pictures.npy", mmap_mode="c"))
    return pictures, read_json((folder / "notes.json").read_bytes())
