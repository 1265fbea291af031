"""The half circle of Reshetova et al. (2024): points (cos θ, sin θ) with θ uniform on [0, π]."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedsink.data.spec import DataSpec

TEST_RECORDS = 5000
_SEEDS = {"train": 0, "test": 1}


def read(spec: DataSpec, split: str) -> tuple[Tensor, Tensor]:
    """Return points of radius 1, the same ones every time, all of one class.

    There are 5000 of the test, and `nominal_records` to train on: the first of more are the same.
    """
    number = spec.nominal_records if split == "train" else TEST_RECORDS
    random = np.random.Generator(np.random.PCG64(_SEEDS[split]))
    angle = np.pi * random.random(number)
    points = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    return torch.from_numpy(points), torch.zeros(number, dtype=torch.int64)
