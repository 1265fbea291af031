"""Views: public linear coordinates in which central mode compares images, clips and adds noise.

A view is fixed before any record is seen, so it costs no privacy. Fewer coordinates mean less
noise in all: the noise has the same strength in each of them.

>>> view = view_from_dict({"name": "dct", "shape": [1, 8, 8], "radius": 6})
>>> view(torch.zeros(5, 1, 8, 8)).shape  # 33 of 64 frequencies are below the radius
torch.Size([5, 33])
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedsink.data import dct
from fedsink.errors import ConfigError
from fedsink.registry import Registry
from fedsink.values import as_float, checks

# Points have no natural range; this one is public, and far beyond any point set in use.
POINT_LIMIT = 128.0
_ROOM = 1.0 + 2.0**-10  # for the rounding of coordinates, which are float32


@dataclass(frozen=True)
class View(ABC):
    """A fixed linear map from records of one shape to coordinates; hashable."""

    name: ClassVar[str]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))  # it is a list in JSON

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Number of coordinates D."""

    @property
    @abstractmethod
    def norm_bound(self) -> float:
        """Public bound on a record's L2 norm in this view, with room for rounding in float32.

        It holds for images in [0, 1] and for points whose coordinates are at most `POINT_LIMIT`.
        """

    @abstractmethod
    def __call__(self, images: Tensor) -> Tensor:
        """Maps images (N, C, H, W) in [0, 1], or points (N, d), to (N, D); differentiable."""

    def each(self, images: Tensor) -> Tensor:
        """Maps records as a call does; no record moves a bit of another one's coordinates.

        To be overridden where a batch would change a record's rounding.
        """
        return self(images)

    def to_dict(self) -> dict[str, Any]:
        """Returns name and options; `view_from_dict` inverts it, also after a trip through JSON."""
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True)
class PixelView(View):
    """Pixels 2x − 1 in [−1, 1], flattened; points are passed on as they are."""

    name: ClassVar[str] = "pixel"

    @property
    def dimension(self) -> int:
        return math.prod(self.shape)

    @property
    def norm_bound(self) -> float:
        largest = POINT_LIMIT if len(self.shape) == 1 else 1.0
        return _ROOM * largest * math.sqrt(self.dimension)

    def __call__(self, images: Tensor) -> Tensor:
        return images if len(self.shape) == 1 else 2.0 * images.flatten(1) - 1.0


@dataclass(frozen=True)
class DctView(View):
    """Low-pass orthonormal DCT coefficients of 2x − 1, per channel.

    Kept are the frequencies with √(i² + j²) < radius (strictly): 166 of 784 at radius 14 of
    28×28, 33 of 64 at radius 6 of 8×8. `dc=False` drops the mean brightness as well, which
    gives the recipes' count of 165.

    Attributes:
        shape: (channels, height, width).
        radius: cut-off in cycles of the cosine index, not in pixels.
        frequency_weight: r₀ or None; the coefficient at radius r is multiplied by
            √(1 + (r/r₀)²), and all weights are scaled to unit mean square.
        dc: keep the coefficient (0, 0).

    Raises:
        ConfigError: for a shape that is not an image, a radius that keeps nothing, or r₀ outside
            2⁻²⁰ to 2²⁰.
    """

    name: ClassVar[str] = "dct"
    radius: float
    frequency_weight: float | None = None
    dc: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("view.radius", self.radius)
        if len(self.shape) != 3:
            raise ConfigError(
                f"the DCT view needs images (channels, height, width), got shape {self.shape}; "
                f"use the pixel view."
            )
        if not self.band:
            raise ConfigError(
                f"the DCT view keeps no coefficient at radius {self.radius} (dc={self.dc}); use "
                f"a larger radius."
            )
        weight = self.frequency_weight
        if weight is not None and not 2.0**-20 <= as_float(weight) <= 2.0**20:
            raise ConfigError(
                f"view.frequency_weight must be from 1e-6 to 1e6 or empty, got {weight}."
            )

    @property
    def band(self) -> dct.Band:
        """Frequencies that every channel keeps."""
        return dct.disc(self.shape[1], self.shape[2], self.radius, self.dc)

    @property
    def dimension(self) -> int:
        return self.shape[0] * len(self.band)

    @property
    def norm_bound(self) -> float:
        """Bound √(C·H·W), as an orthonormal basis keeps norms, times the largest weight."""
        weights = _frequency_weights(self)
        largest = 1.0 if weights is None else float(weights.amax())
        return _ROOM * largest * math.sqrt(math.prod(self.shape))

    def __call__(self, images: Tensor) -> Tensor:
        matrix = _weighted_basis(self, images.dtype, images.device)
        return ((2.0 * images.flatten(2) - 1.0) @ matrix.T).flatten(1)

    def each(self, images: Tensor) -> Tensor:
        # A product for each record: a larger one rounds by its number of rows.
        basis = _weighted_basis(self, images.dtype, images.device).T
        return torch.bmm(2.0 * images.flatten(2) - 1.0, basis.expand(len(images), -1, -1)).flatten(
            1
        )


@lru_cache(maxsize=16)
def _weighted_basis(view: DctView, dtype: torch.dtype, device: torch.device) -> Tensor:
    matrix = dct.basis(view.shape[1], view.shape[2], view.band)
    weights = _frequency_weights(view)
    if weights is not None:
        matrix = matrix * weights.unsqueeze(1)
    return matrix.to(dtype=dtype, device=device)


def _frequency_weights(view: DctView) -> Tensor | None:
    """Returns the factor of each coefficient of a channel, (K,) float64, None for ones."""
    if view.frequency_weight is None:
        return None
    radii = torch.tensor([math.hypot(i, j) for i, j in view.band], dtype=torch.float64)
    weights = torch.sqrt(1.0 + (radii / view.frequency_weight) ** 2)
    return weights / weights.square().mean().sqrt()


VIEWS: Registry[type[View]] = Registry("view.name", {cls.name: cls for cls in (PixelView, DctView)})


def view_from_dict(options: Mapping[str, Any]) -> View:
    """Returns the view that `to_dict` described.

    Raises:
        ConfigError: for an unknown name, an unknown or missing option, or a bad value.
    """
    view: View = VIEWS.from_dict(options)
    return view
