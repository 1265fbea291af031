"""Two rings around the origin: points with one of two radii, and which of them is the label."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsink.data.spec import DataSpec

RADII = (0.4, 1.0)
RECORDS = 2000
_WIDTH = 0.02
_SEEDS = {"train": 0, "test": 1}


def read(spec: DataSpec, split: str) -> tuple[Tensor, Tensor]:
    """Returns 2000 points (N, 2), the same ones every time, and their rings (N,)."""
    random = torch.Generator().manual_seed(_SEEDS[split])
    labels = torch.arange(RECORDS) % len(RADII)
    radius = torch.tensor(RADII)[labels] + _WIDTH * torch.randn(RECORDS, generator=random)
    angle = 2.0 * torch.pi * torch.rand(RECORDS, generator=random)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), labels
