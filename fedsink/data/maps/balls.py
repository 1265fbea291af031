"""The maps of Reshetova et al. (2024): bounded pixels, and records projected onto a ball."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsink.data import dct
from fedsink.data.maps.map import (
    SLACK,
    ImageMap,
    Map,
    Norm,
    check_norm,
    check_radius,
    is_whole,
    planes,
    sanitised,
)
from fedsink.errors import ConfigError


@dataclass(frozen=True)
class PixelRange(ImageMap):
    """f(x) = 2x − 1 in [−1, 1]^d: Δ₁ = 2d, Δ₂ = 2√d (no projection).

    MNIST with Laplace noise σ = 3 costs ε = 2·784/3 = 522.7 this way; the paper's "ε = 97" is a
    slip (mathematics §3, correction 4).

    Guarantees: see `Map`.
    """

    name: ClassVar[str] = "pixel_range"
    norm: Norm = "l1"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_norm(self.norm, self.name)

    @property
    def sensitivity(self) -> float:
        """Diameter of the cube: 2d in L1, 2√d in L2."""
        d = self.dimension
        return 2.0 * (d if self.norm == "l1" else math.sqrt(d)) * SLACK

    def __call__(self, images: Tensor) -> Tensor:
        """Returns (N, d)."""
        return _centred(images).to(images.dtype)

    def render(self, coordinates: Tensor) -> Tensor:
        """Returns (f + 1)/2, clamped to [0, 1]."""
        return _pictures(coordinates, self.shape)


@dataclass(frozen=True)
class _Ball(ImageMap):
    """A map of images into a ball.

    Attributes:
        radius: r, in units of the norm of the coordinates.
    """

    radius: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_radius(self.radius, self.name)

    @property
    def sensitivity(self) -> float:
        """Diameter 2r of the ball."""
        return 2.0 * self.radius * SLACK


@dataclass(frozen=True)
class L1Ball(_Ball):
    """f(x) = Euclidean projection of DCT(2x − 1) onto {‖v‖₁ ≤ r}: Δ₁ = 2r.

    The projection is soft thresholding at the level θ that brings the norm to r (Duchi et al.
    2008): v ↦ sign(v)·max(|v| − θ, 0). The paper's MNIST row is r = 140, ε = 35, σ = 2r/ε = 8.

    Attributes:
        dct: project orthonormal DCT coefficients (sparse, so little is lost) or raw pixels.

    Guarantees: see `Map`.
    """

    name: ClassVar[str] = "l1_ball"
    dct: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dct:
            dct.check_size(math.prod(self.shape[1:]), *self.shape[1:])

    @property
    def norm(self) -> Norm:
        """Norm of the guarantee, L1."""
        return "l1"

    def _basis(self, coordinates: Tensor) -> Tensor:
        _, height, width = self.shape
        band = dct.block(height, width, max(height, width))
        return dct.basis(height, width, band, torch.float64, coordinates.device)

    def __call__(self, images: Tensor) -> Tensor:
        """Returns (N, d), channel by channel."""
        vectors = _centred(images)
        if self.dct:
            vectors = (planes(vectors, self.shape[0]) @ self._basis(images).T).flatten(1)
        return project_l1(vectors, self.radius).to(images.dtype)

    def render(self, coordinates: Tensor) -> Tensor:
        """Returns the inverse transform, (· + 1)/2, clamped to [0, 1]."""
        if not self.dct:
            return _pictures(coordinates, self.shape)
        pixels = self._from_band(coordinates, self._basis(coordinates))
        return _pictures(pixels, self.shape).to(coordinates.dtype)


@dataclass(frozen=True)
class L2Ball(_Ball):
    """f(x) = v·min(1, r/‖v‖₂), v = 2x − 1: Δ₂ = 2r.

    The paper's MNIST rows are r = 20, Δ₂ = 40, δ = 1e-4: the analytic Gaussian mechanism then
    has σ = 9.17 at ε = 25 (mathematics §3, correction 3).

    Guarantees: see `Map`.
    """

    name: ClassVar[str] = "l2_ball"

    @property
    def norm(self) -> Norm:
        """Norm of the guarantee, L2."""
        return "l2"

    def __call__(self, images: Tensor) -> Tensor:
        """Returns (N, d)."""
        return project_l2(_centred(images), self.radius).to(images.dtype)

    def render(self, coordinates: Tensor) -> Tensor:
        """Returns (v + 1)/2 with v = f/max|f|: the scale is lost, and most images reach ±1."""
        largest = coordinates.abs().amax(dim=1, keepdim=True).clamp_min(1e-12)
        return _pictures(coordinates / largest, self.shape)


@dataclass(frozen=True)
class PointBall(Map):
    """f(x) = x·min(1, r/‖x‖₂) of points: the identity on the disc of radius r, Δ₂ = 2r, Δ₁ = 2r√d.

    For the half circle of radius 1 that is 2 in L2 and 2√2 in L1 for any rotation; the paper
    uses √2 and 2, a quarter circle's (mathematics §3, correction 5).

    Attributes:
        norm: norm of the mechanism's guarantee; the projection is the same for both.
        radius: r, public.
        size: dimension d of a point.

    Guarantees: see `Map`.

    Raises:
        ConfigError: for a bad norm, radius or dimension.
    """

    name: ClassVar[str] = "point_ball"
    norm: Norm = "l1"
    radius: float = 1.0
    size: int = 2

    def __post_init__(self) -> None:
        check_norm(self.norm, self.name)
        check_radius(self.radius, self.name)
        if not is_whole(self.size) or self.size < 1:
            raise ConfigError(f"the map {self.name} needs a positive size, got {self.size}.")

    @property
    def record_shape(self) -> tuple[int, ...]:
        """(d,)."""
        return (self.size,)

    @property
    def dimension(self) -> int:
        """Dimension d of a point."""
        return self.size

    @property
    def sensitivity(self) -> float:
        """Diameter of the ball: 2r in L2, 2r√d in L1."""
        return 2.0 * self.radius * (math.sqrt(self.size) if self.norm == "l1" else 1.0) * SLACK

    def __call__(self, images: Tensor) -> Tensor:
        """Returns points (N, d) inside the ball; coordinates that are not finite become 0."""
        # Beyond the ball the exact length no longer matters; the clamp keeps its square finite.
        far = 1e100 * self.radius
        points = torch.nan_to_num(images.to(torch.float64), 0.0, 0.0, 0.0).clamp(-far, far)
        return project_l2(points, self.radius).to(images.dtype)

    def render(self, coordinates: Tensor) -> Tensor:
        """Returns the points themselves."""
        return coordinates


def project_l1(vectors: Tensor, radius: float) -> Tensor:
    """Returns the Euclidean projection of each row (N, D) onto the L1 ball of that radius.

    Duchi, Shalev-Shwartz, Singer, Chandra (2008), Figure 1: θ = (Σ_{i≤ρ} u_i − r)/ρ for the
    sorted magnitudes u and the largest ρ with u_ρ > θ.
    """
    magnitude = vectors.abs()
    ordered = magnitude.sort(dim=1, descending=True).values
    counts = torch.arange(1, vectors.shape[1] + 1, dtype=vectors.dtype, device=vectors.device)
    thresholds = (ordered.cumsum(dim=1) - radius) / counts
    last = (ordered > thresholds).sum(dim=1, keepdim=True).clamp_min(1) - 1
    theta = thresholds.gather(1, last).clamp_min(0.0)  # θ < 0 inside the ball: nothing to project
    projected = vectors.sign() * (magnitude - theta).clamp_min(0.0)
    # θ cancels where r is far below the entries: the bound must not rest on it.
    length = projected.abs().sum(dim=1, keepdim=True)
    return projected / (length / (radius * (1.0 + 2.0**-30))).clamp_min(1.0)


def project_l2(vectors: Tensor, radius: float) -> Tensor:
    """Returns each row (N, D), scaled back onto the sphere of that radius where it is outside."""
    length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors * (radius / length.clamp_min(radius))


def _centred(images: Tensor) -> Tensor:
    return 2.0 * sanitised(images).flatten(1) - 1.0


def _pictures(coordinates: Tensor, shape: tuple[int, ...]) -> Tensor:
    return ((coordinates + 1.0) / 2.0).clamp(0.0, 1.0).reshape(-1, *shape)
