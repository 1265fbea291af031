"""Data-independent maps f with a known sensitivity, applied before the noise of local mode.

The directions are ours: they drop a picture's contrast, and `DctDirection` its
brightness too. This buys a diameter of 2 or √2 whatever the number of pixels, without any radius to
choose. The bounded pixels and the balls are those of Reshetova et al. (2024).

>>> f = map_from_dict({"name": "dct_direction", "shape": [1, 28, 28], "block": 7})
>>> f.dimension, f.norm, round(f.sensitivity, 3)
(48, 'l1', 2.0)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from fedsink.data import dct
from fedsink.data.spec import check_sizes
from fedsink.errors import ConfigError
from fedsink.registry import Registry

Norm = Literal["l1", "l2"]

SLACK = 1.0 + 2.0**-20
"""Factor on every diameter: maps compute in float64 and round to float32 once, which moves a
coordinate by at most 2⁻²⁴ of itself. Sixteen float32 roundings cover that with room to spare."""

SMALLEST_RADIUS, LARGEST_RADIUS = 2.0**-40, 2.0**40
_FLOOR = 1e-6
"""Vectors shorter than this are scaled by 1/_FLOOR instead of by their norm: f is continuous at
zero, zero stays zero, and the gradient stays finite."""
_LARGEST_POWER = 2.0**20  # where only the brightest cell is left
_DIM = 1e-6  # a picture without a brighter cell than this fades to the zero vector


class Map(ABC):
    """A public function f from records to R^D with a known diameter; noise is added to f.

    The server applies the same f to the generator's images inside the loss, so f is
    differentiable almost everywhere.

    Guarantees:
        - For any two inputs x, x', also hostile ones (NaN, infinite, huge, denormal, out of
          range), ‖f(x) − f(x')‖ in the norm `norm` is at most `sensitivity`
          (test_guarantee_sensitivity_bounds_any_two_records).
        - `sensitivity` depends only on the options, never on data
          (test_guarantee_sensitivity_is_public).
        - f treats each record by itself: f of several records is f of each of them
          (test_guarantee_records_do_not_mix).
        - f is always finite (test_guarantee_output_is_finite).
    """

    name: ClassVar[str]

    @property
    @abstractmethod
    def record_shape(self) -> tuple[int, ...]:
        """Shape of the records that f takes; the sensitivity holds for no other."""

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Number of coordinates D."""

    @property
    @abstractmethod
    def norm(self) -> Norm:
        """Norm of the guarantee and of the mechanism: "l1" Laplace, "l2" Gaussian."""

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """Diameter sup ‖f(x) − f(x')‖ in the norm `norm`, with a slack of ulps."""

    @abstractmethod
    def __call__(self, images: Tensor) -> Tensor:
        """Returns f of images (N, C, H, W) in [0, 1] or points (N, d): (N, D), same dtype."""

    @abstractmethod
    def render(self, coordinates: Tensor) -> Tensor:
        """Returns pictures (N, C, H, W) in [0, 1], or points, that show coordinates (N, D)."""

    def to_dict(self) -> dict[str, Any]:
        """Returns name and options; `map_from_dict` inverts it, also after a trip through JSON."""
        return {"name": self.name, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class ImageMap(Map):
    """A map of images of one shape.

    Attributes:
        shape: (channels, height, width).

    Raises:
        ConfigError: for another kind of shape, or an option out of its range.
    """

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        """Turns a list, as it comes from JSON, into a tuple and checks it."""
        shape = tuple(int(s) for s in self.shape)
        if len(shape) != 3 or min(shape) < 1:
            raise ConfigError(
                f"the map {self.name} needs images of shape (channels, height, width), got {shape}."
            )
        check_sizes(shape, 1)
        object.__setattr__(self, "shape", shape)
        _check_norm(self.norm, self.name)

    @property
    def record_shape(self) -> tuple[int, ...]:
        return self.shape

    @property
    def dimension(self) -> int:
        return math.prod(self.shape)

    def _check_block(self, block: int, smallest: int, largest: int, suffix: str = "") -> None:
        if type(block) is not int or not smallest <= block <= largest:
            raise ConfigError(
                f"the map {self.name} needs a block from {smallest} to {largest}{suffix}, got "
                f"{block}."
            )
        dct.check_size(block**2, *self.shape[1:])

    def _basis(self, block: int, device: torch.device, *, dc: bool = True, pool: int = 1) -> Tensor:
        """Returns the block×block lowest frequencies of the planes, (K, pixels) float64."""
        height, width = (side // pool for side in self.shape[1:])
        return dct.basis(height, width, dct.block(height, width, block, dc), torch.float64, device)

    def _from_band(self, coordinates: Tensor, basis: Tensor) -> Tensor:
        """Returns float64 pixels (N, C·H·W) of DCT coefficients (N, C·K) for the K basis rows."""
        return (_planes(coordinates.to(torch.float64), self.shape[0]) @ basis).flatten(1)


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
        self._check_block(self.block, 2, min(self.shape[1:]))
        if not 0 <= self.background < 1:
            raise ConfigError(
                f"the map {self.name} needs a background in [0, 1), got {self.background}."
            )

    @property
    def dimension(self) -> int:
        return int(self.shape[0] * (self.block**2 - 1))

    @property
    def sensitivity(self) -> float:
        """Largest distance of two unit vectors, 2."""
        return 2.0 * SLACK

    def __call__(self, images: Tensor) -> Tensor:
        basis = self._basis(self.block, images.device, dc=False)
        bands = (_sanitised(images).flatten(2) @ basis.T).flatten(1)
        return _direction(bands, self.norm).to(images.dtype)

    def render(self, coordinates: Tensor) -> Tensor:
        """Returns the released band as a picture: background at 0, brightest pixel at 1.

        A black level that gives the rendered pictures the mean brightness of real ones served
        classifiers best; MNIST is darker (0.65) than scikit-learn's digits (0.25).
        """
        basis = self._basis(self.block, coordinates.device, dc=False)
        pixels = self._from_band(coordinates, basis)
        if len(pixels) == 0:
            return pixels.reshape(-1, *self.shape).to(coordinates.dtype)
        black = pixels.quantile(self.background, dim=1, keepdim=True)
        pixels = (pixels - black).clamp_min(0.0)
        return _brightest_at_one(pixels).reshape(-1, *self.shape).to(coordinates.dtype)


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
    norm: ClassVar[Norm] = "l2"
    pool: int
    block: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _, height, width = self.shape
        pool = self.pool
        if type(pool) is not int or pool < 1 or height % pool or width % pool:
            raise ConfigError(
                f"the map {self.name} needs a pool that divides {height}×{width}, got {self.pool}."
            )
        self._check_block(
            self.block, 1, min(height, width) // pool, f" after pooling by {self.pool}"
        )

    @property
    def dimension(self) -> int:
        return int(self.shape[0] * self.block**2)

    @property
    def sensitivity(self) -> float:
        """Diameter of the non-negative part of the unit ball."""
        return math.sqrt(2.0) * SLACK

    def __call__(self, images: Tensor) -> Tensor:
        basis = self._basis(self.block, images.device, pool=self.pool)
        pooled = avg_pool2d(_sanitised(images), self.pool).clamp_min(0.0)
        unit = _planes(_direction(pooled.flatten(1), "l2"), self.shape[0])
        return (unit @ basis.T).flatten(1).to(images.dtype)

    def render(self, coordinates: Tensor) -> Tensor:
        """Returns the released band as a picture: negatives at 0, brightest pixel at 1.

        The cosines are evaluated at full resolution. That is the band-limited interpolation of
        the pooled picture, and served classifiers better than a bilinear one.
        """
        basis = self._basis(self.block, coordinates.device)
        pixels = self._from_band(coordinates, basis).clamp_min(0.0)
        return _brightest_at_one(pixels).reshape(-1, *self.shape).to(coordinates.dtype)


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
        block: cells along each side; they may cut pixels, which count by their fraction of area.
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
        return int(self.shape[0] * self.block**2)

    @property
    def sensitivity(self) -> float:
        """Diameter of the non-negative part of the unit sphere: 2 in L1, √2 in L2."""
        return (2.0 if self.norm == "l1" else math.sqrt(2.0)) * SLACK

    def __call__(self, images: Tensor) -> Tensor:
        down, across = (_areas(self.block, side).to(images.device) for side in self.shape[1:])
        cells = (down @ _sanitised(images) @ across.T).flatten(1)
        # f does not depend on the scale of p, so neither does its gradient.
        largest = cells.detach().amax(dim=1, keepdim=True).clamp_min(_DIM)
        return _direction((cells / largest) ** self.power, self.norm).to(images.dtype)

    def render(self, coordinates: Tensor) -> Tensor:
        """Returns p = f^(1/γ), interpolated to full size, between the black and the white level.

        The cosines of p interpolate. Levels between 0 and 1 make up for the blur of coarse cells:
        a classifier trained on the pictures should know sharp ones.
        """
        device = coordinates.device
        down, across = (_interpolation(self.block, side).to(device) for side in self.shape[1:])
        cells = _planes(coordinates.to(torch.float64).clamp_min(0.0), self.shape[0])
        cells = cells.unflatten(2, (self.block, self.block)) ** (1.0 / self.power)
        pixels = _brightest_at_one((down @ cells @ across.T).flatten(1))
        pixels = ((pixels - self.black) / (self.white - self.black)).clamp(0.0, 1.0)
        return pixels.reshape(-1, *self.shape).to(coordinates.dtype)


@dataclass(frozen=True)
class PixelRange(ImageMap):
    """f(x) = 2x − 1 in [−1, 1]^d: Δ₁ = 2d, Δ₂ = 2√d (no projection).

    MNIST with Laplace noise σ = 3 costs ε = 2·784/3 = 522.7 this way; the paper's "ε = 97" is a
    slip (mathematics §3, correction 4).

    Guarantees: see `Map`.
    """

    name: ClassVar[str] = "pixel_range"
    norm: Norm = "l1"

    @property
    def sensitivity(self) -> float:
        """Diameter of the cube: 2d in L1, 2√d in L2."""
        d = self.dimension
        return 2.0 * (d if self.norm == "l1" else math.sqrt(d)) * SLACK

    def __call__(self, images: Tensor) -> Tensor:
        return _centred(images).to(images.dtype)

    def render(self, coordinates: Tensor) -> Tensor:
        return _pictures(coordinates, self.shape)


@dataclass(frozen=True)
class _Ball(ImageMap):
    """A map of images into a ball of `radius` r, in units of the norm of the coordinates."""

    radius: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_radius(self.radius, self.name)

    @property
    def sensitivity(self) -> float:
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
    norm: ClassVar[Norm] = "l1"
    dct: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dct:
            dct.check_size(math.prod(self.shape[1:]), *self.shape[1:])

    def __call__(self, images: Tensor) -> Tensor:
        vectors = _centred(images)
        if self.dct:
            basis = self._basis(max(self.shape[1:]), images.device)
            vectors = (_planes(vectors, self.shape[0]) @ basis.T).flatten(1)
        return project_l1(vectors, self.radius).to(images.dtype)

    def render(self, coordinates: Tensor) -> Tensor:
        if not self.dct:
            return _pictures(coordinates, self.shape)
        basis = self._basis(max(self.shape[1:]), coordinates.device)
        pixels = self._from_band(coordinates, basis)
        return _pictures(pixels, self.shape).to(coordinates.dtype)


@dataclass(frozen=True)
class L2Ball(_Ball):
    """f(x) = v·min(1, r/‖v‖₂), v = 2x − 1: Δ₂ = 2r.

    The paper's MNIST rows are r = 20, Δ₂ = 40, δ = 1e-4: the analytic Gaussian mechanism then
    has σ = 9.17 at ε = 25 (mathematics §3, correction 3).

    Guarantees: see `Map`.
    """

    name: ClassVar[str] = "l2_ball"
    norm: ClassVar[Norm] = "l2"

    def __call__(self, images: Tensor) -> Tensor:
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
        _check_norm(self.norm, self.name)
        _check_radius(self.radius, self.name)
        if type(self.size) is not int or self.size < 1:
            raise ConfigError(f"the map {self.name} needs a positive size, got {self.size}.")

    @property
    def record_shape(self) -> tuple[int, ...]:
        return (self.size,)

    @property
    def dimension(self) -> int:
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
        return coordinates


_MAPS: tuple[type[Map], ...] = (
    *(DctDirection, NonNegativeDirection, PooledPower),
    *(PixelRange, L1Ball, L2Ball, PointBall),
)
MAPS: Registry[type[Map]] = Registry("map.name", {cls.name: cls for cls in _MAPS})


def map_from_dict(options: Mapping[str, Any]) -> Map:
    """Returns the map that `Map.to_dict` described.

    Raises:
        ConfigError: for an unknown name, an unknown or missing option, or a bad value.
    """
    f: Map = MAPS.from_dict(options)
    return f


def _sanitised(images: Tensor) -> Tensor:
    """Returns float64 images with pixels that are not finite at 0 and the others in [0, 1]."""
    return torch.nan_to_num(images.to(torch.float64), 0.0, 0.0, 0.0).clamp(0.0, 1.0)


def _direction(vectors: Tensor, norm: Norm) -> Tensor:
    """Vectors / ‖vectors‖ per row (N, D); a row shorter than 1e-6 is scaled by 1e6."""
    length = torch.linalg.vector_norm(vectors, ord=1 if norm == "l1" else 2, dim=1, keepdim=True)
    return vectors / length.clamp_min(_FLOOR)


def _planes(vectors: Tensor, channels: int) -> Tensor:
    """Returns (N, C·K) as (N, C, K); unlike reshape(N, C, -1) also for no rows at all."""
    return vectors.reshape(len(vectors), channels, vectors.shape[1] // channels)


def _brightest_at_one(pixels: Tensor) -> Tensor:
    """Pixels (N, C·H·W) over their brightest; without one above 1e-12 all stay dark."""
    return pixels / pixels.amax(dim=1, keepdim=True).clamp_min(1e-12)


def _check_norm(norm: str, name: str) -> None:
    if norm not in ("l1", "l2"):
        raise ConfigError(f"the map {name} needs norm 'l1' or 'l2', got {norm!r}.")


def _check_radius(radius: float, name: str) -> None:
    """Refuses a radius for which the maps' arithmetic is not made."""
    if isinstance(radius, bool) or not SMALLEST_RADIUS <= radius <= LARGEST_RADIUS:
        raise ConfigError(
            f"the map {name} needs a radius from {SMALLEST_RADIUS:.0e} to {LARGEST_RADIUS:.0e}, "
            f"got {radius}."
        )


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


def project_l1(vectors: Tensor, radius: float) -> Tensor:
    """Projects each row (N, D) onto the L1 ball of that radius.

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
    length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors * (radius / length.clamp_min(radius))


def _centred(images: Tensor) -> Tensor:
    return 2.0 * _sanitised(images).flatten(1) - 1.0


def _pictures(coordinates: Tensor, shape: tuple[int, ...]) -> Tensor:
    return ((coordinates + 1.0) / 2.0).clamp(0.0, 1.0).reshape(-1, *shape)
