"""Central mode: generated images go out, clipped and noised gradients come back.

One message may ask for several rounds of the plan, each with its own rows; plan, objective, view,
run and division of the noise are the same for all of them. The arrays of a message have the rounds
as their leading dimension, and so has the gradient of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor

from fedsink.errors import ConfigError, ReleaseRefusedError
from fedsink.privacy import domain
from fedsink.privacy.clips import ClipOfRecords
from fedsink.privacy.integer_gaussian import FixedPoint
from fedsink.privacy.plan import CentralPlan, plan_from_dict
from fedsink.protocol.packing import Packed
from fedsink.protocol.requests import (
    CentralRequest,
    Packable,
    check_rows,
    is_float32,
    run_name,
    table,
)
from fedsink.transport.backends import NATIVE, by_backend
from fedsink.transport.costs import GroundCost, cost_named
from fedsink.transport.problem import Solver
from fedsink.transport.solvers import solver_named
from fedsink.values import checks

if TYPE_CHECKING:
    from flwr.app import RecordDict

MOST_ROUNDS = 2_000  # of one message; each costs time before any of them can be refused

_SHARED = ("plan", "objective", "view", "run", "share", "fixed_point")  # by all rounds of a message
_STACKED = ("rows", "row_labels", "potentials", "self_gradient")  # an array for each round


_DOMAIN = {
    "lam": domain.REGULARISATION,
    "m": domain.COST_WEIGHT,
    "label_weight": domain.LABEL_WEIGHT,
}


@dataclass(frozen=True)
class Objective:
    """The transport problem whose gradient is asked for (public, fixed for a run).

    Every error of a transport problem must show when this is made, as a ConfigError or a
    PrivacyError: one that shows only once there are records to solve it for would tell that a
    private batch was not empty.
    """

    lam: float  # λ, entropic regularisation in cost units
    classes: int
    m: float = 0.0  # weight of the L1 term in c_m(x, y) = ‖x−y‖₂² + m‖x−y‖₁
    # α_c, scale of the one-hot label appended to every point when a round mixes classes.
    label_weight: float = 15.0
    solver: str = "converged"  # or "annealed": the published schedule
    cost: str = "mixed"  # c_m; "l1": ‖x−y‖₁ alone (an ablation of Cao et al. 2021, Table 2)
    # "native", or the library "geomloss" or "keops", whose work and errors depend on the points in
    # ways unknown here: only simulated nodes use one.
    backend: str = NATIVE

    def __post_init__(self) -> None:
        for name, interval in _DOMAIN.items():
            check = checks.positive if name == "lam" else checks.number
            object.__setattr__(self, name, check(f"strategy.{name}", getattr(self, name)))
            interval.check(getattr(self, name))
        object.__setattr__(self, "classes", checks.count("The number of classes", self.classes))
        checks.choice("strategy.cost", self.cost, "mixed", "l1")
        _ = self.transport  # refuses solver and backend

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
        """Refuses a library where clients solve no transport problem, or one of fixed work."""
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
        """Refuses a backend that is not this package, for a real node."""
        if self.backend != NATIVE:
            raise ReleaseRefusedError(
                f"The request wants backend={self.backend}, and a real node solves its problems "
                "only by native: libraries are for simulations and for the server's own problems."
            )

    def diameter(self, radius: float, *, labels: bool) -> float:
        """Returns the largest distance of two points in a ball, with labels or without."""
        # One-hot labels α_c·e_k are at most √2·α_c apart.
        return math.hypot(2.0 * radius, math.sqrt(2.0) * self.label_weight if labels else 0.0)

    @property
    def is_quadratic(self) -> bool:
        """True if c(x, y) = ‖x−y‖₂²."""
        return self.cost == "mixed" and self.m == 0.0


@dataclass(frozen=True, kw_only=True)
class GradientRequest(CentralRequest):
    """Asks one client for one round of the mechanism; see also `CentralRequest`."""

    name = "dp_sinkhorn"

    label: int | None  # type: ignore[misc]  # None: the round mixes classes
    objective: Objective
    view: dict[str, Any]  # public linear coordinates the gradient lives in, as `View.to_dict()`
    rows: Tensor  # X, generated points in these coordinates, (n, D)
    row_labels: Tensor  # (n,) int64
    # f, the rows' dual potentials for clip=record, (n,).
    potentials: Tensor = field(default_factory=lambda: torch.zeros(0))
    # The data-independent part of the gradient for clip=batch, (n, D).
    self_gradient: Tensor = field(default_factory=lambda: torch.zeros(0, 0))

    @property
    def reply_shape(self) -> tuple[int, ...]:
        return tuple(self.rows.shape)

    def parts(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Returns the fields and arrays of a message with only this round."""
        return _Rounds.of([self]).parts()

    @classmethod
    def from_record(cls, record: RecordDict) -> GradientRequest:
        """Reads and checks a message with one round; any other is a ValueError."""
        requests = unpack_requests(record)
        if len(requests) != 1:
            raise ValueError(
                f"Expected a message with one round, received one with {len(requests)}."
            )
        return requests[0]

    def check(self) -> None:
        """Refuses a request whose parts do not fit together: a ValueError names the part."""
        super().check()
        clip = ClipOfRecords.expect(self.plan.clip)
        check_rows(self.rows, self.row_labels, self.objective.classes)
        self.objective.check_plan(self.plan)
        n = len(self.rows)
        if clip.per_record and not (
            self.potentials.shape == (n,) and is_float32(self.potentials, domain.POTENTIALS)
        ):
            raise ValueError(
                f"Per-record clipping needs {n} potentials, float32 and within "
                f"±{domain.POTENTIALS.high:.4g}."
            )
        if not clip.per_record and not (
            self.self_gradient.shape == self.rows.shape
            and is_float32(self.self_gradient, domain.GRADIENTS)
        ):
            raise ValueError(
                "Per-batch clipping needs a finite float32 self gradient of the rows' shape, "
                f"within ±{domain.GRADIENTS.high:.4g}."
            )


def _round_numbers(values: Any) -> list[int]:
    if len(values) > MOST_ROUNDS:
        raise ValueError(f"A message asks for at most {MOST_ROUNDS} rounds, not {len(values)}.")
    return [int(number) for number in values]


def _classes(values: Any) -> list[int | None]:
    return [None if label is None else int(label) for label in values]


@dataclass(frozen=True)
class _Rounds(Packable):
    """The rounds that one message asks for, side by side: rounds, labels and stacked arrays."""

    kind = "gradient request"

    rounds: Annotated[list[int], _round_numbers]
    labels: Annotated[list[int | None], _classes]
    plan: Annotated[CentralPlan, plan_from_dict]
    objective: Annotated[Objective, Objective.from_dict]
    view: Annotated[dict[str, Any], table]
    run: Annotated[str, run_name]
    share: int
    fixed_point: Annotated[FixedPoint | None, FixedPoint.from_dict]
    rows: Tensor
    row_labels: Tensor
    potentials: Tensor
    self_gradient: Tensor

    @classmethod
    def of(cls, requests: Sequence[GradientRequest]) -> _Rounds:
        """Lays the requests of one message side by side; raises like `packed_requests`."""
        if not requests:
            raise ValueError("A message must ask for at least one round.")
        shared = [{name: getattr(request, name) for name in _SHARED} for request in requests]
        if any(others != shared[0] for others in shared):
            raise ValueError(
                "The rounds of one message share plan, objective, view and run, and the noise "
                "with as many clients."
            )
        stacked: dict[str, Any] = {
            name: torch.stack([getattr(request, name).detach() for request in requests])
            for name in _STACKED
        }
        return cls(
            rounds=[request.round for request in requests],
            labels=[request.label for request in requests],
            **shared[0],
            **stacked,
        )

    def requests(self) -> list[GradientRequest]:
        """Returns one request for each round; raises ValueError where lengths disagree."""
        if (
            not self.rounds
            or sorted(set(self.rounds)) != self.rounds
            or len(self.labels) != len(self.rounds)
        ):
            raise ValueError("A message needs rounds that increase, with a label each.")
        for name in _STACKED:
            array = getattr(self, name)
            if array.ndim < 1 or len(array) != len(self.rounds):
                raise ValueError(
                    f"The message asks for {len(self.rounds)} rounds, but its {name} do not."
                )
        shared = {name: getattr(self, name) for name in _SHARED}
        return [
            GradientRequest(
                round=number,
                label=label,
                **shared,
                **{name: getattr(self, name)[place] for name in _STACKED},
            )
            for place, (number, label) in enumerate(zip(self.rounds, self.labels, strict=True))
        ]


def packed_requests(requests: Sequence[GradientRequest]) -> Packed:
    """Returns the content of a message that asks for these rounds, ordered by round.

    A ValueError: there are none, or they differ in what a message says once.
    """
    return _Rounds.of(requests).packed()


def unpack_requests(record: RecordDict) -> list[GradientRequest]:
    """Reads and checks the rounds that a message asks for; what does not fit is a ValueError."""
    return checked(_Rounds.from_record(record).requests())


def checked(requests: list[GradientRequest]) -> list[GradientRequest]:
    """Returns the requests once `GradientRequest.check` has passed each; raises its ValueError."""
    for request in requests:
        request.check()
    return requests
