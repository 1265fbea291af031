"""scikit-learn's embedded handwritten digits: 1797 grey images of 8×8 pixels, no download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from fedsink.data.labelled import Reading
from fedsink.data.spec import DataSpec

TEST_RECORDS = 360
_SPLIT_SEED = 0


def read(spec: DataSpec, split: str) -> Reading:
    """Returns 1437 training or 360 test digits, pixels x/16 in [0, 1], in a fixed public split."""
    pixels, labels = _embedded()
    test = _test_mask(labels)
    mask = test if split == "test" else ~test
    images = pixels.astype(np.float32)[mask] / np.float32(16.0)
    return Reading(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels[mask]))


def _embedded() -> tuple[np.ndarray, np.ndarray]:
    """Returns 8×8 pixels of 0 to 16 and labels; importing scikit-learn for them takes longer."""
    package = find_spec("sklearn")
    places = package.submodule_search_locations if package else None
    file = Path(places[0]) / "datasets" / "data" / "digits.csv.gz" if places else None
    if file is None or not file.is_file():
        from sklearn.datasets import load_digits

        digits = load_digits()
        return np.asarray(digits.images), np.asarray(digits.target, dtype=np.int64)
    table = np.loadtxt(file, delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)


def _test_mask(labels: np.ndarray) -> np.ndarray:
    """Marks 360 records, stratified: each class gets its part, rounded by largest remainder."""
    counts = np.bincount(labels)
    exact = counts * TEST_RECORDS / counts.sum()
    quota = np.floor(exact).astype(int)
    largest = np.argsort(quota - exact, kind="stable")[: TEST_RECORDS - quota.sum()]
    quota[largest] += 1
    random = np.random.Generator(np.random.PCG64(_SPLIT_SEED))
    mask = np.zeros(len(labels), dtype=bool)
    for label, size in enumerate(quota):
        members = np.flatnonzero(labels == label)
        mask[random.permutation(members)[:size]] = True
    return mask
