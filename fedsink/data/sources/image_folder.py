"""A user's own pictures: one folder per class, in the layout of torchvision's ImageFolder."""

from __future__ import annotations

import os
import unicodedata
import warnings
from pathlib import Path

import torch

from fedsink.data.labelled import Reading, number_of
from fedsink.data.sources.picture_files import MODES, ChangedPictures, read_picture
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError, DataError

_SPLITS = {
    **dict.fromkeys(("train", "training", "trainset"), "train"),
    **dict.fromkeys(("test", "testing", "testset", "val", "valid", "validation"), "test"),
}
_ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def read(spec: DataSpec, split: str) -> Reading:
    """Returns uint8 images (N, *spec.shape), their labels, and the slots of their names.

    Where data.root holds `train` or `test`, each split is read from its folder. Otherwise, and
    where only one of the two stands beside folders of classes, data.root itself is the training
    split and there is no test split. A label is the position of the folder's name in data.classes,
    however its accents are encoded. That list is public, so a class without a folder is fine and
    changes no other label. Pictures are scaled until they cover the target (antialiased) and
    cropped at the centre; notes say what that changes.

    A slot is the number of the file's name below its class's folder: a picture keeps it when its
    content changes, when it moves to another class, and when other pictures come or go.

    Raises:
        ConfigError: without data.root, or for a shape that is not an image of 1 or 3 channels.
        DataError: for a missing folder or split, a folder that is not a class, no pictures, or a
            picture that cannot be read.
    """
    from PIL import Image

    if len(spec.shape) != 3 or spec.shape[0] not in MODES:
        raise ConfigError(
            f"image_folder needs data.shape = (1 or 3 channels, height, width), got {spec.shape}."
        )
    folder = _folder(spec, split)
    files = _files(folder, spec)
    values = torch.empty((len(files), *spec.shape), dtype=torch.uint8)
    changed = ChangedPictures(spec.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # a note says so
        for row, (path, _, _) in enumerate(files):
            values[row] = read_picture(path, spec.shape, changed)
    slots = [number_of(Path(path).relative_to(top).as_posix()) for path, top, _ in files]
    labels = torch.tensor([label for *_, label in files])
    return Reading(values, labels, slots=torch.tensor(slots), notes=changed.notes())


def _folder(spec: DataSpec, split: str) -> Path:
    if spec.root is None:
        raise ConfigError("image_folder needs data.root, the folder with one folder per class.")
    root = Path(spec.root).expanduser()
    if not root.is_dir():
        raise DataError(f"data.root={root.absolute()} is not a folder; correct the path.")
    held = {name for name in ("train", "test") if (root / name).is_dir()}
    if len(held) < 2 and any((root / name).is_dir() for name in spec.classes):
        held = set()
    if split in held:
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


def _files(folder: Path, spec: DataSpec) -> list[tuple[str, Path, int]]:
    """Returns the paths of pictures with the folders of their classes and their labels."""
    labels = {_composed(name): label for label, name in enumerate(spec.classes)}
    names = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    unknown = [name for name in names if _composed(name) not in labels]
    if unknown:
        raise DataError(
            f"{folder.absolute()} holds the folder {unknown[0]!r}, which is "
            f"{_misplaced(unknown[0], folder)}"
            f"not in data.classes ({', '.join(spec.classes)}); add it there or remove the folder."
        )

    files = [
        (os.path.join(place, file), folder / name, labels[_composed(name)])
        for name in names
        for place, _, held in sorted(os.walk(folder / name, followlinks=True))
        for file in sorted(held)
        if file.lower().endswith(_ENDINGS)
    ]
    if not files:
        raise DataError(
            f"{folder.absolute()} holds no pictures; expected one folder per class with image "
            f"files such as {folder.name}/{spec.classes[0]}/1.png."
        )
    return files


def _misplaced(name: str, folder: Path) -> str:
    """Returns the remark that a folder looks like a split under another name, or nothing."""
    split = _SPLITS.get(name.casefold())
    if split in (None, name):
        return ""
    return f"no split (that would be {folder.name}/{split}, so rename it) and "


def _composed(name: str) -> str:
    """Returns a name with accents in one form: file systems and keyboards differ in theirs."""
    return unicodedata.normalize("NFC", name)
