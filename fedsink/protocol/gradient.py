"""Central mode: generated images go out, a clipped and noised gradient comes back."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from flwr.app import RecordDict
from torch import Tensor

from fedsink.errors import ConfigError
from fedsink.privacy import PrivacyPlan
from fedsink.protocol.records import pack, unpack
from fedsink.transport import Mixed, solver_named


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

    Raises:
        ConfigError: a value out of range. Whatever is wrong with a transport problem must show
            here: an error that only shows once there are records to solve it for would tell
            that a private batch was not empty.
    """

    lam: float
    classes: int
    m: float = 0.0
    label_weight: float = 15.0
    solver: str = "converged"

    def __post_init__(self) -> None:
        for name in ("lam", "label_weight"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"objective.{name} must be a number, not {value!r}.")
        if not 0.0 < self.lam < math.inf:
            raise ConfigError(f"λ must be a positive finite number, not {self.lam}.")
        if not 0.0 <= self.label_weight < math.inf:
            raise ConfigError(
                f"The label weight must be a finite number ≥ 0, not {self.label_weight}."
            )
        if isinstance(self.classes, bool) or not isinstance(self.classes, int) or self.classes < 1:
            raise ConfigError(f"The number of classes must be at least 1, not {self.classes!r}.")
        Mixed(self.m)
        solver_named(self.solver)


@dataclass(frozen=True)
class GradientRequest:
    """One round's request to one client.

    Attributes:
        round: the round's number, from 1.
        label: the class of this round's rows and records; None when the round mixes classes.
        plan: sampler, clip, noise and their accounting.
        objective: the transport problem.
        view: public linear coordinates the gradient lives in, as `View.to_dict()`.
        rows: X, generated points in these coordinates, (n, D).
        row_labels: (n,) int64.
        potentials: f, the rows' dual potentials for `clip=record`, (n,).
        self_gradient: the data-independent part of the gradient for `clip=batch`, (n, D).
    """

    round: int
    label: int | None
    plan: PrivacyPlan
    objective: Objective
    view: dict[str, Any]
    rows: Tensor
    row_labels: Tensor
    potentials: Tensor = field(default_factory=lambda: torch.zeros(0))
    self_gradient: Tensor = field(default_factory=lambda: torch.zeros(0, 0))

    def to_record(self) -> RecordDict:
        """The request as a Flower record."""
        fields = {
            "round": self.round,
            "label": self.label,
            "plan": self.plan.to_dict(),
            "objective": asdict(self.objective),
            "view": self.view,
        }
        arrays = {
            "rows": self.rows,
            "row_labels": self.row_labels,
            "potentials": self.potentials,
            "self_gradient": self.self_gradient,
        }
        return pack(fields, {name: array.detach() for name, array in arrays.items()})

    @classmethod
    def from_record(cls, record: RecordDict) -> GradientRequest:
        """Read and check a request.

        Raises:
            ValueError: a field is missing, or shapes and types do not fit together.
        """
        fields, arrays = unpack(record)
        try:
            request = cls(
                round=int(fields["round"]),
                label=None if fields["label"] is None else int(fields["label"]),
                plan=PrivacyPlan.from_dict(fields["plan"]),
                objective=Objective(**fields["objective"]),
                view=dict(fields["view"]),
                **{
                    name: arrays[name]
                    for name in ("rows", "row_labels", "potentials", "self_gradient")
                },
            )
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"Malformed gradient request: {error}.") from error
        request._check()
        return request

    def _check(self) -> None:
        if self.round < 1 or self.round > self.plan.rounds:
            raise ValueError(f"Round {self.round} is not in the plan's 1..{self.plan.rounds}.")
        if self.rows.ndim != 2 or not len(self.rows) or not _is_finite_float32(self.rows):
            raise ValueError(
                f"Rows must be a finite n×D float32 matrix, not {tuple(self.rows.shape)} of "
                f"{self.rows.dtype}."
            )
        n, classes = len(self.rows), self.objective.classes
        if self.row_labels.shape != (n,) or self.row_labels.dtype != torch.int64:
            raise ValueError(f"Row labels must be {n} integers.")
        if not bool(((self.row_labels >= 0) & (self.row_labels < classes)).all()):
            raise ValueError(f"Row labels must be below the {classes} classes.")
        if self.plan.clip.name == "record" and self.potentials.shape != (n,):
            raise ValueError(f"Per-record clipping needs {n} potentials.")
        if self.plan.clip.name == "batch" and (
            self.self_gradient.shape != self.rows.shape
            or not _is_finite_float32(self.self_gradient)
        ):
            raise ValueError(
                "Per-batch clipping needs a finite float32 self gradient of the rows' shape."
            )


@dataclass(frozen=True)
class GradientReply:
    """The noised gradient, (n, D) float32, and nothing else that depends on private data."""

    gradient: Tensor

    def to_record(self) -> RecordDict:
        """The reply as a Flower record."""
        return pack({}, {"gradient": self.gradient})

    @classmethod
    def from_record(cls, record: RecordDict) -> GradientReply:
        """Read a reply.

        Raises:
            ValueError: it holds no gradient.
        """
        arrays = unpack(record)[1]
        if "gradient" not in arrays:
            raise ValueError("Malformed gradient reply: it holds no gradient.")
        return cls(arrays["gradient"])


def _is_finite_float32(values: Tensor) -> bool:
    return values.dtype == torch.float32 and bool(values.isfinite().all())
