"""Federated EMNIST: handwritten digits and letters, 28×28 grey, each by a known writer.

It is LEAF's JSON (Caldas et al. 2018), ROOT/train/all_data_*.json and ROOT/test/all_data_*.json,
which is not downloaded. Paper is stored as 1 and ink as 0, and the characters 0–9, A–Z, a–z are
numbered from 0 to 61. TensorFlow Federated's HDF5 files hold the same; fedsink-papers reads them.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedsink.data.labelled import Reading, number_of
from fedsink.data.sources.cache import cache_folder, fill_once, key_of
from fedsink.data.sources.inventory import Inventory
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError, DataError
from fedsink.values import read_json

CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_PIXELS = 28 * 28
_HDF5 = "fed_emnist*_{}.h5"  # TensorFlow Federated's files


class Writer(NamedTuple):
    """A writer's identifier, pixels and characters, as they stand in a file."""

    user: str
    pixels: Any
    characters: Any


class _Decoded(NamedTuple):
    """Images (N, 1, 28, 28), characters (N,) from 0 to 61 and numbers of users (N,)."""

    images: np.ndarray
    characters: np.ndarray
    users: np.ndarray


def read(spec: DataSpec, split: str) -> Reading:
    """Returns uint8 images (N, 1, 28, 28), ink 255 on paper 0, their labels and their writers.

    A class of data.classes is named by its characters: "0" is the digit, "A" only the capital,
    and "Aa" the letter in either form. Records of characters that no class names are left out.

    A record with a value above 1 is in grey levels of 0 to 255; others are multiplied by 255. This
    is decided record by record, so that no record changes how another one is read. A writer in
    several of LEAF's files is read from the last of them by name, as LEAF's own reader takes it
    once. All of LEAF's JSON takes minutes, so the result is kept in the cache folder, readable only
    by the user, under the names, sizes and times of the files.
    """
    return read_writers(spec, split, _files, _json_writers)


def read_writers(
    spec: DataSpec,
    split: str,
    files_of: Callable[[DataSpec, str, np.ndarray, Inventory], list[Path]],
    writers_of: Callable[[Path], Iterator[Writer]],
) -> Reading:
    """Returns the records of writers in the files of a format, as `read` does."""
    # `files_of` gets the class of each character and the inventory of the folder.
    label_of = _label_of(spec.classes)
    if spec.root is None:
        raise ConfigError(
            f"{spec.name} is not downloaded: set data.root to the folder with the writers' files."
        )
    inventory = Inventory(Path(spec.root).expanduser())
    files = files_of(spec, split, label_of, inventory)
    (images, characters, users), changes = _decoded(files, writers_of)
    labels = label_of[characters]
    mask = labels >= 0
    if not mask.any():
        raise DataError(
            f"{spec.root} holds no {split} record of the classes {', '.join(spec.classes)}; "
            "correct data.root or data.classes."
        )
    if not mask.all():  # if all are kept, the mapped cache need not be copied
        images, labels, users = images[mask], labels[mask], users[mask]
        left = f"{(~mask).sum()} of {len(mask)} records are of characters that no class names"
        changes.append(f"{left}: left out.")
    values, kinds, writers = map(torch.from_numpy, (images, labels, users))
    return Reading(values, kinds, writers, notes=(*inventory.notes(len(files)), *changes))


def _label_of(classes: Sequence[str]) -> np.ndarray:
    """Returns the class of each character, (62,); −1 for none."""
    labels = np.full(len(CHARACTERS), -1, dtype=np.int64)
    for label, name in enumerate(classes):
        for character in name:
            place = CHARACTERS.find(character)
            if place < 0 or labels[place] >= 0:
                raise ConfigError(
                    f"data.classes: {name!r} is no class of femnist, which is named by its "
                    "characters, such as 0, A or Aa, with none of them in two classes."
                )
            labels[place] = label
    return labels


def _files(spec: DataSpec, split: str, label_of: np.ndarray, inventory: Inventory) -> list[Path]:
    root = inventory.root
    beside = sorted((root / split).iterdir()) if (root / split).is_dir() else []
    named = [path for path in beside if path.match("all_data_*.json")]
    inventory.pass_over(
        "not named all_data_*.json", *(path for path in beside if path not in named)
    )
    # The places of files before links to them.
    found = [p for p in sorted(named, key=lambda path: path.is_symlink()) if inventory.is_new(p)]
    hdf5 = sorted(root.glob(_HDF5.format(split)))
    inventory.pass_over("TensorFlow Federated's, which data.name=femnist_tff reads", *hdf5)
    if found:
        return sorted(found)
    if hdf5:
        raise DataError(
            f"{hdf5[0]} is in TensorFlow Federated's format: give data.name=femnist_tff, which "
            "fedsink-papers reads (docs/papers.md), or take LEAF's JSON files."
        )
    raise DataError(
        f"{root.absolute()} holds no {split}/all_data_*.json; set data.root to the folder with "
        "LEAF's files."
    )


def _decoded(
    files: list[Path], writers_of: Callable[[Path], Iterator[Writer]]
) -> tuple[_Decoded, list[str]]:
    """Returns all records of these files, decoded once and kept in the cache folder, and notes."""

    def fill(folder: Path) -> None:
        parts: dict[str, _Decoded] = {}
        several: set[str] = set()
        for file in files:
            for writer in writers_of(file):
                if parts.pop(writer.user, None) is not None:
                    several.add(writer.user)
                parts[writer.user] = _checked(file, writer)
        if not parts:
            raise DataError(f"{files[0]} holds no writer; replace it with an intact copy.")
        for name, arrays in zip(_Decoded._fields, zip(*parts.values(), strict=True), strict=True):
            np.save(folder / f"{name}.npy", np.concatenate(arrays))
        notes = []
        if several:
            notes.append(
                f"{len(several)} of {len(parts)} writers are in several files, and are read from "
                "the last by name."
            )
        (folder / "notes.json").write_text(json.dumps(notes))

    folder = fill_once(cache_folder() / "femnist" / key_of(files, "writers once"), fill)
    try:
        # Mapped copy-on-write: every process on the machine shares one copy in memory.
        arrays = (np.load(folder / f"{name}.npy", mmap_mode="c") for name in _Decoded._fields)
        return _Decoded(*arrays), read_json((folder / "notes.json").read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{folder} cannot be read; remove it, and it is made again.") from error


def _checked(file: Path, writer: Writer) -> _Decoded:
    """Checks one writer's records and decodes them: ink 255 on paper 0, uint8."""

    def wrong(fault: str) -> DataError:
        return DataError(
            f"{file}: the writer {writer.user} {fault}; replace the file with an intact copy."
        )

    try:
        labels = np.asarray(writer.characters).reshape(-1)
        paper = np.array(writer.pixels, dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        raise wrong("has records that are not numbers, or of different lengths") from None
    if paper.shape[:1] != labels.shape or paper.size != len(labels) * _PIXELS:
        raise wrong(
            f"has pixels of shape {paper.shape} and {len(labels)} labels, not 28×28 pixels a label"
        )
    users = np.full(len(labels), number_of(writer.user))
    if len(labels) == 0:
        return _Decoded(
            np.zeros((0, 1, 28, 28), dtype=np.uint8), np.zeros(0, dtype=np.int64), users
        )
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= len(CHARACTERS):
        raise wrong(f"has a label that is no whole number from 0 to {len(CHARACTERS) - 1}")
    paper = paper.reshape(-1, _PIXELS)
    if not (np.isfinite(paper).all() and paper.min() >= 0 and paper.max() <= 255):
        raise wrong("has a pixel that is neither in [0, 1] nor in [0, 255]")
    stored = paper.max(axis=1) > 1  # as grey levels
    if (paper[stored] % 1 != 0).any():
        raise wrong("has a record that is neither in [0, 1] nor in whole grey levels")
    paper[~stored] *= 255
    ink = 255 - np.rint(paper).astype(np.uint8)
    return _Decoded(ink.reshape(-1, 1, 28, 28), labels.astype(np.int64), users)


def _json_writers(file: Path) -> Iterator[Writer]:
    try:
        with file.open("rb") as opened:
            content = read_json(opened.read())
        writers = [
            Writer(user, part["x"], part["y"]) for user, part in content["user_data"].items()
        ]
        sizes = dict(zip(content["users"], content["num_samples"], strict=False))
    except (OSError, RecursionError, ValueError) as error:
        raise DataError(
            f"{file} is no complete JSON file ({error}); replace it with an intact copy."
        ) from error
    except (AttributeError, KeyError, TypeError):
        raise DataError(
            f"{file} is not in LEAF's format, users, num_samples and user_data with x and y for "
            "each user; replace it with an intact copy."
        ) from None
    for writer in writers:
        characters = writer.characters
        if not isinstance(characters, list) or sizes.pop(writer.user, None) != len(characters):
            raise DataError(
                f"{file}: the writer {writer.user} has not as many records as num_samples states; "
                "replace the file with an intact copy."
            )
        yield writer
    if sizes:
        raise DataError(
            f"{file}: the writer {next(iter(sizes))} is in users and not in user_data; replace "
            "the file with an intact copy."
        )
