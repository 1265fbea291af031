"""The half circle of Reshetova et al. (2024): points (cos θ, sin θ) with θ uniform on [0, π]."""

from __future__ import annotations

import numpy as np
import torch

from fedsink.data.labelled import Reading
from fedsink.data.spec import DataSpec

TEST_RECORDS = 5000
_SEEDS = {"train": 0, "test": 1}


def read(spec: DataSpec, split: str) -> Reading:
    """Returns points of radius 1 and one class, the same ones every time."""
    # The test split has 5000, the training split `nominal_records`; a larger training split begins
    # with the points of a smaller one.
    number = spec.nominal_records if split == "train" else TEST_RECORDS
    random = np.random.Generator(np.random.PCG64(_SEEDS[split]))
    angle = np.pi * random.random(number)
    points = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    return Reading(torch.from_numpy(points), torch.zeros(number, dtype=torch.int64))
