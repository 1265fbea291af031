"""MNIST and Fashion-MNIST: 60,000 training and 10,000 test grey images of 28×28 pixels.

The files are those of `torchvision.datasets`: ROOT/MNIST/raw/train-images-idx3-ubyte and so on,
plain or gzipped. A given root is only read, and nothing is unpacked but in memory.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np
import torch
from torch import Tensor

from fedsink.data.labelled import Reading
from fedsink.data.sources.cache import cache_folder, fill_once
from fedsink.data.spec import DataSpec
from fedsink.errors import DataError

_FOLDERS = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}
_IMAGES, _LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
_NAMES = {"train": "train", "test": "t10k"}
_MOST_RECORDS = 1_000_000  # in one file: 784 MB, whatever a header says


def read(spec: DataSpec, split: str) -> Reading:
    """Returns uint8 images (N, 1, 28, 28) and labels of one split."""
    folder = _FOLDERS[spec.name]
    root = _downloaded(folder, spec) if spec.root is None else Path(spec.root).expanduser()
    raw = root / folder / "raw"
    names = [f"{part}-{kind}" for part in _NAMES.values() for kind in (_IMAGES, _LABELS)]
    files = {name: raw / name if (raw / name).is_file() else raw / f"{name}.gz" for name in names}
    if missing := [name for name, file in files.items() if not file.is_file()]:
        raise DataError(
            f"{raw.absolute()} does not hold {', '.join(missing)} (plain or .gz); set data.root "
            f"to the folder that contains {folder}/raw, or leave data.root empty to use the "
            f"cache folder."
        )
    images = _records(files[f"{_NAMES[split]}-{_IMAGES}"], (28, 28))
    return Reading(images.unsqueeze(1), _records(files[f"{_NAMES[split]}-{_LABELS}"], ()))


def _records(file: Path, shape: tuple[int, ...]) -> Tensor:
    """Returns the bytes (N, *shape) of a file in the format IDX, of which no more is unpacked."""
    header = struct.Struct(f">{2 + len(shape)}i")
    try:
        packed = gzip.GzipFile(file) if file.suffix == ".gz" else file.open("rb")
        with cast("IO[bytes]", packed) as opened:
            start = opened.read(header.size)
            magic, number, *sides = header.unpack(start)
            if magic != 0x801 + len(shape) or tuple(sides) != shape:
                raise ValueError(f"it is no file of {'28×28 pixels' if shape else 'labels'}")
            if not 0 < number <= _MOST_RECORDS:
                raise ValueError(f"it states {number} records, not 1 to {_MOST_RECORDS}")
            size = number * math.prod(shape)
            content = opened.read(size + 1)
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise DataError(
            f"{file} cannot be read ({error}); replace it with an intact copy."
        ) from error
    if len(content) != size:
        raise DataError(
            f"{file} does not hold the {number} records that it states; replace it with an intact "
            "copy."
        )
    return torch.from_numpy(np.frombuffer(bytearray(content), dtype=np.uint8)).reshape(-1, *shape)


def _downloaded(folder: str, spec: DataSpec) -> Path:
    """Returns the cache folder, after downloading the files that it lacks."""
    root = cache_folder() / "torchvision"
    if not (root / folder).is_dir() and not spec.download:
        raise DataError(
            f"{root / folder} does not exist and data.download is false; set data.root to the "
            f"folder that contains {folder}/raw, or set data.download=true."
        )

    def fill(temporary: Path) -> None:
        from torchvision import datasets

        try:
            getattr(datasets, folder)(str(temporary), download=True)
        except (OSError, RuntimeError) as error:
            raise DataError(
                f"{folder} could not be downloaded ({str(error).strip().splitlines()[0]}); "
                f"connect to the internet, or set data.root to the folder that contains "
                f"{folder}/raw."
            ) from error
        # torchvision nests the files under its own root, and the cache entry is that folder.
        for part in (temporary / folder).iterdir():
            part.rename(temporary / part.name)
        (temporary / folder).rmdir()

    fill_once(root / folder, fill)
    return root
