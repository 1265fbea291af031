"""The half circle of Reshetova et al. (2024): points (cos θ, sin θ) with θ uniform on [0, π]."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedsink.data.spec import DataSpec

RECORDS = 5000
_SEEDS = {"train": 0, "test": 1}


def read(spec: DataSpec, split: str) -> tuple[Tensor, Tensor]:
    """Return 5000 points of radius 1, the same ones every time, all of one class."""
    random = np.random.Generator(np.random.PCG64(_SEEDS[split]))
    angle = np.pi * random.random(RECORDS)
    points = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    return torch.from_numpy(points), torch.zeros(RECORDS, dtype=torch.int64)
