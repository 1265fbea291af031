"""One transport problem as every backend takes it: points, weights, cost, schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from fedsink.transport.costs import Cost
from fedsink.transport.solvers.annealed import bounding_diameter


@dataclass(frozen=True)
class AnnealedProblem:
    """W_{c,λ}(Σ a_i δ_{x_i}, Σ b_j δ_{y_j}) by the schedule of `annealed`.

    Attributes:
        x: points that receive the gradient, (n, d).
        y: points of the other measure, (m, d).
        cost: c.
        lam: λ > 0, in units of cost; the schedule's last value.
        scaling: ratio of the schedule's successive values, in (0, 1).
        log_a: log-weights (n,) of x, −∞ for padding; uniform if None.
        log_b: log-weights (m,) of y, likewise.
    """

    x: Tensor
    y: Tensor
    cost: Cost
    lam: float
    scaling: float = 0.5
    log_a: Tensor | None = None
    log_b: Tensor | None = None

    @property
    def diameter(self) -> float:
        """The schedule's first value, `bounding_diameter` of the points."""
        return float(bounding_diameter(self.x, self.y, self.log_a, self.log_b))

    @property
    def log_weights(self) -> tuple[Tensor, Tensor]:
        """Finite log-weights of both measures, (n,) and (m,)."""
        return _finite(self.x, self.log_a), _finite(self.y, self.log_b)


def _finite(points: Tensor, given: Tensor | None) -> Tensor:
    if given is None:
        return points.new_full((len(points),), -math.log(len(points)))
    # −∞ would become NaN in KeOps' running maximum; this is as good as −∞ in either type.
    return given.detach().to(points).clamp(min=-1e18)
