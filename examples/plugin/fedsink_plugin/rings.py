"""Two rings around the origin: points with one of two radii, and which of them is the label."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsink.data import DataSpec


def read(spec: DataSpec, split: str) -> tuple[Tensor, Tensor]:
    """Returns 2000 points (N, 2), the same ones every time, and their rings (N,)."""
    random = torch.Generator().manual_seed({"train": 0, "test": 1}[split])
    labels = torch.arange(2000) % 2
    radius = torch.tensor([0.4, 1.0])[labels] + 0.02 * torch.randn(2000, generator=random)
    angle = 2.0 * torch.pi * torch.rand(2000, generator=random)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), labels
