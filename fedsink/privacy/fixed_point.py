"""Fixed-point numbers of a sum whose noise is shared: integers modulo 2^b.

>>> import torch
>>> grid = FixedPoint(granularity=0.25, bits=16, radius=2.0)
>>> grid.rounded(torch.tensor([[0.3, -0.9]]))
tensor([[ 1, -4]])
>>> grid.decoded(torch.tensor([2**16 - 4, 32767 + 32767]))
tensor([-1.0000, -0.5000], dtype=torch.float64)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from fedsink.errors import PrivacyError
from fedsink.privacy import domain
from fedsink.privacy.clips import refuse_infinite, shrunk
from fedsink.values import privacy_checks as checks

GRANULARITY = domain.Interval("the granularity γ", 2.0**-100, 2.0**60)
RADIUS = domain.Interval("the radius R", 2.0**-60, 2.0**100)
FEWEST_BITS, MOST_BITS = 16, 60


@dataclass(frozen=True)
class FixedPoint:
    """Public numbers that turn a client's total into integers of Z modulo 2^b, and sums back.

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
        """The nearest integers to totals over γ, (k, ...) int64; each total is projected before."""
        refuse_infinite(totals)
        projected = shrunk(totals.to(torch.float64).unsqueeze(-1).flatten(1), self.radius)
        return self.nearest(projected).reshape(totals.shape)

    def nearest(self, values: torch.Tensor) -> torch.Tensor:
        """The nearest integers to values over γ, int64; nothing is projected."""
        refuse_infinite(values)
        return (values.to(torch.float64) / self.granularity).round().to(torch.int64)

    def wrapped(self, integers: torch.Tensor) -> torch.Tensor:
        """Integers modulo 2^b, centred; int64 that overflowed is right as well, for 2^b | 2^64."""
        return ((integers + self.half) & (2 * self.half - 1)) - self.half

    def decoded(self, integers: torch.Tensor) -> torch.Tensor:
        """The value of a sum of integers in units of the totals, float64."""
        return self.wrapped(integers).to(torch.float64) * self.granularity

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; `from_dict` inverts it."""
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
