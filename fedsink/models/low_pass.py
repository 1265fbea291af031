"""Low-pass noise on drawn pictures: the fine variation that a smooth generator leaves out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedsink.data import dct
from fedsink.values import checks

if TYPE_CHECKING:
    from fedsink.privacy.randomness.noise import Stream

_PART = 5000


@dataclass(frozen=True)
class LowPassNoise:
    """x ↦ clamp(x + s·n, 0, 1), with n Gaussian and low-pass: a decoder's observation model.

    It restores full rank to the thin sheet that a small generator fills (the observation model of
    Kingma and Welling 2014, with a variance that is fixed instead of learnt).

    The coefficient of n at radius r of the orthonormal DCT (`fedsink.data.dct`) has standard
    deviation proportional to 1/(1 + (r/r₀)²), r₀ = κ·min(H, W), and n has unit mean square over
    the picture.

    Attributes:
        std: s ≥ 0, in units of the pixel range; 0 adds nothing.
        cutoff: κ > 0, in units of the shorter side; small is smooth.

    Raises:
        ConfigError: a value out of range.
    """

    std: float = 0.0
    cutoff: float = 0.43

    def __post_init__(self) -> None:
        checks.number("observation.noise.std", self.std)
        checks.positive("observation.noise.cutoff", self.cutoff)

    def __call__(self, images: Tensor, stream: Stream) -> Tensor:
        """Return images (n, C, H, W) in [0, 1] with noise; the same images where s = 0.

        Row i depends on image i and the stream's i-th normals alone.
        """
        if self.std == 0.0 or len(images) == 0:
            return images
        # In float64, as bends are: how many pictures there are changes how a product is rounded.
        shaped = self._basis(*images.shape[-2:])
        noisy = [
            part + (stream.normal(*part.shape[:2], len(shaped)) @ shaped).view_as(part).to(part)
            for part in images.split(_PART)
        ]
        return torch.cat(noisy).clamp_(0.0, 1.0)

    def _basis(self, height: int, width: int) -> Tensor:
        """The DCT's rows, each times the standard deviation of its coefficient."""
        band = dct.disc(height, width, math.hypot(height, width))
        radii = torch.tensor([math.hypot(i, j) for i, j in band], dtype=torch.float64)
        spectrum = 1.0 / (1.0 + (radii / (self.cutoff * min(height, width))) ** 2)
        spectrum *= self.std / spectrum.square().mean().sqrt()
        return spectrum.unsqueeze(1) * dct.basis(height, width, band)
