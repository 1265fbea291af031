"""TensorFlow Federated's HDF5 files of Federated EMNIST: `data=femnist data.name=femnist_tff`.

In data.root they are ROOT/fed_emnist_train.h5 and ROOT/fed_emnist_test.h5, or those named
fed_emnist_digitsonly_….h5, and need `h5py`.
"""

from __future__ import annotations

import importlib
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedsink.data.labelled import Reading
from fedsink.data.sources.femnist import Writer, read_writers
from fedsink.data.sources.inventory import BESIDE, Inventory
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError, DataError

_FILES = ("fed_emnist_{}.h5", "fed_emnist_digitsonly_{}.h5")  # of all characters, of digits
_MOST_VALUES = 100_000 * 28 * 28  # of a writer, where a small file may state any number


def read(spec: DataSpec, split: str) -> Reading:
    """Returns the records as `fedsink.data.sources.femnist.read` does.

    Raises:
        ConfigError: no data.root, an unknown class, or letters from files of digits.
        DataError: files that are missing, corrupt, or hold something else, no record of these
            classes, and a missing `h5py`.
    """
    return read_writers(spec, split, _files, _hdf5_writers)


def _files(spec: DataSpec, split: str, label_of: np.ndarray, inventory: Inventory) -> list[Path]:
    root = inventory.root
    whole, digits = (root / name.format(split) for name in _FILES)
    if (root / split).is_dir():
        inventory.pass_over(BESIDE, *sorted((root / split).iterdir()))
    if whole.is_file():
        return [whole]
    if not digits.is_file():
        raise DataError(f"{root.absolute()} holds no {whole.name}: correct data.root.")
    if (label_of[len(string.digits) :] >= 0).any():
        raise ConfigError(
            f"{digits} holds only digits, and data.classes names letters: choose "
            f"data=femnist_digits, or put {whole.name} beside it."
        )
    return [digits]


def _hdf5_writers(file: Path) -> Iterator[Writer]:
    try:
        h5py = importlib.import_module("h5py")
    except ModuleNotFoundError:
        raise DataError(
            f"{file.name} needs the Python package h5py, fedsink-papers' extra `femnist`: install "
            "it with `pip install h5py`, or take LEAF's JSON files."
        ) from None
    try:
        with h5py.File(file, "r") as opened:
            places: set[Any] = set()
            for user, group in opened["examples"].items():
                parts = group["pixels"], group["label"]
                for part in (group, *parts):
                    # Other names of one object, in this file or another, would repeat its records.
                    if part.file.filename != opened.filename or part.id in places:
                        raise ValueError(f"what {user} wrote stands in several places")
                    places.add(part.id)
                if any(part.is_virtual or part.external for part in parts):
                    raise ValueError(f"what {user} wrote lies in another file")
                if max(part.size for part in parts) > _MOST_VALUES:
                    raise ValueError(f"{user} wrote more than anybody could")
                yield Writer(user, *(part[()] for part in parts))
    except (AttributeError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise DataError(
            f"{file} is not in TensorFlow Federated's format, examples/USER/pixels and label "
            f"({error}); replace it with an intact copy."
        ) from error
