"""The plan of the central mode couples sampler, clip, noise and accounting event in one object.

The plan is for the server that starts a run and for the nodes that answer it: all read σ and ε
from one plan, so all added noise is accounted for. `PrivacyPlan.solve` is the entry point:
any two of ε, σ and rounds give the third. `UnprotectedPlan` is for ceilings on public data.

>>> from fedsink.privacy import ClassSchedule, RecordClip, Stream
>>> plan = PrivacyPlan.solve(
...     rate=0.2, clip=RecordClip(8.0), schedule=ClassSchedule(10), delta=1e-5, eps=10, rounds=3000
... )
>>> print(f"σ = {plan.noise_multiplier:.3f}, ε = {plan.epsilon():.2f}: {plan.adjacency_words}")
σ = 1.900, ε = 10.00: zero-out/add-remove of one labelled record at one client
>>> print(f"{plan.uses} rounds a record; ε = {plan.epsilon_unamplified():.1f} without sampling")
300 rounds a record; ε = 79.6 without sampling

In every round a client clips and sums, and releases its total through the plan:

>>> clipped = plan.clip.sum(torch.ones(5, 2, 3))
>>> plan.release(clipped, Stream(b"key", "noise", 1)).shape
torch.Size([2, 3])

`PrivacyPlan.steps` does this for a loop of one's own (`fedsink.privacy.steps`).

`fedsink.privacy.accounting.cost` computes ε from (q, σ, T) under each adjacency.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from fedsink.errors import PrivacyError
from fedsink.privacy import domain
from fedsink.privacy.accounting.accountants import check_accountant
from fedsink.privacy.accounting.calibration import sigma_for, uses_for
from fedsink.privacy.accounting.composition import Spent, epsilon_of
from fedsink.privacy.accounting.cost import Cost
from fedsink.privacy.adjacency import ADD_REMOVE, describe, unit_of
from fedsink.privacy.clips import CLIPS, UNREACHED, Clip, Clipped, clip_from_dict, clipped_by
from fedsink.privacy.randomness.noise import Several, Stream, add_gaussian_each
from fedsink.privacy.sampling import (
    SCHEDULES,
    JointSchedule,
    PoissonSampler,
    Schedule,
    schedule_from_dict,
)
from fedsink.values import privacy_checks as checks

if TYPE_CHECKING:
    from fedsink.privacy.steps import NoiseKey, Step

JOINT = JointSchedule()
_CONSISTENT = 1.001  # a stated ε may be exceeded by the rounding of a stated σ
_AS_STATED = 0.99  # a plan that costs less than a stated ε is not the one that was stated
_CURVE_STEP = 1.25  # from one number of uses that `epsilon_after` prices exactly to the next


@dataclass(frozen=True)
class PrivacyPlan:
    """The rounds that every client runs, and their cost.

    A client samples each record with probability q (`rate`), clips, and releases
    ``total + N(0, (σ·S)² I)`` where σ is the noise multiplier and S the clip's sensitivity: 2Δ for
    a batch's gradient, Δ for a record's contribution. One round is a Poisson-subsampled Gaussian
    with (q, σ); a record takes part in `uses` of the T rounds. Clients hold disjoint records and
    run identical plans, so the run's ε is one client's. Source: Cao et al. 2021, Algorithm 1 (its
    noise 2Δσ, not the Δσ of their Theorem 4.1).

    A clip may sample no records; q is then the probability with which each part of a client's
    records is asked (see `fedsink.privacy.clips`).

    The guarantee needs the sample to stay secret; otherwise only `epsilon_unamplified` is left.

    Guarantees:
        - The noise's standard deviation is the multiplier times the sensitivity the clip states.
        - Every coordinate gets independent noise of that standard deviation.
        - Nothing is released where the total is not finite.
        - The event has the sampler's rate, the noise's multiplier and the schedule's uses; that of
          a clip that samples no records is unsampled, whatever the rate.
        - Under the client adjacency the event is unsampled and counts every round that the client
          answers.
        - ε is stated under the plan's adjacency, and each adjacency has its own ε. Only with a clip
          that samples no records do add-remove, replace-one and user cost the same.
        - Where a full batch can change a record's effect, its probability is taken out of δ.
        - epsilon_after bounds ε at every round, and ends at epsilon; epsilon_bound_after bounds it
          too, and ends at epsilon.
        - A solved plan costs at most the ε it was solved for.

    Args:
        rate: q in (0, 1].
        noise_multiplier: σ = noise std / sensitivity, > 0.
        rounds: T ≥ 1.
        clip: one of `fedsink.privacy.clips.CLIPS`.
        schedule: one of `fedsink.privacy.sampling.SCHEDULES`.
        delta: δ in (0, 1).
        adjacency: one of `fedsink.privacy.ADJACENCIES`.
        capacity: B ≥ 1: at most B sampled records take part; None: all of them.
        nominal_records: N ≥ 1, public: no client takes part with more records. Needed where a
            capacity meets the record clip.

    Raises:
        PrivacyError: If a value is out of range or outside the public domain
            (`fedsink.privacy.domain`), or the adjacency has no guarantee here.
    """

    rate: float
    noise_multiplier: float
    rounds: int
    clip: Clip
    schedule: Schedule
    delta: float
    adjacency: str = ADD_REMOVE
    capacity: int | None = None
    nominal_records: int | None = None

    protected: ClassVar[Literal[True]] = True
    mechanism: ClassVar[str] = "gaussian"  # its name among the configuration's mechanisms

    def __post_init__(self) -> None:
        cost = self.cost
        self.clip.check_own()
        domain.CLIP_BOUND.check(self.clip.bound)
        plain = {
            "rate": self.clip.check_rate(self.rate),
            "noise_multiplier": domain.NOISE_MULTIPLIER.check(
                checks.positive("sigma", self.noise_multiplier)
            ),
            "rounds": domain.ROUNDS.check_count(checks.count("rounds", self.rounds)),
            "delta": checks.failure_probability(self.delta),
            "capacity": cost.capacity,
            "nominal_records": cost.nominal_records,
        }
        for name, value in plain.items():  # built-in numbers, so that to_dict is JSON-able
            object.__setattr__(self, name, value)

    @property
    def cost(self) -> Cost:
        """ε as a function of rate, σ, uses and δ under this plan's clip, schedule and adjacency."""
        return Cost(self.clip, self.schedule, self.adjacency, self.capacity, self.nominal_records)

    @property
    def unit(self) -> str:
        """The unit that is protected: ``"record"``, ``"user"`` or ``"client"``."""
        return unit_of(self.adjacency)

    @property
    def published(self) -> bool:
        """True if clip or schedule are for comparison with published work."""
        return self.clip.published or self.schedule.published

    @property
    def adjacency_words(self) -> str:
        """The difference of two neighbouring data sets in words, to be printed beside ε."""
        return describe(self.adjacency)

    @property
    def sampler(self) -> PoissonSampler:
        """The sampler with the rate that is accounted for."""
        return PoissonSampler(self.rate)

    @property
    def uses(self) -> int:
        """Number of the T rounds in which one record may take part."""
        return self.schedule.uses(self.rounds)

    @property
    def sensitivity(self) -> float:
        """S in L2, as the clip states it."""
        return self.clip.sensitivity

    @property
    def noise_std(self) -> float:
        """σ·S, the standard deviation of the noise on each released coordinate."""
        return self.noise_multiplier * self.sensitivity

    def _step(self, rounds: int) -> tuple[float, float, int, float]:
        """Returns (q, σ, uses of one unit in the first rounds, δ), as `Cost` takes them."""
        return self.rate, self.noise_multiplier, self.cost.uses(rounds), self.delta

    @property
    def event(self) -> Any:
        """The whole run as a `dp_accounting.DpEvent`, to be read under the plan's adjacency."""
        cost = self.cost
        return cost.event(self.rate, self.noise_multiplier, cost.uses(self.rounds))

    def spent(self, amplified: bool = True) -> Spent:
        """Returns what the whole run spends, to be composed with what other plans do."""
        return self.cost.spent(*self._step(self.rounds)[:3], amplified)

    @property
    def overflow(self) -> float:
        """The part of δ that a full batch costs; 0 without a capacity or with the batch clip."""
        return self.cost.overflow(self.rate, self.cost.uses(self.rounds))

    def epsilon(self, accountant: str = "pld") -> float:
        """Returns ε of the whole run at the plan's δ, under the plan's adjacency.

        Raises:
            PrivacyError: If the accountant has no bound under the adjacency, or the capacity is
                so small that already its overflow costs δ.
        """
        self.cost.check_overflow(self.rate, self.cost.uses(self.rounds), self.delta)
        return self.cost.epsilon(*self._step(self.rounds), accountant)

    def rough_epsilon(self, ceiling: float) -> float | None:
        """Returns a rough ε where it is far above a ceiling, in milliseconds; None near it."""
        return self.cost.rough_epsilon(ceiling, *self._step(self.rounds))

    def epsilon_unamplified(self, accountant: str = "pld") -> float:
        """Returns ε of the same uses of the unsampled Gaussian.

        This ε remains against an adversary who learns which records were sampled, for example from
        the size or the running time of a batch without a fixed capacity.
        """
        self.cost.check_overflow(self.rate, self.cost.uses(self.rounds), self.delta)
        return self.cost.epsilon_unamplified(*self._step(self.rounds), accountant)

    def epsilon_after(self, rounds: int, accountant: str = "pld") -> float:
        """Returns an upper bound on ε after the first rounds, cheap enough for every round.

        The accountant is run only on a geometric grid of uses, and its value at the next grid
        point bounds the points before it; the RDP bound fills the gaps where there is one. PRV,
        which takes too long for that, is run only for the last round.
        """
        checks.count("rounds", rounds, minimum=0)
        if rounds > self.rounds:
            raise PrivacyError(
                f"the plan covers {self.rounds} rounds, received rounds={rounds}: "
                "make a plan for more rounds."
            )
        cost = self.cost
        uses, all_uses = cost.uses(rounds), cost.uses(self.rounds)
        if uses == 0:
            return 0.0
        if uses == all_uses:
            return self.epsilon(accountant)

        def exactly(some: int) -> float:
            return cost.epsilon(self.rate, self.noise_multiplier, some, self.delta, accountant)

        if check_accountant(accountant).startswith("rdp"):
            return exactly(uses)
        filled = cost.quick_bound(*self._step(rounds))
        if accountant == "prv":
            return filled
        exponent = math.ceil(math.log(uses) / math.log(_CURVE_STEP) - 1e-9)
        grid_point = min(all_uses, max(uses, math.ceil(_CURVE_STEP**exponent)))
        return min(exactly(grid_point), filled)

    def epsilon_bound_after(self, rounds: int, accountant: str = "pld") -> float:
        """Returns an upper bound on ε after the first rounds at no cost, for a run's progress.

        Before the last round it is the lesser of the Rényi bound and the whole run's ε. After the
        last round, and where Rényi DP has no bound, it is `epsilon_after`.
        """
        left = checks.count("rounds", rounds, minimum=0) < self.rounds
        if left and rounds and not self.cost.by_pairs(self.rate):
            return min(self.cost.quick_bound(*self._step(rounds)), self.epsilon(accountant))
        return self.epsilon_after(rounds, accountant)

    def with_noise(self, variance: float) -> PrivacyPlan:
        """Returns this plan with its noise's variance times `variance`: σ·√variance."""
        if variance == 1:
            return self
        return replace(self, noise_multiplier=self.noise_multiplier * math.sqrt(variance))

    def release(self, total: Clipped, stream: Stream) -> torch.Tensor:
        """Returns the clipped total + N(0, noise_std² I) in float64, as float32 on the same device.

        Args:
            total: what the plan's clip made of a round's gradients.
            stream: a stream for only this client and round; never one used before.

        Raises:
            PrivacyError: If the total is none of this clip's, or holds a non-finite entry.
        """
        return stream.add_gaussian(clipped_by(self.clip, total), self.noise_std)

    def release_each(self, totals: Clipped, streams: Several) -> torch.Tensor:
        """Returns the releases of several totals, (k, ...), each by its own stream; all or none."""
        return add_gaussian_each(streams, clipped_by(self.clip, totals), self.noise_std)

    def release_sum(self, total: Clipped, noise: Stream | None, clients: int = 0) -> torch.Tensor:
        """Returns a sum of totals with the noise of as many clients, drawn once, or none of it.

        m Gaussians of one size are one of √m times the size. For simulations, which show nobody a
        part of the sum.

        Args:
            total: sum of the totals of some of the clients, (...).
            noise: a stream for only this sum; None: another part of it carries the noise.
            clients: m, number of clients of the whole sum.
        """
        values = clipped_by(self.clip, total)
        if noise is None:
            return values.to(torch.float32)
        return noise.add_gaussian(values, math.sqrt(clients) * self.noise_std)

    def steps(self, key: NoiseKey, client: int = 0, after: int = 0) -> Iterator[Step]:
        """Yields the plan's rounds after the first `after` ones, for a loop of one's own.

        Each `Step` gives the secret sample of one round, and releases one clipped total of it. All
        records take part in every round, as a joint schedule has it.

        Args:
            key: the key of samples and noise; it gives each round of a client once.
            client: number of the client whose records these are, where several share the key.
            after: number of rounds that the key has released for this client before.

        Raises:
            PrivacyError: If the schedule is not joint, the clip samples no records, the key has
                released other rounds, or, in the loop, a round was left without its release.
        """
        if not self.clip.sampled:
            raise PrivacyError(
                f"a loop of one's own samples records, and {type(self.clip).__name__} samples "
                "none: take RecordClip or BatchClip."
            )
        if not isinstance(self.schedule, JointSchedule):
            raise PrivacyError(
                f"a loop of one's own has a joint schedule, received {self.schedule.name}: its "
                "rounds differ in the records that take part."
            )
        from fedsink.privacy.steps import steps

        return steps(self, key, client, after)

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as JSON-able values; `from_dict` gives the same plan back."""
        return {**vars(self), "clip": self.clip.to_dict(), "schedule": self.schedule.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PrivacyPlan:
        """Returns the plan written by `to_dict`; raises PrivacyError for any other entries."""
        _refuse_other_entries(values, [field.name for field in fields(cls)])
        try:
            clip, schedule = clip_from_dict(values["clip"]), schedule_from_dict(values["schedule"])
            return cls(**{**values, "clip": clip, "schedule": schedule})
        except KeyError as missing:
            raise PrivacyError(
                f"the plan's entry {missing} is missing or unknown: use PrivacyPlan.to_dict."
            ) from None
        except TypeError:
            raise PrivacyError(
                "the plan's clip and schedule must be tables with a name each: "
                "use PrivacyPlan.to_dict."
            ) from None

    @classmethod
    def solve(
        cls,
        *,
        rate: float,
        clip: Clip,
        delta: float,
        schedule: Schedule = JOINT,
        eps: float | None = None,
        sigma: float | None = None,
        rounds: int | None = None,
        accountant: str = "pld",
        adjacency: str = ADD_REMOVE,
        capacity: int | None = None,
        nominal_records: int | None = None,
        before: Sequence[PrivacyPlan] = (),
    ) -> PrivacyPlan:
        """Returns a plan from any two of (eps, sigma, rounds), or from all three if they agree.

        Three agree where the plan costs at least 99 % and at most 100.1 % of eps.

        Args:
            rate: q in (0, 1].
            clip: as in the plan.
            delta: δ in (0, 1).
            schedule: as in the plan; joint: every record may take part in every round.
            eps: target ε of the whole run under `adjacency`; a plan that is solved for costs at
                most this much.
            sigma: noise multiplier; never rounded down where it is solved for.
            rounds: T; where it is solved for, the largest that fits (within 1e-3), up to 10⁷.
            accountant: one of `ACCOUNTANTS`; under replace-one only ``"pld"``.
            adjacency: as in the plan.
            capacity: as in the plan.
            nominal_records: as in the plan.
            before: earlier plans on the same records, of the same δ and adjacency: `eps` is then
                the total of all (`composed_epsilon`).

        Raises:
            PrivacyError: If fewer than two are given, a value is out of range, three disagree, or
                σ is left out and δ alone would pay (see `sigma_for`), or nothing but ε = 0 fits.
        """
        _check_alike(before, delta, adjacency)
        spent = tuple(earlier.spent() for earlier in before)
        if spent and eps is not None and (paid := epsilon_of(spent, delta)) >= eps:
            raise PrivacyError(
                f"earlier plans on these records have spent ε = {paid:.4g} of the total eps="
                f"{eps:g}, which leaves nothing: raise eps."
            )
        cost = Cost(clip, schedule, adjacency, capacity, nominal_records, spent)
        all_three, solved = None not in (eps, sigma, rounds), sigma is None
        how: dict[str, Any] = {"delta": delta, "accountant": accountant, "cost": cost}
        if sigma is None and eps is not None and rounds is not None:
            uses = cost.uses(checks.count("rounds", rounds))
            sigma = sigma_for(eps, rate=rate, uses=uses, **how)
        elif rounds is None and eps is not None and sigma is not None:
            most = cost.rounds_within(uses_for(eps, rate=rate, sigma=sigma, **how))
            rounds = min(most, int(domain.ROUNDS.high))
        elif sigma is None or rounds is None:
            raise PrivacyError(
                "two of eps, sigma and rounds are needed to solve for the third, received "
                f"eps={eps}, sigma={sigma}, rounds={rounds}: give one more."
            )
        plan = cls(rate, sigma, rounds, clip, schedule, delta, adjacency, capacity, nominal_records)
        if eps is not None:
            checks.positive("eps", eps)
            cost.check_overflow(plan.rate, plan.cost.uses(plan.rounds), delta)
            implied = cost.epsilon(*plan._step(plan.rounds), accountant)
            if solved and implied == 0.0:
                raise PrivacyError(
                    f"eps={eps:g} cannot be told from 0 at delta={delta:g}: ask for a larger eps, "
                    "or for a smaller delta."
                )
            if implied > eps * _CONSISTENT or (all_three and implied < eps * _AS_STATED):
                raise PrivacyError(
                    f"sigma={sigma:g} and rounds={rounds} at rate={rate:g} cost ε = {implied:.4g}, "
                    f"not eps={eps:g}: leave one of the three out."
                )
        return plan


def composed_epsilon(plans: Sequence[PrivacyPlan], *, amplified: bool = True) -> float:
    """Returns ε of several plans on the same records, by privacy loss distributions.

    It holds where each plan was fixed without looking at what the others released: a total of
    privacy loss distributions is no filter (Rogers, Roth, Ullman, Vadhan 2016).

    Args:
        plans: one or more, of one δ and adjacency.
        amplified: False counts every use as if everybody saw who was sampled.

    >>> from fedsink.privacy import RecordClip
    >>> half = PrivacyPlan(1.0, 2.0, 2, RecordClip(1.0), JOINT, 1e-5)
    >>> whole = PrivacyPlan(1.0, 2.0, 4, RecordClip(1.0), JOINT, 1e-5)
    >>> math.isclose(composed_epsilon([half, half]), whole.epsilon())
    True

    Raises:
        PrivacyError: If δ or the adjacencies differ.
    """
    last = plans[-1]
    _check_alike(plans, last.delta, last.adjacency)
    return epsilon_of([plan.spent(amplified) for plan in plans], last.delta)


def _check_alike(plans: Sequence[PrivacyPlan], delta: float, adjacency: str) -> None:
    """Refuses earlier plans of another δ or adjacency."""
    for plan in plans:
        for name, theirs, ours in (
            ("adjacency", plan.adjacency, adjacency), ("delta", plan.delta, delta),
        ):  # fmt: skip
            if theirs != ours:
                raise PrivacyError(
                    f"an earlier plan on these records has {name}={theirs}, and this one {ours}: "
                    "one total of loss distributions needs the same."
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
        domain.check_records(self, "capacity", "nominal_records")

    @property
    def clip(self) -> Clip:
        """The clip of this kind, with a bound that no gradient reaches."""
        return CLIPS[self.kind](UNREACHED)

    @property
    def sampler(self) -> PoissonSampler:
        return PoissonSampler(self.rate)

    @property
    def uses(self) -> int:
        return self.schedule.uses(self.rounds)

    def epsilon(self, accountant: str = "pld") -> float:
        """Returns ∞, whatever the accountant."""
        return math.inf

    def epsilon_after(self, rounds: int, accountant: str = "pld") -> float:
        """Returns ∞ after any round; 0 before the first."""
        return math.inf if checks.count("rounds", rounds, minimum=0) else 0.0

    epsilon_bound_after = epsilon_after

    def with_noise(self, variance: float) -> UnprotectedPlan:
        """Returns this plan: there is no noise to scale."""
        return self

    def release(self, total: Clipped, stream: Stream) -> torch.Tensor:
        """Returns the total itself, as float32."""
        return total.total.to(torch.float32)

    def release_each(self, totals: Clipped, streams: Several) -> torch.Tensor:
        """Returns the totals of several clients themselves, as float32."""
        return totals.total.to(torch.float32)

    def release_sum(self, total: Clipped, noise: Stream | None, clients: int = 0) -> torch.Tensor:
        """Returns the sum of totals itself, as float32."""
        return total.total.to(torch.float32)

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as JSON-able values; `from_dict` gives the same plan back."""
        return {"unprotected": True, **vars(self), "schedule": self.schedule.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> UnprotectedPlan:
        """Returns the plan written by `to_dict`; raises PrivacyError for any other entries."""
        names = [field.name for field in fields(cls)]
        _refuse_other_entries(values, ["unprotected", *names])
        try:
            schedule = schedule_from_dict(values["schedule"])
            return cls(**{**{name: values[name] for name in names}, "schedule": schedule})
        except (KeyError, TypeError) as error:
            raise PrivacyError(
                f"the plan's entry {error} is missing or unknown: use UnprotectedPlan.to_dict."
            ) from None


CentralPlan = PrivacyPlan | UnprotectedPlan


def plan_from_dict(values: Mapping[str, Any]) -> CentralPlan:
    """Returns the plan written by either `to_dict`; raises PrivacyError for any other table."""
    kind = UnprotectedPlan if "unprotected" in values else PrivacyPlan
    return kind.from_dict(values)


def _refuse_other_entries(values: object, names: Iterable[str]) -> None:
    """Raises PrivacyError unless a plan's table has exactly these entries."""
    if not isinstance(values, Mapping):
        raise PrivacyError(f"a plan is a table, as its to_dict writes it, not {values!r}.")
    if other := sorted(map(str, set(values) ^ set(names))):
        raise PrivacyError(
            f"the plan's entry {other[0]!r} is missing or unknown: use the plan's to_dict."
        )
