"""Central mode: generated images go out, clipped and noised gradients come back.

One message may ask for several uses of the mechanism, each a round of the plan with rows of its
own; they have one plan, objective, view, run and share of the noise. The arrays of a message have
the uses as their leading dimension, and so has the gradient of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from fedsink.privacy import domain
from fedsink.privacy.clips import ClipOfRecords
from fedsink.privacy.plan import CentralPlan, plan_from_dict
from fedsink.protocol.objective import Objective
from fedsink.protocol.records import Packed, pack, packed, table, unpack
from fedsink.protocol.run import UNNAMED, run_name
from fedsink.values import privacy_checks as checks

if TYPE_CHECKING:
    from flwr.app import RecordDict

MOST_USES = 2_000  # of one message; each costs time before any of them can be refused

_T = TypeVar("_T")
_ARRAYS = ("rows", "row_labels", "potentials", "self_gradient")


@dataclass(frozen=True)
class GradientRequest:
    """One use of the mechanism at one client.

    Attributes:
        round: the use's number in the plan, from 1.
        label: the class of this round's rows and records; None when the round mixes classes.
        plan: sampler, clip, noise and their accounting; or that there are neither clip nor noise.
        objective: the transport problem.
        view: public linear coordinates the gradient lives in, as `View.to_dict()`.
        rows: X, generated points in these coordinates, (n, D).
        row_labels: (n,) int64.
        potentials: f, the rows' dual potentials for `clip=record`, (n,).
        self_gradient: the data-independent part of the gradient for `clip=batch`, (n, D).
        run: public name of the run that asks; a node's ledger keeps runs apart by it.
        share: n ≥ 1, over how many clients one noise of the plan is spread: the reply holds
            N(0, (σS)²/n) of it. 1: the reply holds all of it, and needs no other.
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

    @property
    def own_plan(self) -> CentralPlan:
        """The plan with the noise of this reply alone: what holds without all other replies."""
        return self.plan.with_noise(1 / self.share)

    def to_record(self) -> RecordDict:
        """A message with this use alone."""
        return pack_requests([self])

    @classmethod
    def from_record(cls, record: RecordDict) -> GradientRequest:
        """Read and check a message with one use.

        Raises:
            ValueError: it is malformed, or holds another number of uses.
        """
        return _only(unpack_requests(record))

    def check(self) -> None:
        """Refuse a request whose parts do not fit together.

        Raises:
            ValueError: with what does not fit.
        """
        check_use(self.round, self.plan, self.share)
        ClipOfRecords.expect(self.plan.clip)
        check_rows(self.rows, self.row_labels, self.objective.classes)
        self.objective.check_plan(self.plan)
        n = len(self.rows)
        if self.plan.clip.name == "record" and not (
            self.potentials.shape == (n,) and is_float32(self.potentials, domain.POTENTIALS)
        ):
            raise ValueError(
                f"Per-record clipping needs {n} potentials, float32 and within "
                f"±{domain.POTENTIALS.high:.4g}."
            )
        if self.plan.clip.name == "batch" and not (
            self.self_gradient.shape == self.rows.shape
            and is_float32(self.self_gradient, domain.GRADIENTS)
        ):
            raise ValueError(
                "Per-batch clipping needs a finite float32 self gradient of the rows' shape, "
                f"within ±{domain.GRADIENTS.high:.4g}."
            )


@dataclass(frozen=True)
class GradientReply:
    """The noised gradient, (n, D) float32, and nothing else that depends on private data."""

    gradient: Tensor

    def to_record(self) -> RecordDict:
        """An answer to a message with one use."""
        return pack_replies([self])

    @classmethod
    def from_record(cls, record: RecordDict) -> GradientReply:
        """Read an answer to a message with one use.

        Raises:
            ValueError: it holds no gradient, or those of several uses.
        """
        return _only(unpack_replies(record))


def pack_requests(requests: Sequence[GradientRequest]) -> RecordDict:
    """One message that asks for these uses, in the order of their rounds; see `packed_requests`."""
    return packed_requests(requests).record()


def packed_requests(requests: Sequence[GradientRequest]) -> Packed:
    """What a message says that asks for these uses, in the order of their rounds.

    Raises:
        ValueError: there are none, or they differ in plan, objective, view, run or share.
    """
    if not requests:
        raise ValueError("A message must ask for at least one use.")
    first = requests[0]
    for other in requests[1:]:
        if (other.plan, other.objective, other.view, other.run, other.share) != (
            first.plan, first.objective, first.view, first.run, first.share,
        ):  # fmt: skip
            raise ValueError(
                "The uses of one message share plan, objective, view and run, and the noise with "
                "as many clients."
            )
    fields = {
        "run": first.run,
        "share": first.share,
        "plan": first.plan.to_dict(),
        "objective": asdict(first.objective),
        "view": first.view,
        "rounds": [request.round for request in requests],
        "labels": [request.label for request in requests],
    }
    arrays = {
        name: torch.stack([getattr(request, name).detach() for request in requests])
        for name in _ARRAYS
    }
    return packed(fields, arrays)


def unpack_requests(record: RecordDict) -> list[GradientRequest]:
    """Read and check the uses that a message asks for.

    Raises:
        ValueError: a field is missing, shapes and types do not fit together, or the rounds do
            not increase.
    """
    fields, arrays = unpack(record)
    try:
        if len(fields["rounds"]) > MOST_USES:
            raise ValueError(
                f"A message asks for at most {MOST_USES} uses, not {len(fields['rounds'])}."
            )
        rounds = [int(number) for number in fields["rounds"]]
        labels = [None if label is None else int(label) for label in fields["labels"]]
        plan = plan_from_dict(fields["plan"])
        objective = Objective(**fields["objective"])
        view = table(fields, "view")
        run, share = run_name(fields["run"]), fields["share"]
        stacked = [arrays[name] for name in _ARRAYS]
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"Malformed gradient request: {error}.") from error
    if not rounds or sorted(set(rounds)) != rounds or len(labels) != len(rounds):
        raise ValueError("A message needs rounds that increase, with a label each.")
    for name, array in zip(_ARRAYS, stacked, strict=True):
        if array.ndim < 1 or len(array) != len(rounds):
            raise ValueError(f"The message asks for {len(rounds)} uses, but its {name} do not.")
    requests = [
        GradientRequest(number, label, plan, objective, view, x, row_labels, f, inside, run, share)
        for number, label, x, row_labels, f, inside in zip(rounds, labels, *stacked, strict=True)
    ]
    return checked(requests)


def checked(requests: list[GradientRequest]) -> list[GradientRequest]:
    """The requests, after `GradientRequest.check` of each; raises ValueError like it."""
    for request in requests:
        request.check()
    return requests


def pack_replies(replies: Sequence[GradientReply]) -> RecordDict:
    """One answer with a gradient per use, in the order of the message."""
    return pack({}, {"gradient": torch.stack([reply.gradient for reply in replies])})


def unpack_replies(record: RecordDict) -> list[GradientReply]:
    """Read the gradients of an answer.

    Raises:
        ValueError: it holds none, or more than any message asks for.
    """
    gradients = unpack(record)[1].get("gradient", torch.zeros(()))
    if gradients.ndim < 1 or len(gradients) > MOST_USES:
        raise ValueError("Malformed gradient reply: it holds no gradient of each use.")
    return [GradientReply(gradient) for gradient in gradients]


def check_use(round: int, plan: CentralPlan, share: int) -> None:
    """Refuse a round that is not the plan's, or noise that float32 cannot hold.

    Raises:
        ValueError: with what is wrong.
    """
    if round < 1 or round > plan.rounds:
        raise ValueError(f"Round {round} is not in the plan's 1..{plan.rounds}.")
    domain.ROUNDS.check_count(plan.rounds)
    checks.count("share", share)
    if plan.protected:
        domain.noise_scale(plan.with_noise(1 / share).noise_std)


def check_rows(rows: Tensor, labels: Tensor, classes: int) -> None:
    """Refuse public rows that are no finite matrix, or labels that are none of the classes.

    Raises:
        ValueError: with what is wrong.
    """
    if rows.ndim != 2 or not rows.numel() or not is_float32(rows, domain.ROWS):
        raise ValueError(
            f"Rows must be a finite n×D float32 matrix within ±{domain.ROWS.high:.4g}, not "
            f"{tuple(rows.shape)} of {rows.dtype}."
        )
    n = len(rows)
    if labels.shape != (n,) or labels.dtype != torch.int64:
        raise ValueError(f"Row labels must be {n} integers.")
    # As Python's integers: the classes may be any number.
    if int(labels.amin()) < 0 or int(labels.amax()) >= classes:
        raise ValueError(f"Row labels must be below the {classes} classes.")


def _only(parts: list[_T]) -> _T:
    if len(parts) != 1:
        raise ValueError(f"Expected a message with one use, received one with {len(parts)}.")
    return parts[0]


def is_float32(values: Tensor, within: domain.Interval) -> bool:
    """Whether these are float32 numbers inside a public interval."""
    return values.dtype == torch.float32 and within.holds(values)
