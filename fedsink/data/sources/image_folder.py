"""A user's own pictures: one folder per class, in the layout of torchvision's ImageFolder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsink.data.names import number_of
from fedsink.data.sources.pictures import MODES, read_picture
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError, DataError


def read(spec: DataSpec, split: str) -> tuple[Tensor, Tensor, None, Tensor]:
    """Return uint8 images (N, *spec.shape), their labels, no users, and the slots of their names.

    Where data.root holds both `train` and `test`, each split is read from its folder; otherwise
    data.root itself is the training split and there is no test split. A label is the position of
    the folder's name in data.classes, which is public: which folders exist is not asked, so a
    class without a folder is fine and changes no other label. Pictures are scaled until they
    cover the target (antialiased) and cropped at the centre.

    A slot is the number of the file's name below its class's folder: a picture keeps it when its
    content changes, when it moves to another class, and whatever other pictures come or go.

    Raises:
        ConfigError: without data.root, or for a shape that is not an image of 1 or 3 channels.
        DataError: for a missing folder or split, a folder that is not a class, no pictures, or a
            picture that cannot be read.
    """
    if len(spec.shape) != 3 or spec.shape[0] not in MODES:
        raise ConfigError(
            f"image_folder needs data.shape = (1 or 3 channels, height, width), got {spec.shape}."
        )
    folder = _folder(spec, split)
    files = _files(folder, spec)
    values = torch.empty((len(files), *spec.shape), dtype=torch.uint8)
    for row, (path, _) in enumerate(files):
        values[row] = read_picture(path, spec.shape)
    slots = [
        number_of(Path(path).relative_to(folder / spec.classes[label]).as_posix())
        for path, label in files
    ]
    return values, torch.tensor([label for _, label in files]), None, torch.tensor(slots)


def _folder(spec: DataSpec, split: str) -> Path:
    if spec.root is None:
        raise ConfigError("image_folder needs data.root, the folder with one folder per class.")
    root = Path(spec.root).expanduser()
    if not root.is_dir():
        raise DataError(f"data.root={root.absolute()} is not a folder; correct the path.")
    if (root / "train").is_dir() and (root / "test").is_dir():
        return root / split
    if split == "test":
        raise DataError(
            f"{root.absolute()} has no test split; put the pictures into {root.name}/train and "
            f"{root.name}/test, each with one folder per class."
        )
    return root


def _files(folder: Path, spec: DataSpec) -> list[tuple[str, int]]:
    from torchvision.datasets import ImageFolder

    names = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    unknown = [name for name in names if name not in spec.classes]
    if unknown:
        raise DataError(
            f"{folder.absolute()} holds the folder {unknown[0]!r}, which is not in data.classes "
            f"({', '.join(spec.classes)}); add it there or remove the folder."
        )

    class PublicLabels(ImageFolder):
        """ImageFolder with the label map of the configuration instead of the folders'."""

        def find_classes(self, directory: Any) -> tuple[list[str], dict[str, int]]:
            return list(spec.classes), {name: i for i, name in enumerate(spec.classes)}

    files: list[tuple[str, int]] = PublicLabels(str(folder), allow_empty=True).samples
    if not files:
        raise DataError(
            f"{folder.absolute()} holds no pictures; expected one folder per class with image "
            f"files such as {folder.name}/{spec.classes[0]}/1.png."
        )
    return files
