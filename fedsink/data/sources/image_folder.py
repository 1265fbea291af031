"""A user's own pictures: one folder per class, in the layout of torchvision's ImageFolder."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import torch

from fedsink.data.labelled import Reading, number_of
from fedsink.data.sources.inventory import BESIDE, Inventory
from fedsink.data.sources.picture_files import (
    FORMATS,
    MODES,
    ChangedPictures,
    NoPictureError,
    read_picture,
    vast_allowed,
)
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError, DataError

_SPLITS = {
    **dict.fromkeys(("train", "training", "trainset"), "train"),
    **dict.fromkeys(("test", "testing", "testset", "val", "valid", "validation"), "test"),
}
_ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")
_OTHER = f"of none of the formats {', '.join(FORMATS)}"


def read(spec: DataSpec, split: str) -> Reading:
    """Returns uint8 images (N, *spec.shape), their labels, and the slots of their names.

    Where data.root holds `train` or `test`, each split is read from its folder. Otherwise, and
    where only one of the two stands beside folders of classes, data.root itself is the training
    split and there is no test split. A label is the position of the folder's name in data.classes,
    however its accents are encoded. That list is public, so a class without a folder is fine and
    changes no other label. A file is known by its content, whatever its ending, and read once,
    whatever links lead to it; see `read_picture` for what becomes of it. Notes say what is passed
    over and what is changed.

    A slot is the number of the file's name below its class's folder: a picture keeps it when its
    content changes, when it moves to another class, and when other pictures come or go.
    """
    if len(spec.shape) != 3 or spec.shape[0] not in MODES:
        raise ConfigError(
            f"image_folder needs data.shape = (1 or 3 channels, height, width), got {spec.shape}."
        )
    if spec.root is None:
        raise ConfigError("image_folder needs data.root, the folder with one folder per class.")
    root = Path(spec.root).expanduser()
    if not root.is_dir():
        raise DataError(f"data.root={root.absolute()} is not a folder; correct the path.")
    inventory = Inventory(root)
    folder = _folder(spec, split, inventory)
    files = _files(folder, spec, inventory)
    values = torch.empty((len(files), *spec.shape), dtype=torch.uint8)
    changed = ChangedPictures(spec.shape)
    slots: list[int] = []
    labels: list[int] = []
    with vast_allowed():
        for path, top, label in files:
            try:
                values[len(labels)] = read_picture(path, spec.shape, changed, spec.range)
            except NoPictureError:
                if path.lower().endswith(_ENDINGS):
                    raise
                inventory.pass_over(_OTHER, path)
                continue
            slots.append(number_of(Path(path).relative_to(top).as_posix()))
            labels.append(label)
    if not labels:
        raise _empty(folder, spec)
    notes = (*inventory.notes(len(labels)), *changed.notes())
    return Reading(
        values[: len(labels)], torch.tensor(labels), slots=torch.tensor(slots), notes=notes
    )


def _folder(spec: DataSpec, split: str, inventory: Inventory) -> Path:
    root = inventory.root
    held = {name for name in ("train", "test") if (root / name).is_dir()}
    if len(held) < 2 and any((root / name).is_dir() for name in spec.classes):
        held = set()
    if split in held:
        beside = [root / name for name in os.listdir(root) if name not in ("train", "test")]
        inventory.pass_over(BESIDE, *(path for path in beside if not inventory.is_hidden(path)))
        return root / split
    if held:
        (other,) = held
        raise DataError(
            f"{root.absolute()} has a folder {other} and none for the {split} split: put its "
            f"pictures into {root.name}/{split}, with one folder per class."
        )
    if split == "test":
        raise DataError(
            f"{root.absolute()} has no test split; put the pictures into {root.name}/train and "
            f"{root.name}/test, each with one folder per class."
        )
    return root


def _files(folder: Path, spec: DataSpec, inventory: Inventory) -> list[tuple[str, Path, int]]:
    """Returns the paths of files with the folders of their classes and their labels."""
    labels = {_composed(name): label for label, name in enumerate(spec.classes)}
    names = []
    for path in sorted(folder.iterdir()):
        if _composed(path.name) in labels and path.is_dir():
            names.append(path.name)
        elif not inventory.is_hidden(path):
            if not path.is_dir():
                inventory.pass_over(BESIDE, path)
                continue
            split, misplaced = _SPLITS.get(path.name.casefold()), ""
            if split not in (None, path.name):
                misplaced = f"no split (that would be {folder.name}/{split}, so rename it) and "
            raise DataError(
                f"{folder.absolute()} holds the folder {path.name!r}, which is {misplaced}not in "
                f"data.classes ({', '.join(spec.classes)}); add it there or remove the folder."
            )
    tops = [folder / name for name in names]
    files = inventory.walk(tops)
    if not files:
        raise _empty(folder, spec)
    return [(path, tops[top], labels[_composed(names[top])]) for top, path in files]


def _empty(folder: Path, spec: DataSpec) -> DataError:
    return DataError(
        f"{folder.absolute()} holds no pictures; expected one folder per class with image "
        f"files such as {folder.name}/{spec.classes[0]}/1.png."
    )


def _composed(name: str) -> str:
    """Returns a name with accents in one form: file systems and keyboards differ in theirs."""
    return unicodedata.normalize("NFC", name)
