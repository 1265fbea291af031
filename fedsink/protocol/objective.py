"""The transport problem of the central mode, in public terms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedsink.errors import ConfigError, ReleaseRefusedError
from fedsink.privacy import domain
from fedsink.privacy.plan import CentralPlan
from fedsink.transport.backends import NATIVE, by_backend
from fedsink.transport.costs import GroundCost, cost_named
from fedsink.transport.problem import Solver
from fedsink.transport.solvers import solver_named

_DOMAIN = {
    "lam": domain.REGULARISATION,
    "m": domain.COST_WEIGHT,
    "label_weight": domain.LABEL_WEIGHT,
}


@dataclass(frozen=True)
class Objective:
    """The transport problem whose gradient is asked for (public, fixed for a run).

    Attributes:
        lam: λ, entropic regularisation in cost units.
        m: weight of the L1 term in c_m(x, y) = ‖x−y‖₂² + m‖x−y‖₁.
        label_weight: α_c, the scale of the one-hot label appended to every point when a
            round mixes classes (`label=None` in the request).
        classes: number of public classes.
        solver: "converged", or "annealed" for the published schedule.
        cost: "mixed" for c_m, or "l1" for only ‖x−y‖₁ (an ablation of Cao et al. 2021, Table 2;
            m is not read then).
        backend: the solver: "native", or the library "geomloss" or "keops". A library's work and
            errors depend on the points in ways unknown here, so only simulated nodes use one.

    Raises:
        ConfigError, PrivacyError: a value out of range or outside the public domain
            (`fedsink.privacy.domain`). Every error of a transport problem must show here: one
            that shows only once there are records to solve it for would tell that a private
            batch was not empty.
    """

    lam: float
    classes: int
    m: float = 0.0
    label_weight: float = 15.0
    solver: str = "converged"
    cost: str = "mixed"
    backend: str = NATIVE

    def __post_init__(self) -> None:
        for name in _DOMAIN:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"strategy.{name} must be a number, not {value!r}.")
            try:
                object.__setattr__(self, name, float(value))
            except OverflowError:  # an int of JSON may have any number of digits
                raise ConfigError(f"strategy.{name} is beyond the range of floats.") from None
        if not 0.0 < self.lam < math.inf:
            raise ConfigError(f"strategy.lam must be a positive number, not {self.lam}.")
        if not 0.0 <= self.label_weight < math.inf:
            raise ConfigError(
                f"strategy.label_weight must be a finite number ≥ 0, not {self.label_weight}."
            )
        if isinstance(self.classes, bool) or not isinstance(self.classes, int) or self.classes < 1:
            raise ConfigError(f"The number of classes must be at least 1, not {self.classes!r}.")
        if self.cost not in ("mixed", "l1"):
            raise ConfigError(f"strategy.cost is mixed or l1, not {self.cost!r}.")
        cost_named("mixed", self.m)
        _ = self.transport  # refuses solver and backend
        for name, interval in _DOMAIN.items():
            interval.check(getattr(self, name))

    def to_dict(self) -> dict[str, Any]:
        """Returns the problem as JSON-able values; `from_dict` inverts it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Objective:
        """Reads what `to_dict` wrote; raises TypeError for a missing or unknown entry."""
        return cls(**values)

    @property
    def ground_cost(self) -> GroundCost:
        """c(x, y), with its gradient."""
        return cost_named(self.cost, self.m)

    @property
    def transport(self) -> tuple[GroundCost, Solver]:
        """Cost and solver of the backend."""
        return by_backend(self.backend, self.ground_cost, solver_named(self.solver))

    def check_plan(self, plan: CentralPlan) -> None:
        """Refuses a library where clients solve no transport problem, or one of fixed work.

        Raises:
            ConfigError: names the option that leaves the library nothing to do.
        """
        if self.backend == NATIVE:
            return
        if plan.clip.per_record:
            raise ConfigError(
                f"strategy.backend={self.backend} belongs to clip=batch: clip=record solves no "
                "problem with records in it, and native gives the potentials of generated points "
                "faster."
            )
        if plan.capacity is not None:
            raise ConfigError(
                f"strategy.backend={self.backend} has no fixed work: its time depends on the "
                f"records, which capacity= is there to hide: leave one of them out."
            )

    def refuse_library(self) -> None:
        """Refuses a backend that is not this package, for a real node.

        Raises:
            ReleaseRefusedError: a library is named.
        """
        if self.backend != NATIVE:
            raise ReleaseRefusedError(
                f"The request wants backend={self.backend}, and a real node solves its problems "
                "only by native: libraries are for simulations and for the server's own problems."
            )

    def diameter(self, radius: float, *, labels: bool) -> float:
        """The largest distance of two points in a ball of this radius, with labels or without."""
        # One-hot labels α_c·e_k are at most √2·α_c apart.
        return math.hypot(2.0 * radius, math.sqrt(2.0) * self.label_weight if labels else 0.0)

    @property
    def is_quadratic(self) -> bool:
        """True if c(x, y) = ‖x−y‖₂²."""
        return self.cost == "mixed" and self.m == 0.0
