"""The map for points such as the half circle: projection onto a public disc."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsink.data.maps.balls import project_l2
from fedsink.data.maps.base import SLACK, Map, Norm, check_norm, check_radius, is_whole
from fedsink.errors import ConfigError


@dataclass(frozen=True)
class PointBall(Map):
    """f(x) = x·min(1, r/‖x‖₂): the identity on the disc of radius r, Δ₂ = 2r, Δ₁ = 2r√d.

    For the half circle of radius 1 that is 2 in L2 and 2√2 in L1 for any rotation; the paper
    uses √2 and 2, a quarter circle's (mathematics §3, correction 5).

    Attributes:
        norm: the norm of the mechanism's guarantee; the projection is the same for both.
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
        """Check the options."""
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
        """Return points (N, d) inside the ball; coordinates that are not finite become 0."""
        # Beyond the ball the exact length no longer matters; the clamp keeps its square finite.
        far = 1e100 * self.radius
        points = torch.nan_to_num(images.to(torch.float64), 0.0, 0.0, 0.0).clamp(-far, far)
        return project_l2(points, self.radius).to(images.dtype)

    def render(self, coordinates: Tensor) -> Tensor:
        """Return the points themselves."""
        return coordinates
