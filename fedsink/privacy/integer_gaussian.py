r"""The mechanism of a shared noise: rounded totals, discrete Gaussian noise, a sum modulo 2^b.

Each client of a cohort of m rounds its total to integers (`FixedPoint`), adds a discrete Gaussian
of scale s and reduces modulo 2^b; the integers are added up. With t′ the number of parts that a
sum must have, S the clip's sensitivity and d the number of values of one round,

    Δ = S/γ + √d,   s² = σ²Δ²/t′ + η²,   η = 3.

Why a run costs the ε of its plan, of continuous Gaussians of multiplier σ:

1. *Sensitivity.* One unit moves one client's total by S in L2. Projecting on a ball moves nothing
   apart; rounding changes the difference by at most 1 a coordinate, so by √d in L2. Hence Δ.
   Where it is secret who was asked, the pair of ε has means at ±C, S = 2C: an answer moves the
   total by C or by nothing, and either record's answer is rounded beside none. So each may be as
   long as C/γ + √d, and Δ = 2(C/γ + √d).
2. *A sum of parts.* Let N(v) be the law on Z with P(x) ∝ exp(−x²/(2v)). For u = v₁v₂/(v₁+v₂), the
   convolution of N(v₁) and N(v₂) at z is ∝ exp(−z²/(2(v₁+v₂)))·Σ_x exp(−(x − c_z)²/(2u)), and the
   sum is √(2πu)·(1 ± e), e = 2Σ_{k≥1} exp(−2π²uk²), for every c_z (Poisson summation). With both
   normalisers it is within a factor (1+e)/(1−e) of N(v₁+v₂), pointwise. Adding parts one by one
   has u = s²k/(k+1), and a factor that one sum has, its convolution has too. So t′ parts are
   within exp(±τ) a coordinate of N(t′s²), with
   τ = 10·Σ_{k<t′} exp(−2π²s²k/(k+1)) ≤ 10·(t′−1)·exp(−π²s²)
   (Kairouz, Liu, Steinke 2021, Proposition 14). More parts than t′ are independent noise on top:
   post-processing.
3. *A continuous Gaussian below it.* Draw G from the continuous N(0, w − η²), then an integer with
   P(x | G) ∝ exp(−(x − G)²/(2η²)). As the normaliser of the second law is √(2π)·η·(1 ± e) for
   every G, e = 2Σ_{k≥1} exp(−2π²η²k²), x is within exp(±ρ) of N(w), ρ = log((1+e)/(1−e))
   (Peikert 2010, Theorem 3.1). The second step commutes with integer shifts: it is
   post-processing of "integers + G". For w = t′s² the standard deviation of G is
   √(t′s² − η²) = √(σ²Δ² + (t′−1)η²) ≥ σΔ: a Gaussian of multiplier at least σ.
4. *All together.* The integers that a use releases are pointwise within exp(±κ), κ = d(τ + ρ), of
   post-processing of that Gaussian, whatever the totals are. So they are for any mixture over
   samples, and the joint law of all uses U is within exp(±Uκ) of a run that is (ε, δ)-private.
   The run is private with ε + 2Uκ and δ·exp(Uκ). Reducing modulo 2^b is post-processing too: sums
   that do not fit cost utility, and no privacy.

2Uκ is the `divergence`; it is below 10⁻⁵⁰ for any run of a size that has ever been played. A
mechanism with more than 10⁻⁹ is refused, and what is left is added to ε. Of a reply by itself the
multiplier is √(s² − η²)/Δ = σ/√t′, by step 3; of k parts at least σ√(k/t′).

>>> from fedsink.privacy import ClassSchedule, PrivacyPlan, RecordClip
>>> plan = PrivacyPlan(0.2, 2.15, 300, RecordClip(8.0), ClassSchedule(10), 1e-5)
>>> one = IntegerGaussian.finest(plan, [100], size=9900, bits=32, radius=400.0)
>>> one.fixed_point.granularity, round(one.sensitivity / (8.0 / one.fixed_point.granularity), 4)
(3.0517578125e-05, 1.0004)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from fedsink.errors import PrivacyError
from fedsink.privacy import domain
from fedsink.privacy.clips import Clipped, clip_to_norm, clipped_by, refuse_infinite
from fedsink.privacy.plan import PrivacyPlan
from fedsink.privacy.randomness.noise import SMOOTHING, Several, Stream, integers_each
from fedsink.values import privacy_checks as checks

GRANULARITY = domain.Interval("the granularity γ", 2.0**-100, 2.0**60)
RADIUS = domain.Interval("the radius R", 2.0**-60, 2.0**100)
FEWEST_BITS, MOST_BITS = 16, 60
MOST_DIVERGENCE = 1e-9
_TAIL = 12.0  # standard deviations of a sum's noise for which b bits have room
_USEFUL = 2.0**-30  # a finer granularity than this part of S/√d makes no noise smaller


@dataclass(frozen=True)
class FixedPoint:
    """Public numbers that turn a client's total into integers of Z modulo 2^b, and sums back.

    >>> grid = FixedPoint(granularity=0.25, bits=16, radius=2.0)
    >>> grid.rounded(torch.tensor([[0.3, -0.9]]))
    tensor([[ 1, -4]])
    >>> grid.decoded(torch.tensor([2**16 - 4, 32767 + 32767]))
    tensor([-1.0000, -0.5000], dtype=torch.float64)

    Integers modulo 2^b are written centred: from −2^(b−1) to 2^(b−1) − 1. They add up exactly in
    any order. γ is a power of two, so that dividing by it and multiplying with it round nothing.

    Guarantees:
        - Totals that are S apart in L2 have integers that are at most S/γ + √d apart, for d values.
        - The integers of a total lie within ±(R/γ + ½).
        - A total within R·(1 − 2⁻²⁰) loses at most γ/2 a value.
        - The decoded sum is that of the integers where it fits into b bits.
    """

    granularity: float  # γ, in units of the total
    bits: int  # b, from 16 to 60
    radius: float  # R: a longer total is projected on this ball, which moves no two totals apart

    def __post_init__(self) -> None:
        object.__setattr__(self, "granularity", GRANULARITY.check(self.granularity))
        object.__setattr__(self, "radius", RADIUS.check(self.radius))
        object.__setattr__(self, "bits", check_bits(self.bits))
        if math.frexp(self.granularity)[0] != 0.5:
            raise PrivacyError(
                f"the granularity γ must be a power of two, received {self.granularity!r}."
            )
        if self.radius / self.granularity >= self.half:
            raise PrivacyError(
                f"integers up to R/γ = {self.radius / self.granularity:.4g} do not fit into "
                f"{self.bits} bits: raise the granularity, or noise.bits."
            )

    @property
    def half(self) -> int:
        """2^(b−1), half of the modulus."""
        return 1 << (self.bits - 1)

    def rounded(self, totals: torch.Tensor) -> torch.Tensor:
        """Returns the nearest integers to projected totals over γ, (k, ...) int64."""
        refuse_infinite(totals)
        projected = clip_to_norm(totals.to(torch.float64).unsqueeze(-1).flatten(1), self.radius)
        return self.nearest(projected).reshape(totals.shape)

    def nearest(self, values: torch.Tensor) -> torch.Tensor:
        """Returns the nearest integers to values over γ, int64; nothing is projected."""
        refuse_infinite(values)
        return (values.to(torch.float64) / self.granularity).round().to(torch.int64)

    def wrapped(self, integers: torch.Tensor) -> torch.Tensor:
        """Returns integers modulo 2^b, centred; overflown int64 is right, for 2^b | 2^64."""
        return ((integers + self.half) & (2 * self.half - 1)) - self.half

    def decoded(self, integers: torch.Tensor) -> torch.Tensor:
        """Returns the value of a sum of integers in units of the totals, float64."""
        return self.wrapped(integers).to(torch.float64) * self.granularity

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON-able form, which `from_dict` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | None) -> FixedPoint | None:
        """Reads what `to_dict` wrote; None stands for none. Raises TypeError or PrivacyError."""
        return None if values is None else cls(**values)


def check_bits(bits: object) -> int:
    """Returns b as an int; raises PrivacyError unless it is a whole number from 16 to 60."""
    number = checks.count("noise.bits", bits)
    if not FEWEST_BITS <= number <= MOST_BITS:
        raise PrivacyError(
            f"noise.bits must be a whole number from {FEWEST_BITS} to {MOST_BITS}, not {bits!r}."
        )
    return number


@dataclass(frozen=True)
class IntegerGaussian:
    """One part of the noise of a plan on integers, and the sum that it belongs to.

    Guarantees:
        - The integers of a sum of t′ replies have at least the plan's multiplier, rounding
          included, and a reply by itself σ/√t′.
        - The variances of t′ parts, less what smooths them, add up to the plan's.
        - Every value gets independent noise.
        - Nothing is released where a total is not finite.
        - What separates the sum from a Gaussian of the plan is computed, bounded and stated.
    """

    plan: PrivacyPlan  # of the sum
    parts: int  # t′ ≥ 1, the number of parts that carry the plan's noise
    fixed_point: FixedPoint
    size: int  # d ≥ 1, number of values of one round

    def __post_init__(self) -> None:
        checks.count("parts", self.parts)
        checks.count("size", self.size)
        if not _TAIL * self.scale < self.fixed_point.half:
            raise PrivacyError(
                f"noise of standard deviation {self.scale:.4g} does not fit into noise.bits="
                f"{self.fixed_point.bits}: raise the granularity, or noise.bits."
            )
        if not self.divergence <= MOST_DIVERGENCE:
            raise PrivacyError(
                f"noise shared by {self.parts} clients costs ε = {self.divergence:.3g} beside "
                f"that of its plan, where {MOST_DIVERGENCE:g} is the most: share it among fewer."
            )

    @classmethod
    def finest(
        cls,
        plan: PrivacyPlan,
        cohorts: Sequence[int],
        *,
        size: int,
        bits: int,
        radius: float,
        tolerate_dropouts: int = 0,
    ) -> IntegerGaussian:
        """Returns the mechanism with the finest γ of which the largest sum fits into b bits.

        γ is the least power of two, from S·2⁻³⁰/√d on, with m·(R/γ + ½) + 12·√m·s < 2^(b−1) for
        every cohort size m, increasing, and t′ = m − `tolerate_dropouts`. Raises PrivacyError where
        b bits leave room only for a γ that more than doubles the noise.
        """
        checks.count("size", size)

        def fits(cohort: int, grid: FixedPoint) -> bool:
            noise = math.sqrt(cohort) * _scale(plan, cohort - tolerate_dropouts, grid, size)
            return cohort * (grid.radius / grid.granularity + 0.5) + _TAIL * noise < grid.half

        exponent = math.floor(math.log2(plan.sensitivity * _USEFUL / math.sqrt(size)))
        while 2.0**exponent * math.sqrt(size) <= plan.sensitivity:
            if radius / 2.0**exponent < 1 << (bits - 1):
                grid = FixedPoint(2.0**exponent, bits, radius)
                if all(fits(cohort, grid) for cohort in cohorts):
                    return cls(plan, cohorts[-1] - tolerate_dropouts, grid, size)
            exponent += 1
        raise PrivacyError(
            f"noise.bits={bits} are too few for sums of {cohorts[-1]} clients with {size} values "
            f"each, of a norm up to {radius:.4g}: rounding would more than double the noise. "
            "Raise noise.bits."
        )

    @property
    def sensitivity(self) -> float:
        """Δ = S/γ + √d, in integers; S/γ + 2√d where it is secret who was asked (step 1)."""
        return _sensitivity(self.plan, self.fixed_point, self.size)

    @property
    def scale(self) -> float:
        """Parameter of a reply's noise, s = √(σ²Δ²/t′ + η²), in integers."""
        return _scale(self.plan, self.parts, self.fixed_point, self.size)

    @property
    def std(self) -> float:
        """γ·s, standard deviation of a reply's noise in units of the total."""
        return self.fixed_point.granularity * self.scale

    @property
    def divergence_of_value(self) -> float:
        """τ + ρ, bound on the log ratio of the sum's law and smoothed Gaussian's at one value."""
        tau = 10.0 * (self.parts - 1) * math.exp(-(math.pi**2) * self.scale**2)
        e = 2.0 * math.exp(-2.0 * math.pi**2 * SMOOTHING**2) * (1.0 + 2.0**-50)
        return tau + math.log1p(2.0 * e / (1.0 - e))

    @property
    def divergence(self) -> float:
        """2·U·d·(τ + ρ), what the whole plan costs beside its ε."""
        cost = self.plan.cost
        return 2.0 * cost.uses(self.plan.rounds) * self.size * self.divergence_of_value

    def entries(self) -> dict[str, Any]:
        """Returns the public numbers beside the plan's, as a ledger and privacy.json state them."""
        return {
            "share": self.parts, "fixed_point": self.fixed_point.to_dict(), "values": self.size,
        }  # fmt: skip

    def epsilon(self, accountant: str = "pld") -> float:
        """Returns ε of the sum over the whole plan, the divergence included."""
        return self.plan.epsilon(accountant) + self.divergence

    def wrap_probability(self, cohort: int) -> float:
        """Returns a bound on the probability that a value of one sum does not fit into b bits.

        2·d·exp(−z²/2), for discrete Gaussians are subgaussian (Canonne, Kamath, Steinke 2020).
        """
        grid = self.fixed_point
        room = grid.half - cohort * (grid.radius / grid.granularity + 0.5)
        if room <= 0:
            return 1.0
        tail = (room / self.scale) ** 2 / (2.0 * cohort)
        return min(1.0, 2.0 * self.size * math.exp(-min(tail, 600.0)))  # never 0 by underflow

    def release(self, total: Clipped, stream: Stream) -> torch.Tensor:
        """Returns `release_each` of one total."""
        one = self.plan.clip.vouch(clipped_by(self.plan.clip, total).unsqueeze(0))
        return self.release_each(one, [stream]).squeeze(0)

    def release_each(self, totals: Clipped, streams: Several) -> torch.Tensor:
        """Returns the integers of several totals with a part of the noise each, modulo 2^b.

        The totals are (k, ...), of d values each; the streams, one for each client and use, were
        never used before. Returns (k, ...) int64 on the CPU, centred.
        """
        values = self._checked(clipped_by(self.plan.clip, totals))
        integers = self.fixed_point.rounded(values).cpu()
        noise = integers_each(streams, self.size, self.scale)
        return self.fixed_point.wrapped(integers + noise.reshape(integers.shape))

    def release_sum(self, total: Clipped, noise: Stream | None, clients: int = 0) -> torch.Tensor:
        """Returns a sum of totals in integers, with the noise of a whole cohort or none of it.

        The law is that of a sum of as many parts but for the divergence of step 2: one discrete
        Gaussian of variance m·s². For simulations, which show nobody a part of the sum. Only a
        single client's total is projected on the ball of the fixed point, which has room for it:
        the sum of a block is longer, and stays as it is.

        Args as of `PrivacyPlan.release_sum`. Returns (...) int64 on the CPU, not reduced.
        """
        values = clipped_by(self.plan.clip, total)
        integers = self.fixed_point.nearest(self._checked(values.unsqueeze(0))).cpu().squeeze(0)
        if noise is None:
            return integers
        scale = math.sqrt(clients) * self.scale
        return integers + noise.integers(self.size, scale).reshape(integers.shape)

    def _checked(self, values: torch.Tensor) -> torch.Tensor:
        if values[0].numel() != self.size:
            raise PrivacyError(
                f"the mechanism is for {self.size} values a use, received {values[0].numel()}."
            )
        return values


def _sensitivity(plan: PrivacyPlan, grid: FixedPoint, size: int) -> float:
    # Where parts are asked in secret, ε is that of ±bound, and both answers are rounded (step 1).
    secret = plan.clip.asked_in_secret(plan.rate)
    roundings = plan.sensitivity / plan.clip.bound if secret else 1.0
    return plan.sensitivity / grid.granularity + roundings * math.sqrt(size)


def _scale(plan: PrivacyPlan, parts: int, grid: FixedPoint, size: int) -> float:
    noise = plan.noise_multiplier * _sensitivity(plan, grid, size)
    return math.sqrt(noise**2 / parts + SMOOTHING**2)
