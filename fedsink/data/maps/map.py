"""The interface of the maps f of local mode, and their common parts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedsink.data import dct
from fedsink.data.spec import check_sizes
from fedsink.errors import ConfigError

Norm = Literal["l1", "l2"]

SLACK = 1.0 + 2.0**-20
"""Factor on every diameter: maps compute in float64 and round to float32 once, which moves a
coordinate by at most 2⁻²⁴ of itself. Sixteen float32 roundings cover that with room to spare."""

SMALLEST_RADIUS, LARGEST_RADIUS = 2.0**-40, 2.0**40

_FLOOR = 1e-6
"""Vectors shorter than this are scaled by 1/_FLOOR instead of by their norm: f is continuous at
zero, zero stays zero, and the gradient stays finite."""

_DARK = 1e-12


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

    @property
    def record_shape(self) -> tuple[int, ...]:
        """(channels, height, width)."""
        return self.shape

    @property
    def dimension(self) -> int:
        """Number of pixels times channels, d."""
        return math.prod(self.shape)

    def _check_block(self, block: int, smallest: int, largest: int, suffix: str = "") -> None:
        if not is_whole(block) or not smallest <= block <= largest:
            raise ConfigError(
                f"the map {self.name} needs a block from {smallest} to {largest}{suffix}, got "
                f"{block}."
            )
        dct.check_size(block**2, *self.shape[1:])

    def _from_band(self, coordinates: Tensor, basis: Tensor) -> Tensor:
        """Returns float64 pixels (N, C·H·W) of DCT coefficients (N, C·K) for the K basis rows."""
        return (planes(coordinates.to(torch.float64), self.shape[0]) @ basis).flatten(1)


def sanitised(images: Tensor) -> Tensor:
    """Returns float64 images with pixels that are not finite at 0 and the others in [0, 1]."""
    return torch.nan_to_num(images.to(torch.float64), 0.0, 0.0, 0.0).clamp(0.0, 1.0)


def direction(vectors: Tensor, norm: Norm) -> Tensor:
    """Returns vectors / ‖vectors‖ per row (N, D); a row shorter than 1e-6 is scaled by 1e6."""
    length = torch.linalg.vector_norm(vectors, ord=1 if norm == "l1" else 2, dim=1, keepdim=True)
    return vectors / length.clamp_min(_FLOOR)


def planes(vectors: Tensor, channels: int) -> Tensor:
    """Returns (N, C·K) as (N, C, K); unlike reshape(N, C, -1) also for no rows at all."""
    return vectors.reshape(len(vectors), channels, vectors.shape[1] // channels)


def brightest_at_one(pixels: Tensor) -> Tensor:
    """Returns pixels (N, C·H·W) over their brightest; without one above 1e-12 all stay dark."""
    return pixels / pixels.amax(dim=1, keepdim=True).clamp_min(_DARK)


def is_whole(value: object) -> bool:
    """Returns whether an option, which in JSON may be anything, is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_norm(norm: str, name: str) -> None:
    """Refuses anything but "l1" and "l2"."""
    if norm not in ("l1", "l2"):
        raise ConfigError(f"the map {name} needs norm 'l1' or 'l2', got {norm!r}.")


def check_radius(radius: float, name: str) -> None:
    """Refuses a radius outside [2⁻⁴⁰, 2⁴⁰], for which the maps' arithmetic is made."""
    if isinstance(radius, bool) or not SMALLEST_RADIUS <= radius <= LARGEST_RADIUS:
        raise ConfigError(
            f"the map {name} needs a radius from {SMALLEST_RADIUS:.0e} to {LARGEST_RADIUS:.0e}, "
            f"got {radius}."
        )
