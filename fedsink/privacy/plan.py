"""One object that couples sampler, clip, noise and accounting event of the central mode."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fedsink.errors import PrivacyError
from fedsink.privacy import checks
from fedsink.privacy.accounting import poisson_gaussian, poisson_gaussian_epsilon, rdp_epsilon
from fedsink.privacy.calibration import sigma_for, uses_for
from fedsink.privacy.clipping import CLIPS, Clip
from fedsink.privacy.noise import Stream
from fedsink.privacy.sampling import ClassSchedule, JointSchedule, PoissonSampler, Schedule

_CONSISTENT = 1.001  # a stated ε may be exceeded by the rounding of a stated σ
_AS_STATED = 0.99  # a plan that costs less than a stated ε is not the one that was stated
_CURVE_STEP = 1.25


@dataclass(frozen=True)
class PrivacyPlan:
    """What every client runs in every round, and what it costs.

    A client samples each record with probability q (`rate`), clips, and releases
    ``total + N(0, (σ·S)² I)`` where σ is the noise multiplier and S the clip's sensitivity. One
    round is a Poisson-subsampled Gaussian with (q, σ); a record takes part in `uses` of the T
    rounds. Clients hold disjoint records and run identical plans, so the run's ε is one
    client's. Source: Cao et al. 2021, Algorithm 1 (its noise 2Δσ, not Theorem 4.1's Δσ).

    Guarantees:
        - The noise's standard deviation is the multiplier times the sensitivity the clip states.
        - The event has the sampler's rate, the noise's multiplier and the schedule's uses.
        - epsilon_after bounds ε at every round, and ends at epsilon.
        - A solved plan costs at most the ε it was solved for.

    Args:
        rate: q in (0, 1].
        noise_multiplier: σ = noise std / sensitivity, > 0.
        rounds: T ≥ 1.
        clip: `BatchClip` or `RecordClip`.
        schedule: `JointSchedule` or `ClassSchedule`.
        delta: δ in (0, 1).

    Raises:
        PrivacyError: If a value is out of range.
    """

    rate: float
    noise_multiplier: float
    rounds: int
    clip: Clip
    schedule: Schedule
    delta: float

    adjacency: ClassVar[str] = "zero-out/add-remove of one labelled record at one client"
    unit: ClassVar[str] = "record"

    def __post_init__(self) -> None:
        _check_parts(self.clip, self.schedule)
        plain = {
            "rate": checks.probability("rate", self.rate),
            "noise_multiplier": checks.positive("sigma", self.noise_multiplier),
            "rounds": checks.count("rounds", self.rounds),
            "delta": checks.failure_probability(self.delta),
        }
        for name, value in plain.items():  # built-in numbers, so that to_dict is JSON-able
            object.__setattr__(self, name, value)

    @property
    def sampler(self) -> PoissonSampler:
        """The sampler with the rate that is accounted for."""
        return PoissonSampler(self.rate)

    @property
    def uses(self) -> int:
        """In how many of the T rounds one record may take part."""
        return self.schedule.uses(self.rounds)

    @property
    def noise_std(self) -> float:
        """σ·S, the standard deviation of the noise on each released coordinate."""
        return self.noise_multiplier * self.clip.sensitivity

    @property
    def event(self) -> Any:
        """The whole run as a `dp_accounting.DpEvent`."""
        return poisson_gaussian(self.rate, self.noise_multiplier, self.uses)

    def epsilon(self, accountant: str = "pld") -> float:
        """ε of the whole run at the plan's δ, under the plan's adjacency."""
        return self._epsilon_of(self.uses, accountant)

    def epsilon_after(self, rounds: int, accountant: str = "pld") -> float:
        """An upper bound on ε after the first `rounds` rounds, cheap enough for every round.

        The accountant is run on a geometric grid of uses only, and its value at the next grid
        point bounds the points before it; the RDP bound fills the gaps. PRV, which takes too long
        for that, is run for the last round alone.

        Raises:
            PrivacyError: If `rounds` is not in 0, ..., T.
        """
        checks.count("rounds", rounds, minimum=0)
        if rounds > self.rounds:
            raise PrivacyError(
                f"the plan covers {self.rounds} rounds, received rounds={rounds}: "
                "make a plan for more rounds."
            )
        uses = self.schedule.uses(rounds)
        if uses == 0:
            return 0.0
        if accountant == "rdp" or uses == self.uses:
            return self._epsilon_of(uses, accountant)
        rdp = rdp_epsilon(self.rate, self.noise_multiplier, uses, self.delta)
        if accountant == "prv":
            return rdp
        exponent = math.ceil(math.log(uses) / math.log(_CURVE_STEP) - 1e-9)
        grid_point = min(self.uses, max(uses, math.ceil(_CURVE_STEP**exponent)))
        return min(self._epsilon_of(grid_point, accountant), rdp)

    def release(self, total: torch.Tensor, stream: Stream) -> torch.Tensor:
        """`total` + N(0, noise_std² I) in float64, returned as float32 on the same device.

        Guarantees:
            - Every coordinate gets independent noise of the plan's standard deviation.
            - Nothing is released where the total is not finite.

        Args:
            total: The clipped gradient (batch clip) or the sum of clipped contributions
                (record clip), of any shape.
            stream: A stream for this client and round alone; never one used before.

        Raises:
            PrivacyError: If the total holds a non-finite entry; it was not clipped.
        """
        if not bool(torch.isfinite(total).all()):
            raise PrivacyError("the total to release is not finite: clip it before releasing.")
        noise = stream.normal(*total.shape).to(total.device)
        return (total.to(torch.float64) + self.noise_std * noise).to(torch.float32)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-able values; `from_dict` gives the same plan back."""
        return {
            "rate": self.rate,
            "noise_multiplier": self.noise_multiplier,
            "rounds": self.rounds,
            "clip": {"name": self.clip.name, "bound": self.clip.bound},
            "schedule": {"name": self.schedule.name, "classes": self.schedule.classes},
            "delta": self.delta,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PrivacyPlan:
        """The plan written by `to_dict`. Raises PrivacyError for a missing or unknown entry."""
        try:
            clip, schedule = values["clip"], values["schedule"]
            return cls(
                rate=values["rate"],
                noise_multiplier=values["noise_multiplier"],
                rounds=values["rounds"],
                clip=CLIPS[clip["name"]](clip["bound"]),
                schedule=_schedule(schedule["name"], schedule["classes"]),
                delta=values["delta"],
            )
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
        schedule: Schedule,
        delta: float,
        eps: float | None = None,
        sigma: float | None = None,
        rounds: int | None = None,
        accountant: str = "pld",
    ) -> PrivacyPlan:
        """A plan from any two of (eps, sigma, rounds), or from all three if they agree within 1 %.

        Args:
            rate: q in (0, 1].
            clip: `BatchClip` or `RecordClip`.
            schedule: `JointSchedule` or `ClassSchedule`.
            delta: δ in (0, 1).
            eps: Target ε of the whole run; the plan costs at most this much.
            sigma: Noise multiplier; never rounded down where it is solved for.
            rounds: T; where it is solved for, the largest that fits (within 1e-3).
            accountant: ``"pld"``, ``"prv"`` or ``"rdp"``.

        Raises:
            PrivacyError: If fewer than two are given, a value is out of range, or three disagree.
        """
        _check_parts(clip, schedule)
        stated = None not in (eps, sigma, rounds)
        if sigma is None:
            if eps is None or rounds is None:
                raise PrivacyError(_two_of_three(eps, sigma, rounds))
            checks.count("rounds", rounds)
            sigma = sigma_for(
                eps, rate=rate, uses=schedule.uses(rounds), delta=delta, accountant=accountant
            )
        elif rounds is None:
            if eps is None:
                raise PrivacyError(_two_of_three(eps, sigma, rounds))
            uses = uses_for(eps, rate=rate, sigma=sigma, delta=delta, accountant=accountant)
            rounds = schedule.rounds_within(uses)
        plan = cls(rate, sigma, rounds, clip, schedule, delta)
        if eps is not None:
            checks.positive("eps", eps)
            implied = plan.epsilon(accountant)
            if implied > eps * _CONSISTENT or (stated and implied < eps * _AS_STATED):
                raise PrivacyError(
                    f"sigma={sigma:g} and rounds={rounds} at rate={rate:g} cost ε = {implied:.4g}, "
                    f"not eps={eps:g}: leave one of the three out."
                )
        return plan

    def _epsilon_of(self, uses: int, accountant: str) -> float:
        return poisson_gaussian_epsilon(
            self.rate, self.noise_multiplier, uses, self.delta, accountant
        )


def _schedule(name: str, classes: int) -> Schedule:
    if name == JointSchedule.name:
        return JointSchedule()
    if name == ClassSchedule.name:
        return ClassSchedule(classes)
    raise KeyError(name)


def _check_parts(clip: object, schedule: object) -> None:
    if not isinstance(clip, Clip):
        raise PrivacyError(f"clip must be a BatchClip or a RecordClip, received {clip!r}.")
    if not isinstance(schedule, Schedule):
        raise PrivacyError(
            f"schedule must be a JointSchedule or a ClassSchedule, received {schedule!r}."
        )


def _two_of_three(eps: float | None, sigma: float | None, rounds: int | None) -> str:
    return (
        "two of eps, sigma and rounds are needed to solve for the third, received "
        f"eps={eps}, sigma={sigma}, rounds={rounds}: give one more."
    )
