"""The maps of Reshetova et al. (2024): bounded pixels, and pixels or DCT projected onto a ball."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsink.data import dct
from fedsink.data.maps.base import (
    SLACK,
    Map,
    Norm,
    check_norm,
    check_radius,
    image_shape,
    planes,
    sanitised,
)


@dataclass(frozen=True)
class PixelRange(Map):
    """f(x) = 2x − 1 in [−1, 1]^d: Δ₁ = 2d, Δ₂ = 2√d (no projection).

    MNIST with Laplace noise σ = 3 costs ε = 2·784/3 = 522.7 this way; the paper's "ε = 97" is a
    slip (mathematics §3, correction 4).

    Guarantees: see `Map`.

    Raises:
        ConfigError: for a bad shape or norm.
    """

    name: ClassVar[str] = "pixel_range"
    shape: tuple[int, ...]
    norm: Norm = "l1"

    def __post_init__(self) -> None:
        """Check the options."""
        object.__setattr__(self, "shape", image_shape(self.shape, self.name))
        check_norm(self.norm, self.name)

    @property
    def record_shape(self) -> tuple[int, ...]:
        """(channels, height, width)."""
        return self.shape

    @property
    def dimension(self) -> int:
        """Number of pixels times channels, d."""
        return math.prod(self.shape)

    @property
    def sensitivity(self) -> float:
        """Diameter of the cube: 2d in L1, 2√d in L2."""
        d = self.dimension
        return 2.0 * (d if self.norm == "l1" else math.sqrt(d)) * SLACK

    def __call__(self, images: Tensor) -> Tensor:
        """Return (N, d)."""
        return _centred(images).to(images.dtype)

    def render(self, coordinates: Tensor) -> Tensor:
        """Return (f + 1)/2, clamped to [0, 1]."""
        return _pictures(coordinates, self.shape)


@dataclass(frozen=True)
class L1Ball(Map):
    """f(x) = Euclidean projection of DCT(2x − 1) onto {‖v‖₁ ≤ r}: Δ₁ = 2r.

    The projection is soft thresholding at the level θ that brings the norm to r (Duchi et al.
    2008): v ↦ sign(v)·max(|v| − θ, 0). The paper's MNIST row is r = 140, ε = 35, σ = 2r/ε = 8.

    Attributes:
        shape: (channels, height, width).
        radius: r, in units of the L1 norm of the coefficients of 2x − 1.
        dct: project orthonormal DCT coefficients (sparse, so little is lost) or raw pixels.

    Guarantees: see `Map`.

    Raises:
        ConfigError: for a bad shape or radius.
    """

    name: ClassVar[str] = "l1_ball"
    shape: tuple[int, ...]
    radius: float
    dct: bool = True

    def __post_init__(self) -> None:
        """Check the options."""
        object.__setattr__(self, "shape", image_shape(self.shape, self.name))
        check_radius(self.radius, self.name)

    @property
    def norm(self) -> Norm:
        """The guarantee is in L1."""
        return "l1"

    @property
    def record_shape(self) -> tuple[int, ...]:
        """(channels, height, width)."""
        return self.shape

    @property
    def dimension(self) -> int:
        """Number of pixels times channels, d."""
        return math.prod(self.shape)

    @property
    def sensitivity(self) -> float:
        """Diameter 2r of the ball."""
        return 2.0 * self.radius * SLACK

    def _basis(self, coordinates: Tensor) -> Tensor:
        _, height, width = self.shape
        band = dct.block(height, width, max(height, width))
        return dct.basis(height, width, band, torch.float64, coordinates.device)

    def __call__(self, images: Tensor) -> Tensor:
        """Return (N, d), channel by channel."""
        vectors = _centred(images)
        if self.dct:
            vectors = (planes(vectors, self.shape[0]) @ self._basis(images).T).flatten(1)
        return project_l1(vectors, self.radius).to(images.dtype)

    def render(self, coordinates: Tensor) -> Tensor:
        """Return the inverse transform, (· + 1)/2, clamped to [0, 1]."""
        if not self.dct:
            return _pictures(coordinates, self.shape)
        bands = planes(coordinates.to(torch.float64), self.shape[0])
        pixels = (bands @ self._basis(coordinates)).flatten(1)
        return _pictures(pixels, self.shape).to(coordinates.dtype)


@dataclass(frozen=True)
class L2Ball(Map):
    """f(x) = v·min(1, r/‖v‖₂), v = 2x − 1: Δ₂ = 2r.

    The paper's MNIST rows are r = 20, Δ₂ = 40, δ = 1e-4: the analytic Gaussian mechanism then
    has σ = 9.17 at ε = 25 (mathematics §3, correction 3).

    Guarantees: see `Map`.

    Raises:
        ConfigError: for a bad shape or radius.
    """

    name: ClassVar[str] = "l2_ball"
    shape: tuple[int, ...]
    radius: float

    def __post_init__(self) -> None:
        """Check the options."""
        object.__setattr__(self, "shape", image_shape(self.shape, self.name))
        check_radius(self.radius, self.name)

    @property
    def norm(self) -> Norm:
        """The guarantee is in L2."""
        return "l2"

    @property
    def record_shape(self) -> tuple[int, ...]:
        """(channels, height, width)."""
        return self.shape

    @property
    def dimension(self) -> int:
        """Number of pixels times channels, d."""
        return math.prod(self.shape)

    @property
    def sensitivity(self) -> float:
        """Diameter 2r of the ball."""
        return 2.0 * self.radius * SLACK

    def __call__(self, images: Tensor) -> Tensor:
        """Return (N, d)."""
        return project_l2(_centred(images), self.radius).to(images.dtype)

    def render(self, coordinates: Tensor) -> Tensor:
        """Return (v + 1)/2 with v = f/max|f|: the scale is lost, and most images reach ±1."""
        largest = coordinates.abs().amax(dim=1, keepdim=True).clamp_min(1e-12)
        return _pictures(coordinates / largest, self.shape)


def project_l1(vectors: Tensor, radius: float) -> Tensor:
    """Return the Euclidean projection of each row (N, D) onto the L1 ball of that radius.

    Duchi, Shalev-Shwartz, Singer, Chandra (2008), Figure 1: θ = (Σ_{i≤ρ} u_i − r)/ρ for the
    sorted magnitudes u and the largest ρ with u_ρ > θ.
    """
    magnitude = vectors.abs()
    ordered = magnitude.sort(dim=1, descending=True).values
    counts = torch.arange(1, vectors.shape[1] + 1, dtype=vectors.dtype, device=vectors.device)
    thresholds = (ordered.cumsum(dim=1) - radius) / counts
    last = (ordered > thresholds).sum(dim=1, keepdim=True).clamp_min(1) - 1
    theta = thresholds.gather(1, last).clamp_min(0.0)
    return vectors.sign() * (magnitude - theta).clamp_min(0.0)


def project_l2(vectors: Tensor, radius: float) -> Tensor:
    """Return each row (N, D), scaled back onto the sphere of that radius where it is outside."""
    length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors * (radius / length.clamp_min(radius))


def _centred(images: Tensor) -> Tensor:
    return 2.0 * sanitised(images).flatten(1) - 1.0


def _pictures(coordinates: Tensor, shape: tuple[int, ...]) -> Tensor:
    return ((coordinates + 1.0) / 2.0).clamp(0.0, 1.0).reshape(-1, *shape)
