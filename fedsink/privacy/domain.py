"""The public numeric domain: the numbers that plans, objectives and requests may hold.

Floats lose their relative precision at their edges: a factor below 2⁻¹²⁶ rounds by up to half of
itself in float32, and squares vanish or overflow long before that. No honest run comes near these
edges, so a node computes nothing from numbers that do. Everything here is public: it is compared
before any record is read, and a number outside is refused. What only one method needs stands beside
its message (`fedsink.protocol`).

| number | smallest | largest |
|---|---|---|
| clip bound Δ | 2⁻⁴⁰ | 2⁴⁰ |
| noise multiplier σ | 2⁻⁴⁰ | 2⁴⁰ |
| regularisation λ | 2⁻⁴⁰ | 2⁴⁰ |
| cost weight m, label weight α_c | 0 | 2²⁰ |
| rows X, latents z, generator weights θ | −2²⁰ | 2²⁰ |
| potentials f, gradients | −2⁴⁰ | 2⁴⁰ |
| rounds T | 1 | 10⁷ |
| clients K among whom a schedule picks | 1 | 2⁴⁰ |
| capacity B, nominal records N | 1 | 2⁴⁰ |

>>> CLIP_BOUND.check(0.5)
0.5
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedsink.errors import PrivacyError
from fedsink.values import is_number
from fedsink.values import privacy_checks as checks


@dataclass(frozen=True)
class Interval:
    """The numbers from `low` to `high` that a quantity may have."""

    name: str  # the quantity and its symbol, as errors name it
    low: float
    high: float

    def check(self, value: float) -> float:
        """Returns `value` as a float; raises PrivacyError unless it is inside the interval."""
        if not is_number(value) or not self.low <= value <= self.high:
            raise PrivacyError(
                f"{self.name} must be a number from {self.low:.4g} to {self.high:.4g}, received "
                f"{value!r}: choose one that is far from the limits of floats."
            )
        return float(value)

    def check_count(self, value: int) -> int:
        """Returns `value` as an int; raises PrivacyError unless it is a whole number inside."""
        if checks.count(self.name, value, minimum=int(self.low)) > self.high:
            raise PrivacyError(f"{self.name} must be at most {self.high:.4g}, received {value!r}.")
        return int(value)

    def holds(self, values: torch.Tensor) -> bool:
        """True if every entry lies inside; NaN never does. Copies nothing."""
        if values.numel() == 0:
            return True
        low, high = torch.aminmax(values)
        return self.low <= float(low) and float(high) <= self.high


def noise_scale(value: float) -> float:
    """Returns the std or scale of noise as a float; raises PrivacyError outside 2⁻¹²⁶, ..., 2¹²⁰.

    A release is float32: smaller noise would vanish in it, and larger noise would be infinite.
    """
    value = checks.positive("the scale of the noise", value)
    if not 2.0**-126 <= value <= 2.0**120:
        raise PrivacyError(
            f"the scale of the noise must lie in [2^-126, 2^120], received {value!r}: "
            "the release is rounded to float32."
        )
    return value


CLIP_BOUND = Interval("the clip bound Δ", 2.0**-40, 2.0**40)
NOISE_MULTIPLIER = Interval("the noise multiplier σ", 2.0**-40, 2.0**40)
REGULARISATION = Interval("the regularisation λ", 2.0**-40, 2.0**40)
COST_WEIGHT = Interval("the cost weight m", 0.0, 2.0**20)
LABEL_WEIGHT = Interval("the label weight", 0.0, 2.0**20)
ROWS = Interval("a row's coordinate", -(2.0**20), 2.0**20)
LATENTS = Interval("a latent coordinate", -(2.0**20), 2.0**20)
WEIGHTS = Interval("a generator's weight", -(2.0**20), 2.0**20)
POTENTIALS = Interval("a potential", -(2.0**40), 2.0**40)
GRADIENTS = Interval("a gradient's entry", -(2.0**40), 2.0**40)
ROUNDS = Interval("rounds", 1, 10_000_000)
CLIENTS = Interval("a number of clients", 1, 2.0**40)
RECORDS = Interval("a number of records", 1, 2.0**40)


def check_records(plan: object, *names: str) -> None:
    """Makes numbers of records of a frozen plan, where they are not None, ints inside `RECORDS`."""
    for name in names:
        if (value := getattr(plan, name)) is not None:
            object.__setattr__(plan, name, RECORDS.check_count(checks.count(name, value)))
