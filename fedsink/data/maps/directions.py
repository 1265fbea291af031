"""Maps that release only the direction of a coarse picture (recipes A1): ours.

They drop a picture's contrast, and `DctDirection` its brightness too. This buys a diameter of 2 or
√2 whatever the number of pixels, without any radius to choose.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from fedsink.data import dct
from fedsink.data.maps.map import (
    SLACK,
    ImageMap,
    Norm,
    brightest_at_one,
    check_norm,
    direction,
    is_whole,
    planes,
    sanitised,
)
from fedsink.errors import ConfigError

_LARGEST_POWER = 2.0**20  # where only the brightest cell is left
_DIM = 1e-6  # a picture without a brighter cell than this fades to the zero vector


@dataclass(frozen=True)
class DctDirection(ImageMap):
    """f(x) = v/‖v‖, v the block×block low-frequency DCT of x without the mean brightness.

    The default for the Laplace mechanism: with norm="l1" every f(x) lies on the unit L1 sphere
    and Δ₁ = 2 (with norm="l2", Δ₂ = 2). A constant image ↦ 0. Channels are normalised jointly.

    Attributes:
        block: the block×block lowest frequencies are kept, without (0, 0).
        norm: norm of the division and of the guarantee.
        background: only for `render`, the public fraction of a picture's pixels to draw black,
            since the mean brightness is not released.

    Guarantees: see `Map`.

    Raises:
        ConfigError: for a bad shape, norm, or a block outside 2 … min(height, width).
    """

    name: ClassVar[str] = "dct_direction"
    block: int
    norm: Norm = "l1"
    background: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        check_norm(self.norm, self.name)
        self._check_block(self.block, 2, min(self.shape[1:]))
        if not 0 <= self.background < 1:
            raise ConfigError(
                f"the map {self.name} needs a background in [0, 1), got {self.background}."
            )

    @property
    def dimension(self) -> int:
        """D = channels · (block² − 1)."""
        return int(self.shape[0] * (self.block**2 - 1))

    @property
    def sensitivity(self) -> float:
        """Largest distance of two unit vectors, 2."""
        return 2.0 * SLACK

    def _basis(self, coordinates: Tensor) -> Tensor:
        _, height, width = self.shape
        band = dct.block(height, width, self.block, dc=False)
        return dct.basis(height, width, band, torch.float64, coordinates.device)

    def __call__(self, images: Tensor) -> Tensor:
        """Returns (N, channels·(block² − 1))."""
        bands = (sanitised(images).flatten(2) @ self._basis(images).T).flatten(1)
        return direction(bands, self.norm).to(images.dtype)

    def render(self, coordinates: Tensor) -> Tensor:
        """Returns the released band as a picture: background at 0, brightest pixel at 1.

        A black level that gives the rendered pictures the mean brightness of real ones served
        classifiers best; MNIST is darker (0.65) than scikit-learn's digits (0.25).
        """
        pixels = self._from_band(coordinates, self._basis(coordinates))
        if len(pixels) == 0:
            return pixels.reshape(-1, *self.shape).to(coordinates.dtype)
        black = pixels.quantile(self.background, dim=1, keepdim=True)
        pixels = (pixels - black).clamp_min(0.0)
        return brightest_at_one(pixels).reshape(-1, *self.shape).to(coordinates.dtype)


@dataclass(frozen=True)
class NonNegativeDirection(ImageMap):
    """f(x) = low-pass DCT of p/‖p‖₂, p ≥ 0 the image average-pooled by `pool`.

    The default for the Gaussian mechanism. Two vectors without negative entries meet at an angle
    of at most 90°, so unit vectors are at most √2 apart, and dropping coefficients of a rotation
    cannot enlarge that: Δ₂ = √2. The clamp at 0 comes after all resampling. A black image ↦ 0.
    Channels are normalised jointly.

    Attributes:
        pool: side of the averaged squares; it must divide height and width.
        block: the block×block lowest frequencies of the pooled image are kept, with the mean.

    Guarantees: see `Map`.

    Raises:
        ConfigError: for a bad shape, a pool that does not divide it, or a bad block.
    """

    name: ClassVar[str] = "non_negative_direction"
    pool: int
    block: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _, height, width = self.shape
        pool = self.pool
        if not is_whole(pool) or pool < 1 or height % pool or width % pool:
            raise ConfigError(
                f"the map {self.name} needs a pool that divides {height}×{width}, got {self.pool}."
            )
        self._check_block(
            self.block, 1, min(height, width) // pool, f" after pooling by {self.pool}"
        )

    @property
    def norm(self) -> Norm:
        """Norm of the guarantee, L2."""
        return "l2"

    @property
    def dimension(self) -> int:
        """D = channels · block²."""
        return int(self.shape[0] * self.block**2)

    @property
    def sensitivity(self) -> float:
        """Diameter of the non-negative part of the unit ball."""
        return math.sqrt(2.0) * SLACK

    def _basis(self, coordinates: Tensor, pool: int) -> Tensor:
        height, width = self.shape[1] // pool, self.shape[2] // pool
        band = dct.block(height, width, self.block)
        return dct.basis(height, width, band, torch.float64, coordinates.device)

    def __call__(self, images: Tensor) -> Tensor:
        """Returns (N, channels·block²)."""
        pooled = avg_pool2d(sanitised(images), self.pool).clamp_min(0.0)
        unit = planes(direction(pooled.flatten(1), "l2"), self.shape[0])
        return (unit @ self._basis(images, self.pool).T).flatten(1).to(images.dtype)

    def render(self, coordinates: Tensor) -> Tensor:
        """Returns the released band as a picture: negatives at 0, brightest pixel at 1.

        The cosines are evaluated at full resolution. That is the band-limited interpolation of
        the pooled picture, and served classifiers better than a bilinear one.
        """
        pixels = self._from_band(coordinates, self._basis(coordinates, 1)).clamp_min(0.0)
        return brightest_at_one(pixels).reshape(-1, *self.shape).to(coordinates.dtype)


@dataclass(frozen=True)
class PooledPower(ImageMap):
    """f(x) = u/‖u‖, u = p^γ, p ≥ 0 the mean of x over each cell of a block×block grid.

    It releases where the light of a picture is, and serves both mechanisms. Vectors without
    negative entries and of unit norm are at most 2 apart in L1 and √2 in L2, so Δ₁ = 2 and
    Δ₂ = √2 whatever γ. A power above 1 concentrates u on the bright cells. Noise of the same
    strength is added to every cell, so a concentrated u stands out further: on MNIST with block 7
    and Laplace noise, the total variance of f over that of the noise grows from 3.9 (γ = 1) to
    6.8 (γ = 2) and 10.2 (γ = 3). f keeps p up to its scale: p ∝ f^(1/γ). A black image ↦ 0.
    Channels are normalised jointly.

    Attributes:
        block: cells along each side; they may cut pixels, which count by their share of area.
        power: γ ≥ 1.
        norm: norm of the division and of the guarantee.
        black, white: only for `render`, the brightness, as a fraction of the picture's
            brightest point, that is drawn 0 and 1.

    Guarantees: see `Map`.

    Raises:
        ConfigError: for a bad shape or norm, a block outside 1 … min(height, width), γ outside
            1 … 2²⁰, or not 0 ≤ black < white.
    """

    name: ClassVar[str] = "pooled_power"
    block: int
    power: float = 2.0
    norm: Norm = "l1"
    black: float = 0.0
    white: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_norm(self.norm, self.name)
        self._check_block(self.block, 1, min(self.shape[1:]))
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
    def dimension(self) -> int:
        """D = channels · block²."""
        return int(self.shape[0] * self.block**2)

    @property
    def sensitivity(self) -> float:
        """Diameter of the non-negative part of the unit sphere: 2 in L1, √2 in L2."""
        return (2.0 if self.norm == "l1" else math.sqrt(2.0)) * SLACK

    def __call__(self, images: Tensor) -> Tensor:
        """Returns (N, channels·block²)."""
        down, across = (_areas(self.block, side).to(images.device) for side in self.shape[1:])
        cells = (down @ sanitised(images) @ across.T).flatten(1)
        # f does not depend on the scale of p, so neither does its gradient.
        largest = cells.detach().amax(dim=1, keepdim=True).clamp_min(_DIM)
        return direction((cells / largest) ** self.power, self.norm).to(images.dtype)

    def render(self, coordinates: Tensor) -> Tensor:
        """Returns p = f^(1/γ), interpolated to full size, between the black and the white level.

        The cosines of p interpolate. Levels between 0 and 1 make up for the blur of coarse cells:
        a classifier trained on the pictures should know sharp ones.
        """
        device = coordinates.device
        down, across = (_interpolation(self.block, side).to(device) for side in self.shape[1:])
        cells = planes(coordinates.to(torch.float64).clamp_min(0.0), self.shape[0])
        cells = cells.unflatten(2, (self.block, self.block)) ** (1.0 / self.power)
        pixels = brightest_at_one((down @ cells @ across.T).flatten(1))
        pixels = ((pixels - self.black) / (self.white - self.black)).clamp(0.0, 1.0)
        return pixels.reshape(-1, *self.shape).to(coordinates.dtype)


@lru_cache(maxsize=16)
def _areas(cells: int, pixels: int) -> Tensor:
    """Returns the (cells, pixels) matrix of means: cell i covers [i, i+1)·pixels/cells."""
    edges = torch.arange(cells + 1, dtype=torch.float64) * pixels / cells
    left = torch.arange(pixels, dtype=torch.float64)
    overlap = torch.minimum(edges[1:, None], left + 1.0) - torch.maximum(edges[:-1, None], left)
    return overlap.clamp_min(0.0) * cells / pixels


@lru_cache(maxsize=16)
def _interpolation(cells: int, pixels: int) -> Tensor:
    """Returns (pixels, cells): the DCT of the cells, evaluated at the centres of the pixels."""
    return (
        dct.cosine_matrix(pixels)[:cells].T @ dct.cosine_matrix(cells) * math.sqrt(pixels / cells)
    )
