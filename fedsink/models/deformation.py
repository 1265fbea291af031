"""Elastic deformation of drawn pictures: small bends, which a small generator leaves out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from fedsink.errors import ModelError

if TYPE_CHECKING:
    from fedsink.privacy.noise import Stream

_PART = 2000


@dataclass(frozen=True)
class ElasticDeformation:
    """x(p) ↦ x(p + u(p)), with u a smooth random field: elastic distortions of a fixed law.

    Small smooth displacements leave the thin sheet that a small generator fills, in directions
    that keep what is shown (Simard, Steinkraus and Platt 2003, section 2). That they keep it is
    knowledge about pictures, not about anybody's data.

    The vertical and the horizontal part of u are independent Gaussian fields with mean 0,
    standard deviation τ·m pixels and correlation exp(−‖p − p'‖²/(2(ℓ·m)²)), m = min(H, W). Values
    between pixels are bilinear; outside the picture its border goes on.

    Attributes:
        std: τ ≥ 0, in units of the shorter side; 0 deforms nothing.
        length: ℓ > 0, the correlation length in units of the shorter side; large is smooth.

    Raises:
        ModelError: for a value out of range.
    """

    std: float = 0.0
    length: float = 0.12

    def __post_init__(self) -> None:
        if not 0.0 <= self.std < math.inf:
            raise ModelError(
                f"observation.deformation.std must be a finite number ≥ 0, got {self.std}."
            )
        if not 0.0 < self.length < math.inf:
            raise ModelError(
                f"observation.deformation.length must be a positive number, got {self.length}."
            )

    def __call__(self, images: Tensor, stream: Stream) -> Tensor:
        """Return images (n, C, H, W) deformed, in their range; the same images where τ = 0.

        Row i depends on image i and the stream's i-th normals alone; its channels move together.
        """
        if self.std == 0.0 or len(images) == 0:
            return images
        return torch.cat([self._deform(part, stream) for part in images.split(_PART)])

    def _deform(self, images: Tensor, stream: Stream) -> Tensor:
        n, _, height, width = images.shape
        shorter = min(height, width)
        vertical, horizontal = (_root(side, self.length * shorter) for side in (height, width))
        field = self.std * shorter * (vertical @ stream.normal(n, 2, height, width) @ horizontal)
        # grid_sample counts a side from −1 to 1, horizontal first.
        moved = field.flip(1).movedim(1, 3) * torch.tensor([2 / width, 2 / height])
        still = functional.affine_grid(
            torch.eye(2, 3).expand(n, 2, 3), list(images.shape), align_corners=False
        )
        return functional.grid_sample(
            images, (still + moved).to(images), padding_mode="border", align_corners=False
        )


def _root(side: int, length: float) -> Tensor:
    """The symmetric root of the correlation matrix of `side` pixels in a row."""
    places = torch.arange(side, dtype=torch.float64) / length
    correlation = torch.exp(-0.5 * (places.unsqueeze(1) - places).square())
    values, vectors = torch.linalg.eigh(correlation)
    return (vectors * values.clamp_min(0.0).sqrt()) @ vectors.T
