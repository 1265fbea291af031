"""Clips: each bounds the change of a release by one unit, and states that bound.

Samplers, accountants and audits ask the clip of a plan and never which clip it is. Those in the
table `CLIPS` are asked for by name, and answered by nodes. No entry point adds others: a clip of
one's own, a subclass of `RecordClip` or `BatchClip` with a `name`, a `transform` and fields, is for
loops and simulations of whoever wrote it (`attack_clip` tests it).

>>> [clip.sensitivity for clip in (RecordClip(0.5), BatchClip(0.5), CriticClip(0.5, critics=40))]
[0.5, 1.0, 1.0]
>>> RowClip(bound=0.5, rows=25).sensitivity
5.0
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import InitVar, asdict, dataclass, fields, replace
from functools import cached_property
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from fedsink.errors import PrivacyError
from fedsink.privacy.adjacency import CLIENT, USER
from fedsink.values import privacy_checks as checks

if TYPE_CHECKING:
    from fedsink.privacy.sampling import Schedule

# Relative room below the bound for the roundings of norms, products and the cast to float32.
_SLACK = 2.0**-20
# Below this bound that room would itself be lost in rounding.
_SMALLEST = 2.0**-1000
# With more critics the rounding of their sum could exceed the room below the bound.
MOST_CRITICS = 1 << 14
MOST_ROWS = 1 << 20
_MOST_RECORDS = 1 << 22  # whose integers, of 40 bits each, add up within 63
# No gradient at images is nearly as long, so that the factors of such a clip are exactly 1.
UNREACHED = 2.0**100


class _Fixed:
    def __setattr__(self, name: str, value: object) -> None:
        raise PrivacyError(_UNDECLARED.format(type(self).__name__, name))


_UNDECLARED = (
    "{0} has no field {1!r}: decorate the class with @dataclass(frozen=True) and declare it, as in "
    "`{1}: float = 1.0`, so that plans and run folders can tell two of them apart."
)


@dataclass(frozen=True)
class Clip(_Fixed, ABC):
    """Bounds the change of a release by one protected unit.

    Guarantees:
        - A clip of somebody's own changes the name, the `transform` and new fields alone.
        - Two clips of a class that differ in anything differ in a field, which plans compare.
    """

    bound: float  # of an L2 norm
    name: ClassVar[str]  # as in a configuration and in a message
    needed: ClassVar[str]  # sentence of `expect` for a clip of another family, whose name goes in
    sampled: ClassVar[bool]  # a batch of records is drawn; else all take part in every use
    per_record: ClassVar[bool] = False  # each contribution is clipped by itself, their sum released
    published: ClassVar[bool] = False  # only for comparison with published work, in simulations
    # Name of the dominating pair where one record or one answer replaces another, see
    # `fedsink.privacy.accounting.replacement`.
    replacement: ClassVar[str]
    # Names of an account's options beside rate, noise and rounds; "turns" is about the schedule,
    # the others are read by `for_account`.
    account_options: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", checks.positive("bound", self.bound))

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _check_class(cls)

    def check_own(self) -> None:
        """Refuses a clip of one's own whose class or object was altered; raises PrivacyError."""
        if not self.own:
            return
        _check_class(type(self))
        known = {field.name for field in fields(self)}
        for name in vars(self).keys() - known:
            if not isinstance(getattr_static(type(self), name, None), cached_property):
                raise PrivacyError(_UNDECLARED.format(type(self).__name__, name))
        for name in known:
            try:
                hash(value := getattr(self, name))
                json.dumps(value)
            except (TypeError, ValueError):
                raise PrivacyError(
                    f"the field {name!r} of {type(self).__name__} is a {type(value).__name__}, "
                    "which a plan cannot compare and write: take numbers, words, or tuples of them."
                ) from None

    def same_as(self, other: Clip) -> bool:
        """True for a clip of one class with the same fields, however the class compares them."""
        return self is other or (type(self) is type(other) and self.to_dict() == other.to_dict())

    @property
    def own(self) -> bool:
        """True for a clip of somebody's own, which is in no table of fedsink's."""
        return type(self) not in CLIPS.values()

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """S in L2: how far one unit moves a release; for a client as the unit see `of_client`."""

    @property
    def claimed_sensitivity(self) -> float:
        """The distance in L2 by which published work divides the noise: S, or less than it."""
        return self.sensitivity

    @abstractmethod
    def of_client(self, capacity: int | None) -> int:
        """Returns f: all records of a client, B at most, move a release by f sensitivities."""

    @abstractmethod
    def reach(self, records: int) -> float:
        """Returns a bound on the L2 norm of one client's total of at most `records`."""

    @abstractmethod
    def check_plan(self, schedule: Schedule, adjacency: str, capacity: int | None) -> None:
        """Refuses a plan that has no guarantee with this clip; raises PrivacyError."""

    def check_rate(self, rate: float) -> float:
        """Returns the rate, in (0, 1]; raises PrivacyError for one that the clip does not fit."""
        return checks.probability("rate", rate)

    @classmethod
    def expect(cls, clip: Clip) -> Self:
        """Returns `clip` if it is of this family; raises PrivacyError for any other."""
        if not isinstance(clip, cls):
            raise PrivacyError(cls.needed.format(clip.name))
        return clip

    @classmethod
    def for_account(cls, options: Mapping[str, int]) -> Clip:
        """Returns the clip with these options and a bound of 1, on which no ε depends."""
        return cls(1.0)

    def asked_in_secret(self, rate: float) -> bool:
        """True if a rate says in which rounds a part of the records is asked."""
        return False

    def overflows(self, adjacency: str, capacity: int | None) -> bool:
        """True if a full batch changes a record's effect; δ then includes its probability."""
        return self.per_record and capacity is not None and adjacency != CLIENT

    def vouch(self, total: torch.Tensor) -> Clipped:
        """Returns the total as `Clipped`, for code whose own guarantee is this clip's sensitivity.

        `fedsink.transport.clipped_sums` is such code; a total of anything else is not private.
        """
        return Clipped(self, total, made_by=_A_CLIP)

    def to_dict(self) -> dict[str, Any]:
        """Returns the clip as JSON-able values; `clip_from_dict` gives the same clip back."""
        return {"name": self.name, **asdict(self)}


def _check_class(cls: type[Clip]) -> None:
    if cls.__module__ == __name__:
        return
    family = next((c for c in cls.__mro__ if c in (RecordClip, BatchClip)), None)
    if family is None:
        raise PrivacyError(
            f"a clip of your own is a RecordClip or a BatchClip, and {cls.__name__} is neither: "
            "derive it from one of them."
        )
    if not isinstance(cls.name, str) or cls.name in CLIPS:
        raise PrivacyError(
            f"{cls.__name__} is a clip of your own and has no name of its own: say "
            f'`name = "{cls.__name__.lower()}"` in the class.'
        )
    for name in sorted({*dir(family), "bound"} - {"name", "transform"}):
        mine, theirs = (getattr_static(kind, name, None) for kind in (cls, family))
        if mine is not theirs and not name.startswith(("__", "_abc_")):
            raise PrivacyError(
                f"{cls.__name__} overrides `{name}` of {family.__name__}, on which the guarantee "
                "rests: a clip of your own has a `transform`, a `name` and fields of its own, and "
                "changes nothing else."
            )


_A_CLIP = object()  # what only clips hand over


@dataclass(frozen=True, eq=False)
class Clipped:
    """Clipped contributions of one round, all that a plan releases.

    Only a clip makes one. It is no tensor: `+` joins the totals of disjoint records under one
    record clip, and there is no other arithmetic. What the type does not show is that the gradients
    came from the round's sample, and that each depends on one record alone.

    Attributes:
        clip: the clip that was applied.
        total: the clipped total, or totals of several clients, (...).
        parts: name and shape of each tensor where a mapping was clipped as one vector.
        records: number of gradients in a sum; None where nobody counted.
    """

    clip: Clip
    total: torch.Tensor
    parts: tuple[tuple[str, torch.Size], ...] | None = None
    records: int | None = None
    made_by: InitVar[object] = None

    def __post_init__(self, made_by: object) -> None:
        if made_by is not _A_CLIP:
            raise PrivacyError(
                "a Clipped is made by a clip: call RecordClip(…).sum(gradients) or "
                "BatchClip(…).clip(gradient)."
            )

    def __add__(self, other: object) -> Clipped:
        if not isinstance(other, Clipped):
            return NotImplemented
        if not self.clip.per_record or not self.clip.same_as(other.clip):
            raise PrivacyError(
                "only totals of disjoint records under one record clip add up, received "
                f"{self.clip} and {other.clip}: release each by itself."
            )
        if self.parts != other.parts or self.total.shape != other.total.shape:
            raise PrivacyError("totals that add up have the same shapes.")
        counted = None not in (self.records, other.records)
        records = (self.records or 0) + (other.records or 0) if counted else None
        return replace(self, total=self.total + other.total, records=records, made_by=_A_CLIP)

    def __radd__(self, other: object) -> Clipped:
        return self if type(other) is int and other == 0 else NotImplemented  # `sum` begins with 0

    def formed(self, values: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        """Returns values of the total's shape in the form of what was clipped."""
        if self.parts is None:
            return values
        sizes = [shape.numel() for _, shape in self.parts]
        pieces = zip(self.parts, values.split(sizes), strict=True)
        return {name: piece.reshape(shape) for (name, shape), piece in pieces}


Gradients = torch.Tensor | Mapping[str, torch.Tensor]


def _flat(gradients: Gradients, leading: int) -> tuple[torch.Tensor, Any]:
    """Returns gradients as rows, with the parts to form them again; `leading` axes are no part."""
    given = gradients if isinstance(gradients, Mapping) else {"": gradients}
    if not given:
        raise PrivacyError("there is nothing to clip: the mapping of gradients is empty.")
    for values in given.values():
        if not isinstance(values, torch.Tensor):
            raise PrivacyError(
                "gradients to clip are a tensor or a mapping of tensors, received "
                f"{type(values).__name__}: stack those of the records by torch.stack."
            )
        _check_type(values)
        if values.ndim < leading:
            raise PrivacyError(
                "a sum takes one gradient for each record, (B, ...), received a single number."
            )
    if leading and len(sizes := {len(values) for values in given.values()}) > 1:
        raise PrivacyError(
            "every tensor of the mapping has one gradient for each record, received "
            f"{' and '.join(map(str, sorted(sizes)))} of them: is it the batch's summed .grad?"
        )
    if isinstance(gradients, torch.Tensor):
        return gradients, None
    parts = tuple((name, values.shape[leading:]) for name, values in given.items())
    rows = [v.to(torch.float64).unsqueeze(-1).flatten(leading) for v in given.values()]
    return torch.cat(rows, dim=leading), parts


def refuse_infinite(total: torch.Tensor) -> None:
    """Refuses to release a total that no clip has made finite; raises PrivacyError."""
    if not bool(torch.isfinite(total).all()):
        raise PrivacyError("the total to release is not finite: clip it before releasing.")


def clipped_by(clip: Clip, total: Clipped) -> torch.Tensor:
    """Returns the values of a total that this clip has made; raises PrivacyError for any other."""
    if not isinstance(total, Clipped):
        raise PrivacyError(
            f"only a Clipped is released, received {type(total).__name__}: call the plan's "
            f"clip, {type(clip).__name__}, on the gradients."
        )
    if not clip.same_as(total.clip):
        raise PrivacyError(
            f"the total was made by {total.clip}, and the plan accounts for {clip}: clip with "
            "plan.clip."
        )
    refuse_infinite(total.total)
    return total.total


def clip_to_norm(
    vectors: torch.Tensor,
    bound: float,
    *,
    slack: float = _SLACK,
    cast: torch.dtype = torch.float64,
) -> torch.Tensor:
    """Returns v·min(1, Δ/‖v‖) for each vector v, exact over the whole range of floats.

    The largest entry is divided out first, so that no square overflows or vanishes. A result too
    small for a normal number of the type becomes zero: such numbers round by up to half of
    themselves, and a factor that did so would scale past the bound.

    Args:
        vectors: (K, N), float32 or float64.
        bound: Δ > 0; below 2⁻¹⁰⁰⁰ every result is zero.
        slack: the room left below Δ by vectors that are scaled, relative; a caller that adds
            results up needs more of it.
        cast: the type of the result, float32 (only for float32 vectors) or float64.

    Returns:
        (K, N). A vector within Δ·(1 − slack) is unchanged, one with a non-finite entry becomes
        zero.

    Guarantees:
        - Every result has norm at most Δ, in exact arithmetic.
        - Which operations run does not depend on the vectors' values.
    """
    if vectors.numel() == 0 or bound < _SMALLEST:
        return torch.zeros_like(vectors, dtype=cast)
    values = vectors.to(torch.float64)
    largest = values.abs().amax(1, keepdim=True)  # NaN where an entry is NaN
    direction = values / largest
    length = torch.linalg.vector_norm(direction, dim=1, keepdim=True)  # 1 to √N
    clip = bound * (1.0 - slack)
    scaled = direction * (clip / length)
    scaled = torch.where(scaled.abs() >= torch.finfo(cast).tiny, scaled, 0.0)
    # Selects, not branches: control flow must not depend on private values.
    shorter = torch.where(length <= clip / largest, values, scaled)
    return torch.where(largest.isfinite() & (largest > 0.0), shorter, 0.0).to(cast)


def _check_type(gradients: torch.Tensor) -> None:
    if gradients.dtype not in (torch.float32, torch.float64):
        raise PrivacyError(
            f"a gradient to clip must be float32 or float64, received {gradients.dtype}: "
            "narrower types round past the bound."
        )


class ClipOfRecords(Clip):
    """A clip of a gradient of sampled records."""

    needed: ClassVar[str] = "the {} clip samples no records: choose the record or the batch clip."
    sampled: ClassVar[bool] = True

    def transform(self, gradients: torch.Tensor) -> torch.Tensor:
        """Returns each gradient as it is to be clipped to Δ: unchanged.

        A clip of one's own overrides this and nothing else. Its promise, on which the guarantee
        rests, is that row k of the result depends on row k alone, the same way for any number of
        rows; the norm is clipped afterwards in any case. `attack_clip` looks for a case that breaks
        the promise.

        Args:
            gradients: (K, N), float32 or float64, K ≥ 1, one row a record (`RecordClip`) or a
                client (`BatchClip`). `RecordClip.sum` gives float64, and the tensors of a mapping
                flattened and joined.
        """
        return gradients

    def clip_each(self, gradients: torch.Tensor) -> torch.Tensor:
        """Returns each of K gradients clipped by itself to norm ≤ Δ, (K, ...), in the same type.

        Computed in float64 and cast last.

        Raises:
            PrivacyError: The gradients are neither float32 nor float64, or a `transform` of one's
                own gave another shape.
        """
        _check_type(gradients)
        rows = gradients.unsqueeze(-1).flatten(1)
        if self.own and len(rows):
            shape, dtype, rows = rows.shape, rows.dtype, self.transform(rows.clone())
            found = type(rows).__name__
            if isinstance(rows, torch.Tensor):
                found = f"{tuple(rows.shape)} of {rows.dtype}"
            if found != f"{tuple(shape)} of {dtype}":
                raise PrivacyError(
                    f"{type(self).__name__}.transform must return {tuple(shape)} of {dtype}, like "
                    f"what it is given, and returned {found}."
                )
        return clip_to_norm(rows, self.bound, cast=gradients.dtype).reshape(gradients.shape)

    def check_plan(self, schedule: Schedule, adjacency: str, capacity: int | None) -> None:
        """Refuses a user as the unit, and a client whose contribution is unbounded."""
        if adjacency == CLIENT:
            self.of_client(capacity)
        if adjacency == USER:
            raise PrivacyError(
                "the user adjacency needs a clip that keeps all records of a user together, "
                f"received the {self.name} clip: choose adjacency=client (with a capacity or the "
                "batch clip), or GS-WGAN, whose critic clip keeps them together."
            )


@dataclass(frozen=True)
class BatchClip(ClipOfRecords):
    """Clips the whole gradient of a batch, an n×d matrix G, to L2 norm ≤ Δ: G·min(1, Δ/‖G‖).

    The two clipped gradients of any two shards lie in one ball of radius Δ, hence a sensitivity
    of 2Δ whatever the loss; the noise of DP-Sinkhorn's Algorithm 1 is 2Δσ for this reason
    (Cao et al. 2021; their Theorem 4.1 drops the factor 2).

    Guarantees:
        - The clipped gradient has norm at most Δ, in exact arithmetic, for any gradient and any
          Δ > 0 that a float can hold.
        - Any two clipped gradients differ by at most the sensitivity, 2Δ.
        - An all-zero gradient stays zero; a gradient with a non-finite entry becomes zero.
        - Which operations run does not depend on the gradient's values.

    Args:
        bound: Δ, in units of the gradient's L2 norm; finite and > 0.

    Raises:
        PrivacyError: If the bound is not a finite number > 0.
    """

    name: ClassVar[str] = "batch"
    replacement: ClassVar[str] = "without-replacement"

    @property
    def sensitivity(self) -> float:
        """2Δ: the diameter of the ball the gradient is clipped to."""
        return 2.0 * self.bound

    def of_client(self, capacity: int | None) -> int:
        """Returns 1: any two clipped gradients are within 2Δ of one another."""
        return 1

    def reach(self, records: int) -> float:
        """Returns Δ, whatever the batch."""
        return self.bound

    def clip(self, gradient: Gradients) -> Clipped:
        """Returns the clipped gradient of a batch; the tensors of a mapping have a joint norm."""
        whole, parts = _flat(gradient, 0)
        return Clipped(self, self.apply(whole.to(torch.float64)), parts, made_by=_A_CLIP)

    def apply(self, gradient: torch.Tensor) -> torch.Tensor:
        """Returns the clipped gradient, same shape and dtype; computed in float64 and cast last.

        Raises:
            PrivacyError: If the gradient is neither float32 nor float64.
        """
        return self.clip_each(gradient.unsqueeze(0)).squeeze(0)


@dataclass(frozen=True)
class RecordClip(ClipOfRecords):
    """Clips each record's contribution g_j to L2 norm ≤ Δ; the client releases Σ_j g_j + noise.

    Adding or removing one record changes the sum by its own clipped contribution, hence a
    sensitivity of Δ. This holds for contributions that depend on no other record. The sum is
    computed by `fedsink.transport.clipped_sums`, which has these guarantees and never stores
    contributions one by one.

    Args:
        bound: Δ, in units of a contribution's L2 norm; finite and > 0.

    Raises:
        PrivacyError: If the bound is not a finite number > 0.
    """

    name: ClassVar[str] = "record"
    per_record: ClassVar[bool] = True
    replacement: ClassVar[str] = "opposite"

    def sum(self, gradients: Gradients) -> Clipped:
        """Returns Σ_j clip(g_j, Δ) over the records of a sample; there may be none of them.

        Clipped entries are rounded towards 0 to multiples of Δ·2⁻⁴⁰ and added as integers, so that
        a record changes the sum by its own contribution exactly, in whatever order.

        Args:
            gradients: one gradient a record, (B, ...), float32 or float64, or a mapping of such
                tensors, whose parts have one joint norm for each record.

        Raises:
            PrivacyError: A gradient is of another type, the tensors disagree on B, or there are
                more than 2²² records.
        """
        rows, parts = _flat(gradients, 1)
        if len(rows) > _MOST_RECORDS:
            raise PrivacyError(
                f"a sum has at most {_MOST_RECORDS} records, received {len(rows)}: lower the rate."
            )
        clipped = self.clip_each(rows.to(torch.float64))
        if self.bound < UNREACHED:
            grain = self.bound * 2.0**-40
            total = (clipped / grain).trunc().to(torch.int64).sum(0).to(torch.float64) * grain
        else:  # a plan that protects nothing
            total = clipped.sum(0)
        return Clipped(self, total, parts, len(rows), made_by=_A_CLIP)

    @property
    def sensitivity(self) -> float:
        """Δ: the longest contribution of one record to the sum."""
        return self.bound

    def of_client(self, capacity: int | None) -> int:
        """Returns B, the largest number of contributions of norm Δ that appear or vanish."""
        if capacity is None:
            raise PrivacyError(
                "the client adjacency with the record clip needs a capacity: without one a "
                "client's sum is unbounded. Give a capacity or use the batch clip."
            )
        return capacity

    def reach(self, records: int) -> float:
        """Returns Δ for each record."""
        return self.bound * records


class ClipOfCritics(Clip):
    """A clip of gradients of critics, each of which learns from its own part of a client's records.

    No batch is drawn: every part of the records takes part in every use.
    """

    needed: ClassVar[str] = "A sum over critics needs the critic clip, not the {} clip."
    sampled: ClassVar[bool] = False

    @property
    @abstractmethod
    def critics(self) -> int:
        """M, the public limit on critics per client."""

    @abstractmethod
    def check_size(self, critics: int, rows: int) -> None:
        """Refuses gradients of more critics at a client, or of more rows; raises PrivacyError."""

    @abstractmethod
    def total(self, gradients: torch.Tensor) -> torch.Tensor:
        """Returns Σ_m clip(g_m) for each of K clients, (K, M, n, D) → (K, n, D) float64.

        Raises PrivacyError unless they are float32 or float64, and for what `check_size` refuses.
        """

    def of_client(self, capacity: int | None) -> int:
        """Returns M: the gradients of all critics of a client change."""
        return self.critics

    def reach(self, records: int) -> float:
        """Returns a bound on the norm of all clipped gradients of a client together: M·S/2."""
        return 0.5 * self.sensitivity * self.critics

    def check_plan(self, schedule: Schedule, adjacency: str, capacity: int | None) -> None:
        """Refuses a capacity and a class schedule, which have no meaning for critics."""
        if capacity is not None:
            raise PrivacyError(
                f"the {self.name} clip draws no batch of records, so capacity={capacity} has no "
                "meaning: leave it out."
            )
        if schedule.classes > 1:
            raise PrivacyError(
                f"the {self.name} clip has no class schedule: a critic learns from records of "
                "every class, and remembers them in the rounds of the others. Use a joint or a "
                "turn schedule."
            )


@dataclass(frozen=True)
class CriticClip(ClipOfCritics):
    """Clips each critic's gradient g_m, an n×D matrix, to norm ≤ C; a client releases Σ_m g_m.

    The client deals its records to M critics by public slot numbers. A critic is any function of
    its own part of the records, of the transcript and of the client's coins, and so is g_m. A
    change of one part moves one summand within the ball of radius C: hence a sensitivity of 2C,
    whether a record is added, removed, replaced or relabelled, or the whole part changes. A change
    of all parts moves the sum by 2CM.

    With a rate q < 1 a client asks each critic with probability q in every round, and keeps secret
    which: g_m is zero where critic m is not asked. The coins of the round are independent of what
    g_m is a function of, because *every critic is trained in every round, asked or not*: no state
    remembers them. The state of a critic that is trained only when it is asked would remember
    them, and nothing would be amplified. For the pair of laws of a round see
    `fedsink.privacy.accounting.replacement`.

    Guarantees:
        - Each critic's clipped gradient has norm at most C, in exact arithmetic, for any gradient.
        - Two totals that differ in one critic's gradient are at most the sensitivity apart.
        - A critic whose gradient has a non-finite entry contributes zero.
        - Which operations run does not depend on the gradients' values.

    Args:
        bound: C, in units of a gradient's L2 norm; finite and > 0.
        critics: M from 1 to 2¹⁴, public: no client adds up more critics.

    Raises:
        PrivacyError: If the bound is not a finite number > 0, or M is not a whole number in range.
    """

    critics: int = MOST_CRITICS
    name: ClassVar[str] = "critic"
    replacement: ClassVar[str] = "opposite"
    account_options: ClassVar[tuple[str, ...]] = ("critics", "turns", "rows")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "critics", checks.count("critics", self.critics))
        if self.critics > MOST_CRITICS:
            raise PrivacyError(
                f"critics must be at most {MOST_CRITICS}, received {self.critics}: the rounding "
                "of a larger sum could exceed its sensitivity."
            )

    @property
    def sensitivity(self) -> float:
        """2C: what one critic's part of the records can change."""
        return 2.0 * self.bound

    @classmethod
    def for_account(cls, options: Mapping[str, int]) -> ClipOfCritics:
        """Returns the clip of M "critics" (default 1), or the published one of n "rows"; bound 1.

        As published (`RowClip`) each of the n rows is clipped by itself.
        """
        whole = cls(1.0, options.get("critics", 1))
        if "rows" not in options:
            return whole
        by_rows = RowClip(1.0, options["rows"])
        by_rows.check_size(whole.critics, by_rows.rows)
        return by_rows

    def asked_in_secret(self, rate: float) -> bool:
        """True if critics are asked in a secret part of the rounds: at a rate below 1."""
        return rate < 1.0

    def check_size(self, critics: int, rows: int) -> None:
        """Refuses gradients of more critics at a client; raises PrivacyError."""
        if critics > self.critics:
            raise PrivacyError(
                f"the clip accounts for {self.critics} critics at a client, not for {critics}."
            )

    def total(self, gradients: torch.Tensor) -> torch.Tensor:
        """Returns Σ_m clip(g_m, C) for each of K clients."""
        clients, critics, *shape = gradients.shape
        self.check_size(critics, shape[0])
        _check_type(gradients)
        # Rounding moves either of two sums by less than 2⁻⁵²·M²·C ≤ 2⁻²⁴·C; the slack is 2⁻²⁰·C.
        clipped = clip_to_norm(gradients.flatten(0, 1).flatten(1), self.bound)
        return clipped.reshape(clients, critics, *shape).sum(1)


@dataclass(frozen=True)
class RowClip(ClipOfCritics):
    """Clips each row of a critic's gradient, an n×D matrix, to norm ≤ C; M = 1 critic a client.

    The published clip (Chen, Orekondy, Fritz 2020), for comparison. A row longer
    than C is scaled to C, any other is left as it is. All rows ask the same critic: a change of its
    part of the records moves each of them within a ball of radius C, and so the matrix by up to
    2C√n. The published noise of std 2Cσ' is therefore one of multiplier σ'/√n. `CriticClip` with
    the same noise moves by 2C.

    Guarantees:
        - Each row of the clipped gradient has norm at most C, in exact arithmetic.
        - Any two clipped gradients are at most the sensitivity apart.
        - A row with a non-finite entry becomes zero.
        - Which operations run does not depend on the gradient's values.

    Args:
        bound: C, in units of a row's L2 norm; finite and > 0.
        rows: n from 1 to 2²⁰, public: no gradient has more rows.

    Raises:
        PrivacyError: If the bound is not a finite number > 0, or n is not a whole number in range.
    """

    rows: int = MOST_ROWS
    name: ClassVar[str] = "row"
    published: ClassVar[bool] = True
    critics: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rows", checks.count("rows", self.rows))
        if self.rows > MOST_ROWS:
            raise PrivacyError(f"rows must be at most {MOST_ROWS}, received {self.rows}.")

    @property
    def sensitivity(self) -> float:
        """2C√n: the largest change at all n rows together by a critic's part of the records."""
        return 2.0 * self.bound * math.sqrt(self.rows)

    @property
    def claimed_sensitivity(self) -> float:
        """2C: the largest change at one row by a critic's part of the records."""
        return 2.0 * self.bound

    def check_rate(self, rate: float) -> float:
        """Returns 1.0; raises PrivacyError for any other rate."""
        if checks.probability("rate", rate) < 1.0:
            raise PrivacyError(
                f"the {self.name} clip has only rate=1, received rate={rate:g}: as published a "
                "critic is trained when it is picked, and remembers it, so that a secret pick "
                "would not amplify. Use the critic clip, whose critics are trained in every round."
            )
        return 1.0

    def check_size(self, critics: int, rows: int) -> None:
        """Refuses gradients of several critics at a client or of more rows; raises PrivacyError."""
        if critics > self.critics:
            raise PrivacyError(f"the {self.name} clip accounts for one critic, not for {critics}.")
        if rows > self.rows:
            raise PrivacyError(f"the clip accounts for {self.rows} rows, not for {rows}.")

    def total(self, gradients: torch.Tensor) -> torch.Tensor:
        """Returns the clipped gradient of the one critic of each of K clients."""
        _, critics, rows, _ = gradients.shape
        self.check_size(critics, rows)
        _check_type(gradients)
        return clip_to_norm(gradients.flatten(0, -2), self.bound).reshape(gradients.shape).sum(1)


CLIPS: dict[str, type[Clip]] = {
    clip.name: clip for clip in (RecordClip, BatchClip, CriticClip, RowClip)
}


def clip_from_dict(values: Mapping[str, Any]) -> Clip:
    """Returns the clip written by `Clip.to_dict`.

    Raises PrivacyError for a value out of range or a clip that this process does not know, KeyError
    or TypeError for an entry that is missing or unknown.
    """
    options = {**values}
    clip = (CLIPS | _OWN).get(name := options.pop("name"))
    if clip is None:
        raise PrivacyError(
            f"the clip {name!r} is none of {', '.join(CLIPS)}: somebody's own is known only to the "
            "process that simulates with it."
        )
    if name in _OWN:  # whose fields are tuples, and JSON has only lists
        options = {key: _tuples(value) for key, value in options.items()}
    return clip(**options)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


_OWN: dict[str, type[Clip]] = {}


# With longer gradients an attack would take more than about a second.
_MOST_ATTACKED = 1 << 14


def simulated_here(clip: Clip, size: int | None) -> None:
    """Lets messages of simulations in this process name a clip of one's own, once attacked.

    Args:
        clip: to simulate with.
        size: number of values in a gradient; None: unknown, and nothing is attacked.

    Raises:
        PrivacyError: The attack found a case that breaks the clip's promise.
    """
    if not clip.own:
        return
    if size is not None and size <= _MOST_ATTACKED:
        try:
            attack_clip(ClipOfRecords.expect(clip), size=size)
        except AssertionError as found:
            raise PrivacyError(
                f"{type(clip).__name__} does not keep the promise of a clip of your own, that row "
                f"k of its transform depends on row k alone. {found} "
                f"attack_clip(…, size={size}) finds it again."
            ) from found
    _OWN[clip.name] = type(clip)


def attack_clip(clip: ClipOfRecords, *, size: int = 5, seed: int = 0) -> None:
    """Looks for gradients with which a clip of one's own breaks its promise; for its tests.

    Gradients from 1e-300 to 1e300 long, zeros, infinities and NaN, in float32 and float64, are
    clipped together, by themselves, in another order and beside others. They are up to 53: what a
    transform does with more of them, or by a rare chance, passes.

    >>> class Normalised(BatchClip):
    ...     name = "normalised"
    ...     def transform(self, gradients):
    ...         return self.bound * gradients / (0.01 + gradients.norm(dim=1, keepdim=True))
    >>> attack_clip(Normalised(1.0))

    Args:
        clip: the clip to attack.
        size: N, number of values in a gradient: of all tensors of a mapping together.
        seed: the seed of the gradients.

    Raises:
        AssertionError: A result depends on another row, on the order, on their number or on
            chance, every one is NaN, or the transform failed; the text says which.
        PrivacyError: It is no clip of records, or its transform gives another shape or type.
    """
    if not isinstance(clip, ClipOfRecords):
        found = f"the class {clip.__name__}" if isinstance(clip, type) else type(clip).__name__
        raise PrivacyError(
            f"attack_clip takes a RecordClip, a BatchClip or one of your own, as in "
            f"attack_clip(Normalised(1.0)), received {found}."
        )
    generator = torch.Generator().manual_seed(seed)
    what = f"{clip}: a gradient's result"
    usual = torch.randn(8, size, generator=generator, dtype=torch.float64)

    def clipped(rows: torch.Tensor) -> torch.Tensor:
        try:
            return clip.clip_each(rows)
        except PrivacyError:
            raise
        except Exception as error:
            raise AssertionError(
                f"{clip}: transform failed on {tuple(rows.shape)}: give size= if it is for "
                f"gradients of another size ({type(error).__name__}: {error})."
            ) from error

    clipped(usual)
    assert bool(clip.transform(usual.clone()).isfinite().all(1).any()), (
        f"{clip}: transform made every one of {len(usual)} ordinary gradients infinite or NaN, "
        "which counts as zero."
    )
    for dtype, reach in ((torch.float64, 300.0), (torch.float32, 37.0)):
        scales = 10.0 ** torch.linspace(-reach, reach, 41, dtype=torch.float64)
        wild = torch.randn(41, size, generator=generator, dtype=torch.float64) * scales[:, None]
        undefined = torch.zeros(4, size, dtype=torch.float64)
        undefined[:3, 0] = torch.tensor([math.nan, math.inf, -math.inf])
        for rows in (usual, torch.cat([usual, wild]), torch.cat([usual, wild, undefined])):
            rows = rows.to(dtype)
            order = torch.randperm(len(rows), generator=generator)
            together = clipped(rows)
            assert torch.equal(clipped(rows), together), f"{what} is another each time."
            assert torch.equal(clipped(rows[order]), together[order]), (
                f"{what} depends on the order of the others (or on chance)."
            )
            for row, result in zip(rows, together, strict=True):
                alone = clipped(row[None])[0]
                assert torch.equal(alone, result), (
                    f"{what} depends on the others (or on chance, or on how many there are): that "
                    f"of {row[:5].tolist()}{', …' if size > 5 else ''}."
                )
