"""Throw-away generators, one a critic: against them critics learn before a run's first round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from fedsink.models.critics.base import GAIN, SLOPE, Stacked


@dataclass(frozen=True)
class LocalGenerator(Stacked):
    """G_m(z, l) = s·(A₃φ(A₂φ(A₁[z, l]) + b₂) + b₃)/√D, with φ leaky and z uniform in [−1, 1]⁸.

    Attributes:
        dimension: D.
        classes: L.
        scale: s, about the norm of a record's coordinates.
    """

    dimension: int
    classes: int
    scale: float = 10.0
    latent: ClassVar[int] = 8
    hidden: ClassVar[int] = 64

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """A₁; A₂, b₂; A₃, b₃."""
        h = self.hidden
        return {
            "first": (self.latent + self.classes, h),
            "second": (h, h),
            "bias": (1, h),
            "last": (h, self.dimension),
            "last_bias": (1, self.dimension),
        }

    @property
    def deviations(self) -> dict[str, float]:
        """As for layers whose inputs are of unit size: a few latents and one label, then h."""
        wide = 1.0 / math.sqrt(self.hidden)
        return {
            "first": GAIN / math.sqrt(self.latent / 3.0 + 1.0),
            "second": GAIN * wide,
            "bias": 0.0,
            "last": wide,
            "last_bias": 0.0,
        }

    def points(self, weights: Tensor, uniform: Tensor, labels: Tensor) -> Tensor:
        """G_m(z_b, l_b) for each generator's own B latents.

        Args:
            weights: (M, W).
            uniform: (z + 1)/2 in [0, 1], (M, B, 8).
            labels: (M, B) int64 in 0..L−1.

        Returns:
            (M, B, D).
        """
        arrays = self.arrays(weights)
        latents = 2.0 * uniform.to(weights) - 1.0
        inputs = torch.cat([latents, self.one_hot(labels, weights)], -1)
        hidden = leaky_relu(torch.bmm(inputs, arrays["first"]), SLOPE)
        hidden = leaky_relu(torch.baddbmm(arrays["bias"], hidden, arrays["second"]), SLOPE)
        points = torch.baddbmm(arrays["last_bias"], hidden, arrays["last"])
        return points * (self.scale / math.sqrt(self.dimension))
