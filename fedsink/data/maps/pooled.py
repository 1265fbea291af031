"""The map that releases where the light of a picture is: ours, for both mechanisms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from fedsink.data import dct
from fedsink.data.maps.base import (
    SLACK,
    Map,
    Norm,
    brightest_at_one,
    check_block,
    check_norm,
    direction,
    image_shape,
    planes,
    sanitised,
)
from fedsink.errors import ConfigError

_LARGEST_POWER = 2.0**20  # where only the brightest cell is left
_DARK = 1e-6  # a picture without a brighter cell than this fades to the zero vector


@dataclass(frozen=True)
class PooledPower(Map):
    """f(x) = u/‖u‖, u = p^γ, p ≥ 0 the mean of x over each cell of a block×block grid.

    Vectors without negative entries and of unit norm are at most 2 apart in L1 and √2 in L2, so
    Δ₁ = 2 and Δ₂ = √2 whatever γ. A power above 1 concentrates u on the bright cells. Noise of
    the same strength is added to every cell, so a concentrated u stands out further: on MNIST
    with block 7 and Laplace noise, the total variance of f over that of the noise grows from 3.9
    (γ = 1) to 6.8 (γ = 2) and 10.2 (γ = 3). f keeps p up to its scale: p ∝ f^(1/γ). A black
    image ↦ 0. Channels are normalised jointly.

    Attributes:
        shape: (channels, height, width).
        block: cells along each side; they may cut pixels, which count by their share of area.
        power: γ ≥ 1.
        norm: norm of the division and of the guarantee.
        black, white: for `render` alone, the brightness, as a fraction of the picture's
            brightest point, that is drawn 0 and 1.

    Guarantees: see `Map`.

    Raises:
        ConfigError: for a bad shape or norm, a block outside 1 … min(height, width), γ outside
            1 … 2²⁰, or not 0 ≤ black < white.
    """

    name: ClassVar[str] = "pooled_power"
    shape: tuple[int, ...]
    block: int
    power: float = 2.0
    norm: Norm = "l1"
    black: float = 0.0
    white: float = 1.0

    def __post_init__(self) -> None:
        """Check the options."""
        object.__setattr__(self, "shape", image_shape(self.shape, self.name))
        check_norm(self.norm, self.name)
        check_block(self.block, 1, self.shape, self.name)
        if not 1.0 <= self.power <= _LARGEST_POWER:
            raise ConfigError(
                f"the map {self.name} needs a power from 1 to {_LARGEST_POWER:g}, got {self.power}."
            )
        if not 0.0 <= self.black < self.white < math.inf:
            raise ConfigError(
                f"the map {self.name} needs 0 ≤ black < white, got black={self.black} and "
                f"white={self.white}."
            )

    @property
    def record_shape(self) -> tuple[int, ...]:
        """(channels, height, width)."""
        return self.shape

    @property
    def dimension(self) -> int:
        """D = channels · block²."""
        return int(self.shape[0] * self.block**2)

    @property
    def sensitivity(self) -> float:
        """Diameter of the non-negative part of the unit sphere: 2 in L1, √2 in L2."""
        return (2.0 if self.norm == "l1" else math.sqrt(2.0)) * SLACK

    def __call__(self, images: Tensor) -> Tensor:
        """Return (N, channels·block²)."""
        down, across = (_areas(self.block, side).to(images.device) for side in self.shape[1:])
        cells = (down @ sanitised(images) @ across.T).flatten(1)
        # f does not depend on the scale of p, so neither does its gradient.
        largest = cells.detach().amax(dim=1, keepdim=True).clamp_min(_DARK)
        return direction((cells / largest) ** self.power, self.norm).to(images.dtype)

    def render(self, coordinates: Tensor) -> Tensor:
        """Return p = f^(1/γ), interpolated to full size, between the black and the white level.

        The interpolation is that of the cosines of p. Levels between 0 and 1 make up for the
        blur of coarse cells: a classifier trained on the pictures should know sharp ones.
        """
        device = coordinates.device
        down, across = (_interpolation(self.block, side).to(device) for side in self.shape[1:])
        cells = planes(coordinates.to(torch.float64).clamp_min(0.0), self.shape[0])
        cells = cells.unflatten(2, (self.block, self.block)) ** (1.0 / self.power)
        pixels = (down @ cells @ across.T).flatten(1)
        pixels = brightest_at_one(pixels)
        pixels = ((pixels - self.black) / (self.white - self.black)).clamp(0.0, 1.0)
        return pixels.reshape(-1, *self.shape).to(coordinates.dtype)


@lru_cache(maxsize=16)
def _areas(cells: int, pixels: int) -> Tensor:
    """Return the (cells, pixels) matrix of means: cell i covers [i, i+1)·pixels/cells."""
    edges = torch.arange(cells + 1, dtype=torch.float64) * pixels / cells
    left = torch.arange(pixels, dtype=torch.float64)
    overlap = torch.minimum(edges[1:, None], left + 1.0) - torch.maximum(edges[:-1, None], left)
    return overlap.clamp_min(0.0) * cells / pixels


@lru_cache(maxsize=16)
def _interpolation(cells: int, pixels: int) -> Tensor:
    """Return (pixels, cells): the DCT of the cells, evaluated at the centres of the pixels."""
    return (
        dct.cosine_matrix(pixels)[:cells].T @ dct.cosine_matrix(cells) * math.sqrt(pixels / cells)
    )
