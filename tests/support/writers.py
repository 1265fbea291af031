"""Small Federated EMNIST files in the two published formats."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsink.data.sources.femnist import CHARACTERS

Writers = Mapping[str, tuple[np.ndarray, Sequence[int]]]
"""By identifier: grey levels of 0 to 255, (n, 28, 28), with paper 255, and characters."""


def some(words: Mapping[str, str], seed: int = 0) -> dict[str, tuple[np.ndarray, list[int]]]:
    """Noise of dark ink on paper, one picture for each character that a writer wrote."""
    random = np.random.default_rng(seed)
    pictures = {}
    for user, text in words.items():
        grey = np.full((len(text), 28, 28), 255)
        grey[:, 8:20, 8:20] = random.integers(0, 256, (len(text), 12, 12))
        pictures[user] = grey, [CHARACTERS.index(character) for character in text]
    return pictures


def leaf(writers: Writers, *, divided: bool = True) -> dict[str, Any]:
    """The content of one of LEAF's files."""
    data = {}
    for user, (grey, characters) in writers.items():
        rows = grey.reshape(-1, 784)
        data[user] = {"x": (rows / 255 if divided else rows).tolist(), "y": list(characters)}
    sizes = [len(characters) for _, characters in writers.values()]
    return {"users": list(writers), "num_samples": sizes, "user_data": data}


def write_leaf(root: Path, split: str, *parts: Writers, divided: bool = True) -> list[Path]:
    """Writes LEAF's files of one split, one for each part."""
    (root / split).mkdir(parents=True, exist_ok=True)
    paths = []
    for number, writers in enumerate(parts):
        paths.append(root / split / f"all_data_{number}_niid_0_keep_0_{split}_9.json")
        paths[-1].write_text(json.dumps(leaf(writers, divided=divided)))
    return paths


def write_hdf5(path: Path, writers: Writers) -> Path:
    """Writes one of TensorFlow Federated's files."""
    import h5py

    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for user, (grey, characters) in writers.items():
            group = file.create_group(f"examples/{user}")
            group["pixels"] = (grey / 255).astype(np.float32)
            group["label"] = np.asarray(characters, dtype=np.int32)
    return path
