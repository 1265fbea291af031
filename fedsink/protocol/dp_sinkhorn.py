"""Central mode: generated images go out, clipped and noised gradients come back.

One message (``train.dp_sinkhorn``) may ask for several uses of the mechanism, each a round of the
plan with its own rows; they share plan, objective, view, run and share of the noise. The arrays of
a message have the uses as their leading dimension, and so has the gradient of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import torch
from torch import Tensor

from fedsink.privacy import domain
from fedsink.privacy.clips import ClipOfRecords
from fedsink.privacy.integer_gaussian import FixedPoint
from fedsink.privacy.plan import CentralPlan, plan_from_dict
from fedsink.protocol.objective import Objective
from fedsink.protocol.packing import Packed, pack, unpack
from fedsink.protocol.requests import (
    UNNAMED,
    CentralRequest,
    Packable,
    check_rows,
    is_float32,
    run_name,
    table,
)

if TYPE_CHECKING:
    from flwr.app import RecordDict

MOST_USES = 2_000  # of one message; each costs time before any of them can be refused

_T = TypeVar("_T")
_STACKED = ("rows", "row_labels", "potentials", "self_gradient")  # an array for each use


@dataclass(frozen=True)
class GradientRequest(CentralRequest):
    """Asks one client for one use of the mechanism.

    Attributes:
        round, plan, share, fixed_point: see `CentralRequest`.
        label: the class of this round's rows and records; None when the round mixes classes.
        objective: the transport problem.
        view: public linear coordinates the gradient lives in, as `View.to_dict()`.
        rows: X, generated points in these coordinates, (n, D).
        row_labels: (n,) int64.
        potentials: f, the rows' dual potentials for `clip=record`, (n,).
        self_gradient: the data-independent part of the gradient for `clip=batch`, (n, D).
        run: public name of the run that asks; a node's ledger keeps runs apart by it.
    """

    round: int
    label: int | None
    plan: CentralPlan
    objective: Objective
    view: dict[str, Any]
    rows: Tensor
    row_labels: Tensor
    potentials: Tensor = field(default_factory=lambda: torch.zeros(0))
    self_gradient: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    run: str = UNNAMED
    share: int = 1
    fixed_point: FixedPoint | None = None

    def parts(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Returns the fields and arrays of a message with only this use."""
        return _Uses.of([self]).parts()

    @classmethod
    def from_record(cls, record: RecordDict) -> GradientRequest:
        """Reads and checks a message with one use.

        Raises:
            ValueError: it is malformed, or holds another number of uses.
        """
        return _only(unpack_requests(record))

    def check(self) -> None:
        """Refuses a request whose parts do not fit together.

        Raises:
            ValueError: names the part that does not fit.
        """
        self.check_use()
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


def _common(request: GradientRequest) -> tuple[Any, ...]:
    """Returns the parts that all uses of one message have in common."""
    noise = request.share, request.fixed_point
    return request.plan, request.objective, request.view, request.run, *noise


def _round_numbers(values: Any) -> list[int]:
    if len(values) > MOST_USES:
        raise ValueError(f"A message asks for at most {MOST_USES} uses, not {len(values)}.")
    return [int(number) for number in values]


def _classes(values: Any) -> list[int | None]:
    return [None if label is None else int(label) for label in values]


@dataclass(frozen=True)
class _Uses(Packable):
    """The uses that one message asks for, side by side: rounds, labels and stacked arrays."""

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
    def of(cls, requests: Sequence[GradientRequest]) -> _Uses:
        """Lays the requests of one message side by side; raises like `packed_requests`."""
        if not requests:
            raise ValueError("A message must ask for at least one use.")
        first = requests[0]
        for other in requests[1:]:
            if _common(other) != _common(first):
                raise ValueError(
                    "The uses of one message share plan, objective, view and run, and the noise "
                    "with as many clients."
                )
        return cls(
            [request.round for request in requests],
            [request.label for request in requests],
            first.plan,
            first.objective,
            first.view,
            first.run,
            first.share,
            first.fixed_point,
            *(
                torch.stack([getattr(request, name).detach() for request in requests])
                for name in _STACKED
            ),
        )

    def requests(self) -> list[GradientRequest]:
        """Returns one request for each use; raises ValueError where lengths disagree."""
        if (
            not self.rounds
            or sorted(set(self.rounds)) != self.rounds
            or len(self.labels) != len(self.rounds)
        ):
            raise ValueError("A message needs rounds that increase, with a label each.")
        stacked = [getattr(self, name) for name in _STACKED]
        for name, array in zip(_STACKED, stacked, strict=True):
            if array.ndim < 1 or len(array) != len(self.rounds):
                raise ValueError(
                    f"The message asks for {len(self.rounds)} uses, but its {name} do not."
                )
        return [
            GradientRequest(
                number, label, self.plan, self.objective, self.view, x, row_labels, f, own,
                self.run, self.share, self.fixed_point,
            )
            for number, label, x, row_labels, f, own in zip(
                self.rounds, self.labels, *stacked, strict=True
            )
        ]  # fmt: skip


def packed_requests(requests: Sequence[GradientRequest]) -> Packed:
    """Returns the fields and arrays of a message that asks for these uses, ordered by round.

    Raises:
        ValueError: there are none, or they differ in plan, objective, view, run or share.
    """
    return _Uses.of(requests).packed()


def unpack_requests(record: RecordDict) -> list[GradientRequest]:
    """Reads and checks the uses that a message asks for.

    Raises:
        ValueError: a field is missing, shapes and types do not fit together, or the rounds do
            not increase.
    """
    return checked(_Uses.from_record(record).requests())


def checked(requests: list[GradientRequest]) -> list[GradientRequest]:
    """Returns the requests once `GradientRequest.check` has passed each; raises its ValueError."""
    for request in requests:
        request.check()
    return requests


@dataclass(frozen=True)
class GradientReply:
    """The noised gradient, (n, D) float32, and nothing else that depends on private data."""

    gradient: Tensor

    def to_record(self) -> RecordDict:
        """Returns the answer to a message with one use."""
        return pack_replies([self])

    @classmethod
    def from_record(cls, record: RecordDict) -> GradientReply:
        """Reads an answer to a message with one use.

        Raises:
            ValueError: it holds no gradient, or those of several uses.
        """
        return _only(unpack_replies(record))


def pack_replies(replies: Sequence[GradientReply]) -> RecordDict:
    """Returns one answer with a gradient per use, in the order of the message."""
    return pack({}, {"gradient": torch.stack([reply.gradient for reply in replies])})


def unpack_replies(record: RecordDict) -> list[GradientReply]:
    """Reads the gradients of an answer.

    Raises:
        ValueError: it holds no gradient, or more than any message asks for.
    """
    gradients = unpack(record)[1].get("gradient", torch.zeros(()))
    if gradients.ndim < 1 or len(gradients) > MOST_USES:
        raise ValueError("Malformed gradient reply: it holds no gradient of each use.")
    return [GradientReply(gradient) for gradient in gradients]


def _only(uses: list[_T]) -> _T:
    if len(uses) != 1:
        raise ValueError(f"Expected a message with one use, received one with {len(uses)}.")
    return uses[0]
