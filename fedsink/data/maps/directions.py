"""Maps that release only the direction of a low-pass picture (recipes A1): ours.

Brightness and contrast are thrown away, which buys a diameter of 2 or √2 without any radius to
choose, whatever the number of pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

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
    is_whole,
    planes,
    sanitised,
)
from fedsink.errors import ConfigError


@dataclass(frozen=True)
class DctDirection(Map):
    """f(x) = v/‖v‖, v the block×block low-frequency DCT of x without the mean brightness.

    The default for the Laplace mechanism: with norm="l1" every f(x) lies on the unit L1 sphere
    and Δ₁ = 2 (with norm="l2", Δ₂ = 2). A constant image ↦ 0. Channels are normalised jointly.

    Attributes:
        shape: (channels, height, width).
        block: the block×block lowest frequencies are kept, without (0, 0).
        norm: norm of the division and of the guarantee.
        background: for `render` alone, the public fraction of a picture's pixels to draw black,
            since the mean brightness is not released.

    Guarantees: see `Map`.

    Raises:
        ConfigError: for a bad shape, norm, or a block outside 2 … min(height, width).
    """

    name: ClassVar[str] = "dct_direction"
    shape: tuple[int, ...]
    block: int
    norm: Norm = "l1"
    background: float = 0.25

    def __post_init__(self) -> None:
        """Check the options."""
        object.__setattr__(self, "shape", image_shape(self.shape, self.name))
        check_norm(self.norm, self.name)
        check_block(self.block, 2, self.shape, self.name)
        if not 0 <= self.background < 1:
            raise ConfigError(
                f"the map {self.name} needs a background in [0, 1), got {self.background}."
            )

    @property
    def record_shape(self) -> tuple[int, ...]:
        """(channels, height, width)."""
        return self.shape

    @property
    def dimension(self) -> int:
        """D = channels · (block² − 1)."""
        return int(self.shape[0] * (self.block**2 - 1))

    @property
    def sensitivity(self) -> float:
        """Two unit vectors are at most 2 apart."""
        return 2.0 * SLACK

    def _basis(self, coordinates: Tensor) -> Tensor:
        _, height, width = self.shape
        band = dct.block(height, width, self.block, dc=False)
        return dct.basis(height, width, band, torch.float64, coordinates.device)

    def __call__(self, images: Tensor) -> Tensor:
        """Return (N, channels·(block² − 1))."""
        bands = (sanitised(images).flatten(2) @ self._basis(images).T).flatten(1)
        return direction(bands, self.norm).to(images.dtype)

    def render(self, coordinates: Tensor) -> Tensor:
        """Return the released band as a picture: background at 0, brightest pixel at 1.

        A black level that gives the rendered pictures the mean brightness of real ones served
        classifiers best; MNIST is darker (0.65) than scikit-learn's digits (0.25).
        """
        bands = planes(coordinates.to(torch.float64), self.shape[0])
        pixels = (bands @ self._basis(coordinates)).flatten(1)
        black = pixels.quantile(self.background, dim=1, keepdim=True)
        pixels = (pixels - black).clamp_min(0.0)
        return brightest_at_one(pixels).reshape(-1, *self.shape).to(coordinates.dtype)


@dataclass(frozen=True)
class NonNegativeDirection(Map):
    """f(x) = low-pass DCT of p/‖p‖₂, p ≥ 0 the image average-pooled by `pool`.

    The default for the Gaussian mechanism. Two vectors without negative entries meet at an angle
    of at most 90°, so unit ones are at most √2 apart, and dropping coefficients of a rotation
    cannot enlarge that: Δ₂ = √2. The clamp at 0 comes after all resampling. A black image ↦ 0.
    Channels are normalised jointly.

    Attributes:
        shape: (channels, height, width).
        pool: side of the averaged squares; it must divide height and width.
        block: the block×block lowest frequencies of the pooled image are kept, with the mean.

    Guarantees: see `Map`.

    Raises:
        ConfigError: for a bad shape, a pool that does not divide it, or a bad block.
    """

    name: ClassVar[str] = "non_negative_direction"
    shape: tuple[int, ...]
    pool: int
    block: int

    def __post_init__(self) -> None:
        """Check the options."""
        object.__setattr__(self, "shape", image_shape(self.shape, self.name))
        _, height, width = self.shape
        pool = self.pool
        if not is_whole(pool) or pool < 1 or height % pool or width % pool:
            raise ConfigError(
                f"the map {self.name} needs a pool that divides {height}×{width}, got {self.pool}."
            )
        largest = min(height, width) // self.pool
        if not is_whole(self.block) or not 1 <= self.block <= largest:
            raise ConfigError(
                f"the map {self.name} needs a block from 1 to {largest} after pooling by "
                f"{self.pool}, got {self.block}."
            )

    @property
    def norm(self) -> Norm:
        """The guarantee is in L2 only."""
        return "l2"

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
        """Diameter of the non-negative part of the unit ball."""
        return math.sqrt(2.0) * SLACK

    def _basis(self, coordinates: Tensor) -> Tensor:
        height, width = self.shape[1] // self.pool, self.shape[2] // self.pool
        band = dct.block(height, width, self.block)
        return dct.basis(height, width, band, torch.float64, coordinates.device)

    def __call__(self, images: Tensor) -> Tensor:
        """Return (N, channels·block²)."""
        pooled = avg_pool2d(sanitised(images), self.pool).clamp_min(0.0)
        unit = planes(direction(pooled.flatten(1), "l2"), self.shape[0])
        return (unit @ self._basis(images).T).flatten(1).to(images.dtype)

    def render(self, coordinates: Tensor) -> Tensor:
        """Return the released band as a picture: negatives at 0, brightest pixel at 1.

        The cosines are evaluated at full resolution. That is the band-limited interpolation of
        the pooled picture, and served classifiers better than a bilinear one.
        """
        _, height, width = self.shape
        full = dct.basis(
            height, width, dct.block(height, width, self.block), torch.float64, coordinates.device
        )
        bands = planes(coordinates.to(torch.float64), self.shape[0])
        pixels = (bands @ full).clamp_min(0.0).flatten(1)
        return brightest_at_one(pixels).reshape(-1, *self.shape).to(coordinates.dtype)
