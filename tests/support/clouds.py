"""Clouds of points and small labelled pictures, the same for the same seed."""

from __future__ import annotations

import torch
from torch import Tensor


def cloud(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def blobs(n: int, seed: int, classes: int = 3, side: int = 8) -> tuple[Tensor, Tensor]:
    """Noisy copies of one random picture per class."""
    centres = torch.rand(classes, 1, side, side, generator=torch.Generator().manual_seed(99))
    labels = torch.arange(n) % classes
    noise = torch.randn(n, 1, side, side, generator=torch.Generator().manual_seed(seed))
    return (centres[labels] + 0.1 * noise).clamp(0, 1), labels
