"""The cost of a plan's parameters under its adjacency: the step from (q, σ, T) to ε.

`PrivacyPlan`, the search for a σ and `fedsink account` use a `Cost`, which reads the clip and the
schedule, and calls one of the accountants.

>>> from fedsink.privacy.clips import BatchClip
>>> from fedsink.privacy.sampling import JointSchedule
>>> for adjacency in ("add-remove", "replace-one", "client"):
...     cost = Cost(BatchClip(1.0), JointSchedule(), adjacency)
...     print(adjacency, round(cost.epsilon(0.07, 0.9, 200, 1e-5), 2))
add-remove 8.39
replace-one 9.55
client 189.59

| adjacency | clip | mechanism that one unit sees |
|---|---|---|
| add-remove | of sampled records | Poisson-subsampled Gaussian (q, σ), the schedule's uses |
| replace-one | of sampled records | the dominating pairs of `replacement`; only accountant pld |
| client | any | Gaussians of multiplier σ/f, with f of `Clip.of_client` |
| all others | of parts, rate 1 | Gaussians of multiplier σ: all that changes is one part |
| all others | of parts, rate q < 1 | the dominating pair of `replacement`; only accountant pld |

A clip of parts samples no records: each part of a client's records takes part in every use, or is
asked at rate q in secret. A client as a unit is not sampled either, and a class schedule reaches it
in every round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fedsink.errors import PrivacyError
from fedsink.privacy import domain
from fedsink.privacy.accounting.accountants import (
    ACCOUNTANTS,
    check_accountant,
    pld_epsilon_coarse,
    poisson_gaussian,
    poisson_gaussian_epsilon,
    prv_points,
    rdp_epsilon,
)
from fedsink.privacy.accounting.capacity import overflow_probability
from fedsink.privacy.accounting.composition import Spent, Uses, epsilon_of, replacement
from fedsink.privacy.adjacency import ADD_REMOVE, CLIENT, REPLACE_ONE, check_adjacency
from fedsink.privacy.clips import CLIPS, Clip
from fedsink.privacy.sampling import SCHEDULES, Schedule
from fedsink.values import privacy_checks as checks


@dataclass(frozen=True)
class Cost:
    """ε as a function of (rate, σ, uses, δ) for one adjacency, clip, schedule and capacity.

    Arguments as in `fedsink.privacy.plan.PrivacyPlan`, and `before`: what earlier plans on the
    same records spent, which `epsilon` then counts as well.

    Raises:
        PrivacyError: If a value is out of range, or the adjacency has no guarantee here.
    """

    clip: Clip
    schedule: Schedule
    adjacency: str = ADD_REMOVE
    capacity: int | None = None
    nominal_records: int | None = None
    before: tuple[Spent, ...] = ()

    def __post_init__(self) -> None:
        checks.one_of("clip", self.clip, CLIPS.values())
        checks.one_of("schedule", self.schedule, SCHEDULES.values())
        check_adjacency(self.adjacency)
        domain.check_records(self, "capacity", "nominal_records")
        self.clip.check_plan(self.schedule, self.adjacency, self.capacity)
        if self._overflows and self.nominal_records is None:
            raise PrivacyError(
                "a capacity with the record clip needs nominal_records, the public number of "
                "records that no client exceeds: the chance of an overflow is part of δ."
            )

    def accountants(self, rate: float) -> tuple[str, ...]:
        """Returns the accountants that give a bound under this adjacency."""
        return ("pld",) if self.before or self.by_pairs(rate) else tuple(ACCOUNTANTS)

    def by_pairs(self, rate: float) -> bool:
        """True if ε comes from the pairs of `replacement`, which have no Rényi bound."""
        replaced = self.adjacency == REPLACE_ONE and self.clip.sampled
        return replaced or self._asked_in_secret(rate)

    def uses(self, rounds: int) -> int:
        """Returns the number of the first T rounds that can touch one unit."""
        return (self.schedule.of_client if self._by_client else self.schedule).uses(rounds)

    def rounds_within(self, uses: int) -> int:
        """Returns the largest number of rounds that touch a unit at most `uses` times."""
        schedule = self.schedule.of_client if self._by_client else self.schedule
        return schedule.rounds_within(uses)

    def event(self, rate: float, sigma: float, uses: int) -> Any:
        """Returns all uses of one unit as a `dp_accounting.DpEvent` under the adjacency.

        Where parts are asked in secret it is unsampled: no event has their pair under add-remove,
        so that whatever composes events counts them without amplification.
        """
        self.clip.check_rate(rate)
        if not (self._unsampled(rate) or self._asked_in_secret(rate)):
            return poisson_gaussian(rate, sigma, uses)
        events = checks.require("dp_accounting")
        return events.SelfComposedDpEvent(events.GaussianDpEvent(self._of_unit(sigma)), uses)

    def spent(self, rate: float, sigma: float, uses: int, amplified: bool = True) -> Spent:
        """Returns what a plan spends; `amplified` False: as if everybody saw who was sampled."""
        overflow, seen = self.overflow(rate, uses), rate if amplified else 1.0
        if self._unsampled(seen):
            return Spent((Uses("gaussian", 1.0, self._of_unit(sigma), uses),), overflow)
        if not self.by_pairs(seen):
            return Spent((Uses("poisson", seen, sigma, uses),), overflow)
        return Spent(replacement(seen, sigma, uses, self.clip, self.schedule), overflow)

    def overflow(self, rate: float, uses: int) -> float:
        """Returns the part of δ that a full batch costs (`fedsink.privacy.accounting.capacity`)."""
        if not self._overflows or self.capacity is None or self.nominal_records is None:
            return 0.0
        visits = uses
        if self.adjacency == REPLACE_ONE and self.schedule.classes > 1:
            visits = 2 * uses  # the rounds of both labels
        return overflow_probability(rate, self.capacity, self.nominal_records, visits)

    def check_overflow(self, rate: float, uses: int, delta: float) -> None:
        """Raises PrivacyError for a capacity so small that already its overflow costs δ."""
        overflow = self.overflow(rate, uses)
        if self.capacity is not None and overflow >= delta:
            raise PrivacyError(
                f"a capacity of {self.capacity} overflows with a probability of up to "
                f"{overflow:.2g}, which exceeds delta={delta:g}: raise the capacity "
                "(capacity_for finds the smallest)."
            )

    def epsilon(
        self, rate: float, sigma: float, uses: int, delta: float, accountant: str = "pld"
    ) -> float:
        """Returns ε(δ) of `uses` uses; infinite where already an overflow costs δ.

        Raises:
            PrivacyError: If a value is out of range, or the accountant has no bound here.
        """
        self._check(rate, accountant)
        if self.before:
            return epsilon_of([*self.before, self.spent(rate, sigma, uses)], delta)
        return self._epsilon(rate, sigma, uses, self._left(rate, uses, delta), accountant)

    def epsilon_unamplified(
        self, rate: float, sigma: float, uses: int, delta: float, accountant: str = "pld"
    ) -> float:
        """Returns ε(δ) without amplification, against an observer who sees the samples.

        A capacity's overflow keeps the probability it has at the true rate.
        """
        self._check(rate, accountant)
        return self._epsilon(1.0, sigma, uses, self._left(rate, uses, delta), accountant)

    def rough_epsilon(
        self, ceiling: float, rate: float, sigma: float, uses: int, delta: float
    ) -> float | None:
        """Returns a rough ε where it is far above a ceiling, in milliseconds; None near it.

        The value serves to refuse a plan, and proves nothing about other plans. "Far" leaves
        room for what Rényi DP and a coarse grid of losses read above ε: up to 5ε + 1/(2σ²) + ½,
        and up to 1.05ε + 0.3.
        """
        delta = self._left(rate, uses, delta)
        if delta <= 0:
            return math.inf
        if self._unsampled(rate):
            exact = poisson_gaussian_epsilon(1.0, self._of_unit(sigma), uses, delta)
            return exact if exact > ceiling else None
        if self._asked_in_secret(rate):
            # Against the bound: whether a part answers costs at most what a change costs.
            sigma *= self.clip.sensitivity / self.clip.bound
        rough = rdp_epsilon(rate, sigma, uses, delta)
        if rough > 5.0 * ceiling + 0.5 / sigma**2 + 0.5:
            return rough
        rough = pld_epsilon_coarse(rate, sigma, uses, delta)  # under replace-one ε is no less
        return rough if rough > 1.05 * ceiling + 0.3 else None

    def quick_bound(self, rate: float, sigma: float, uses: int, delta: float) -> float:
        """Returns the bound by Rényi DP, for a run's progress; infinite where there is none."""
        if self.by_pairs(rate):
            return math.inf
        delta = self._left(rate, uses, delta)
        if delta <= 0:
            return math.inf
        if self._unsampled(rate):
            rate, sigma = 1.0, self._of_unit(sigma)
        return rdp_epsilon(rate, sigma, uses, delta)

    def prv_points(self, rate: float, sigma: float, uses: int, delta: float) -> float:
        """Returns about how many points the accountant prv needs, before it starts."""
        if self._unsampled(rate):
            rate, sigma = 1.0, self._of_unit(sigma)
        return prv_points(rate, sigma, uses, max(self._left(rate, uses, delta), 0.0))

    def _epsilon(
        self, rate: float, sigma: float, uses: int, delta: float, accountant: str
    ) -> float:
        """Returns ε at the δ that a full batch leaves; infinite where it leaves none."""
        if delta <= 0:
            return math.inf
        if self._unsampled(rate):
            return poisson_gaussian_epsilon(1.0, self._of_unit(sigma), uses, delta, accountant)
        if not self.by_pairs(rate):
            return poisson_gaussian_epsilon(rate, sigma, uses, delta, accountant)
        return epsilon_of([Spent(replacement(rate, sigma, uses, self.clip, self.schedule))], delta)

    def _check(self, rate: float, accountant: str) -> None:
        self.clip.check_rate(rate)
        if check_accountant(accountant) not in self.accountants(rate):
            secret = self._asked_in_secret(rate)
            where = "for parts that are asked at a rate below 1" if secret else "under replace-one"
            raise PrivacyError(
                f"the {accountant} accountant has no bound {where}: Rényi accountants know no "
                "dominating pair for it, and PRV accounts only for the remove direction. Use "
                "accountant='pld'."
            )

    def _left(self, rate: float, uses: int, delta: float) -> float:
        """Returns δ less the part that a full batch costs."""
        return checks.failure_probability(delta) - self.overflow(rate, uses)

    @property
    def _by_client(self) -> bool:
        return self.adjacency == CLIENT

    @property
    def _overflows(self) -> bool:
        return self.clip.overflows(self.adjacency, self.capacity)

    def _unsampled(self, rate: float) -> bool:
        """True if the accounting assumes that a unit takes part in every use."""
        return self._by_client or not (self.clip.sampled or self._asked_in_secret(rate))

    def _asked_in_secret(self, rate: float) -> bool:
        """True if the part that holds a unit is asked in a secret part of the rounds."""
        return self.clip.asked_in_secret(rate) and not self._by_client

    def _of_unit(self, sigma: float) -> float:
        """Returns the noise multiplier against all that a unit contributes to one round."""
        checks.positive("sigma", sigma)
        return sigma / self.clip.of_client(self.capacity) if self._by_client else sigma
