"""Bounds over the whole range of floats, and distances in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import strategies as st
from torch import Tensor

WIDE_BOUNDS = st.one_of(
    st.floats(5e-324, 1e150, allow_subnormal=True),
    st.sampled_from([5e-324, 1e-310, 2.0**-1000, 1e-200, 1e-140, 2.0**-149, 0.5, 1e6, 1e150]),
)


def squared_distance(first: Tensor, second: Tensor) -> Fraction:
    """‖a − b‖², exactly."""
    pairs = zip(first.flatten().tolist(), second.flatten().tolist(), strict=True)
    return sum(((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs), Fraction(0))
