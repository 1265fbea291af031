"""Smooth random bends of pictures, as a drawn picture or a rendered glyph has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from fedsink.values import checks

if TYPE_CHECKING:
    from fedsink.privacy.randomness.noise import Stream

_BENT_AT_ONCE = 2000  # pictures, which bounds the memory


@dataclass(frozen=True)
class ElasticDeformation:
    """x(p) ↦ x(p + u(p)), with u a smooth random field: elastic distortions of a fixed law.

    Small smooth displacements leave the thin sheet that a small generator fills, in directions
    that keep what is shown (Simard, Steinkraus and Platt 2003, section 2). That they keep it is
    knowledge about pictures, not about private data.

    The vertical and the horizontal part of u are independent Gaussian fields with mean 0,
    standard deviation τ·m pixels and correlation exp(−‖p − p'‖²/(2(ℓ·m)²)), m = min(H, W). Values
    between pixels are bilinear; outside the picture its border continues.

    Attributes:
        std: τ ≥ 0, in units of the shorter side; 0 deforms nothing.
        length: ℓ > 0, the correlation length in units of the shorter side; large is smooth.
    """

    std: float = 0.0
    length: float = 0.12

    def __post_init__(self) -> None:
        checks.number("observation.deformation.std", self.std)
        checks.positive("observation.deformation.length", self.length)

    def __call__(self, images: Tensor, stream: Stream) -> Tensor:
        """Returns images (n, C, H, W) deformed, in their range; the same images where τ = 0.

        Row i depends only on image i and the stream's i-th normals; its channels move together.
        """
        if self.std == 0.0 or len(images) == 0:
            return images
        height, width = images.shape[-2:]
        pixels = self.std * min(height, width)
        correlated = self.length * min(height, width)
        vertical, horizontal = _root(height, correlated), _root(width, correlated)
        # grid_sample counts a side from −1 to 1, horizontal first.
        still = functional.affine_grid(
            torch.eye(2, 3).unsqueeze(0), [1, 1, height, width], align_corners=False
        )
        unit = torch.tensor([2 / width, 2 / height])
        deformed = []
        for part in images.split(_BENT_AT_ONCE):
            field = pixels * (vertical @ stream.normal(len(part), 2, height, width) @ horizontal)
            grid = (still + field.flip(1).movedim(1, 3) * unit).to(images)
            deformed.append(
                functional.grid_sample(part, grid, padding_mode="border", align_corners=False)
            )
        return torch.cat(deformed)


def _root(side: int, length: float) -> Tensor:
    """Returns the symmetric root of the correlation matrix of `side` pixels in a row."""
    places = torch.arange(side, dtype=torch.float64) / length
    correlation = torch.exp(-0.5 * (places.unsqueeze(1) - places).square())
    values, vectors = torch.linalg.eigh(correlation)
    return (vectors * values.clamp_min(0.0).sqrt()) @ vectors.T
