"""What every map f of local mode promises."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedsink.errors import ConfigError

Norm = Literal["l1", "l2"]

SLACK = 1.0 + 2.0**-20
"""Factor on every diameter: maps compute in float64 and round to float32 once, which moves a
coordinate by at most 2⁻²⁴ of itself. Sixteen float32 roundings cover that with room to spare."""

_FLOOR = 1e-6
"""Vectors shorter than this are scaled by 1/_FLOOR instead of by their norm: f is continuous at
zero, zero stays zero, and the gradient stays finite."""

_DARK = 1e-12


class Map(ABC):
    """A public function f from records to R^D with a known diameter; it is f that is noised.

    The server applies the same f to the generator's images inside the loss, so f is
    differentiable almost everywhere.

    Guarantees:
        - For any two inputs x, x', also hostile ones (NaN, infinite, huge, denormal, out of
          range), ‖f(x) − f(x')‖ in the norm `norm` is at most `sensitivity`
          (test_guarantee_sensitivity_bounds_any_two_records).
        - `sensitivity` depends on the options alone, never on data
          (test_guarantee_sensitivity_is_public).
        - f treats each record alone: f of a batch is f of its rows
          (test_guarantee_records_do_not_mix).
        - f is always finite (test_guarantee_output_is_finite).
    """

    name: ClassVar[str]

    @property
    @abstractmethod
    def record_shape(self) -> tuple[int, ...]:
        """Shape of the records it is for; the sensitivity holds for no other."""

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Number of coordinates D."""

    @property
    @abstractmethod
    def norm(self) -> Norm:
        """The norm of the guarantee, and of the mechanism: "l1" Laplace, "l2" Gaussian."""

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """The diameter sup ‖f(x) − f(x')‖ in the norm `norm`, with a slack of ulps."""

    @abstractmethod
    def __call__(self, images: Tensor) -> Tensor:
        """Return f of images (N, C, H, W) in [0, 1] or points (N, d): (N, D), same dtype."""

    @abstractmethod
    def render(self, coordinates: Tensor) -> Tensor:
        """Return pictures (N, C, H, W) in [0, 1], or points, that show coordinates (N, D)."""

    def to_dict(self) -> dict[str, Any]:
        """Return name and options; `map_from_dict` inverts it, also after a trip through JSON."""
        return {"name": self.name, **asdict(self)}  # type: ignore[call-overload]


def sanitised(images: Tensor) -> Tensor:
    """Return float64 images with pixels that are not finite at 0 and the others in [0, 1]."""
    return torch.nan_to_num(images.to(torch.float64), 0.0, 0.0, 0.0).clamp(0.0, 1.0)


def direction(vectors: Tensor, norm: Norm) -> Tensor:
    """Return vectors / ‖vectors‖ per row (N, D); a row shorter than 1e-6 is scaled by 1e6."""
    length = torch.linalg.vector_norm(vectors, ord=1 if norm == "l1" else 2, dim=1, keepdim=True)
    return vectors / length.clamp_min(_FLOOR)


def planes(vectors: Tensor, channels: int) -> Tensor:
    """Return (N, C·K) as (N, C, K); unlike reshape(N, C, -1) also for no rows at all."""
    return vectors.reshape(len(vectors), channels, vectors.shape[1] // channels)


def brightest_at_one(pixels: Tensor) -> Tensor:
    """Return pixels (N, C·H·W) over their brightest; without one above 1e-12 all stay dark."""
    return pixels / pixels.amax(dim=1, keepdim=True).clamp_min(_DARK)


def image_shape(shape: tuple[int, ...], name: str) -> tuple[int, ...]:
    """Return `shape` as a tuple of (channels, height, width), or refuse it."""
    shape = tuple(int(s) for s in shape)
    if len(shape) != 3 or min(shape) < 1:
        raise ConfigError(
            f"the map {name} needs images of shape (channels, height, width), got {shape}."
        )
    return shape


def is_whole(value: object) -> bool:
    """Whether an option is a whole number; in JSON it may be anything."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_norm(norm: str, name: str) -> None:
    """Refuse anything but "l1" and "l2"."""
    if norm not in ("l1", "l2"):
        raise ConfigError(f"the map {name} needs norm 'l1' or 'l2', got {norm!r}.")


def check_block(block: int, smallest: int, shape: tuple[int, ...], name: str) -> None:
    """Refuse a block that is smaller than `smallest` or larger than the shorter side."""
    if not is_whole(block) or not smallest <= block <= min(shape[1:]):
        raise ConfigError(
            f"the map {name} needs a block from {smallest} to {min(shape[1:])}, got {block}."
        )


def check_radius(radius: float, name: str) -> None:
    """Refuse a radius that is not positive and finite."""
    if isinstance(radius, bool) or not 0 < radius < math.inf:
        raise ConfigError(f"the map {name} needs a positive, finite radius, got {radius}.")
