"""The central mode without privacy, for ceilings: rounds in which nothing is clipped or noised.

>>> from fedsink.privacy.sampling import JointSchedule
>>> UnprotectedPlan(rate=0.1, rounds=10, kind="batch", schedule=JointSchedule()).epsilon()
inf
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import torch

from fedsink.errors import PrivacyError
from fedsink.privacy import domain
from fedsink.privacy.clips import CLIPS, Clip
from fedsink.privacy.randomness.noise import Stream
from fedsink.privacy.sampling import (
    SCHEDULES,
    PoissonSampler,
    Schedule,
    schedule_from_dict,
)
from fedsink.values import privacy_checks as checks

# No gradient at images is nearly as long, so that the factors of such a clip are exactly 1.
UNREACHED = 2.0**100


def refuse_other_entries(values: object, names: Iterable[str]) -> None:
    """Raises PrivacyError unless a plan's table has exactly these entries."""
    if not isinstance(values, Mapping):
        raise PrivacyError(f"a plan is a table, as its to_dict writes it, not {values!r}.")
    if other := sorted(map(str, set(values) ^ set(names))):
        raise PrivacyError(
            f"the plan's entry {other[0]!r} is missing or unknown: use the plan's to_dict."
        )


@dataclass(frozen=True)
class UnprotectedPlan:
    """The rounds of a `PrivacyPlan` with neither clip nor noise; ε = ∞.

    For ceilings on public data only. A node answers it only where its owner's settings say so;
    neither a policy nor a message can.

    Guarantees:
        - A release is the computed total, without noise and unclipped.
        - ε is infinite from the first round on.
        - It is never read as a plan that protects, and no such plan is read as this one.

    Args:
        rate: q in (0, 1], probability with which a record enters a round's batch.
        rounds: T ≥ 1.
        kind: name of the clip that the same rounds would have under protection, one of
            `fedsink.privacy.clips.CLIPS`.
        schedule: one of `fedsink.privacy.sampling.SCHEDULES`.
        capacity: B ≥ 1: at most B sampled records take part; None: all of them.
        nominal_records: N ≥ 1, public: no client takes part with more records; None: any.

    Raises:
        PrivacyError: If a value is out of range.
    """

    rate: float
    rounds: int
    kind: str
    schedule: Schedule
    capacity: int | None = None
    nominal_records: int | None = None

    noise_std: ClassVar[float] = 0.0
    protected: ClassVar[Literal[False]] = False
    unit: ClassVar[str] = "none"

    def __post_init__(self) -> None:
        rounds = domain.ROUNDS.check_count(checks.count("rounds", self.rounds))
        object.__setattr__(self, "rounds", rounds)
        if self.kind not in CLIPS:
            raise PrivacyError(f"kind is {' or '.join(CLIPS)}, received {self.kind!r}.")
        object.__setattr__(self, "rate", self.clip.check_rate(self.rate))
        checks.one_of("schedule", self.schedule, SCHEDULES.values())
        for name in ("capacity", "nominal_records"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(
                    self, name, domain.RECORDS.check_count(checks.count(name, value))
                )

    @property
    def clip(self) -> Clip:
        """The clip of this kind, with a bound that no gradient reaches."""
        return CLIPS[self.kind](UNREACHED)

    @property
    def sampler(self) -> PoissonSampler:
        """The sampler of a round's batch."""
        return PoissonSampler(self.rate)

    @property
    def uses(self) -> int:
        """Number of the T rounds in which one record may take part."""
        return self.schedule.uses(self.rounds)

    def epsilon(self, accountant: str = "pld") -> float:
        """∞, whatever the accountant."""
        return math.inf

    def epsilon_after(self, rounds: int, accountant: str = "pld") -> float:
        """∞ after any round; 0 before the first."""
        return math.inf if checks.count("rounds", rounds, minimum=0) else 0.0

    def epsilon_bound_after(self, rounds: int, accountant: str = "pld") -> float:
        """∞ after any round; 0 before the first."""
        return self.epsilon_after(rounds, accountant)

    def with_noise(self, variance: float) -> UnprotectedPlan:
        """Returns this plan: there is no noise to scale."""
        return self

    def release(self, total: torch.Tensor, stream: Stream) -> torch.Tensor:
        """`total` itself, as float32."""
        return total.to(torch.float32)

    def release_each(self, totals: torch.Tensor, streams: Sequence[Stream]) -> torch.Tensor:
        """The totals of several clients themselves, as float32."""
        return totals.to(torch.float32)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-able values; `from_dict` gives the same plan back."""
        return {"unprotected": True, **vars(self), "schedule": self.schedule.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> UnprotectedPlan:
        """The plan written by `to_dict`. Raises PrivacyError for a missing or unknown entry."""
        names = [field.name for field in fields(cls)]
        refuse_other_entries(values, ["unprotected", *names])
        try:
            schedule = schedule_from_dict(values["schedule"])
            return cls(**{**{name: values[name] for name in names}, "schedule": schedule})
        except (KeyError, TypeError) as error:
            raise PrivacyError(
                f"the plan's entry {error} is missing or unknown: use UnprotectedPlan.to_dict."
            ) from None
