"""(ε, δ) of the Gaussian without sampling, exactly: Balle and Wang 2018."""

from __future__ import annotations

import math

from scipy.special import log_ndtr

_BISECTIONS = 200


def gaussian_delta(multiplier: float, epsilon: float) -> float:
    """The exact δ of N(0, σ²) at ε, with multiplier σ/Δ₂ (Balle and Wang 2018, equation 6)."""
    half, shift = 0.5 / multiplier, epsilon * multiplier
    first, second = log_ndtr(half - shift), epsilon + log_ndtr(-half - shift)
    return float(math.exp(first) * -math.expm1(min(0.0, second - first)))


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """The least σ/Δ₂ for (ε, δ), from above."""
    low, high = math.log(1e-9), math.log(1e9)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if gaussian_delta(math.exp(middle), epsilon) <= delta:
            high = middle
        else:
            low = middle
    return math.exp(high) * (1 + 1e-12)


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """The least ε of N(0, σ²) at δ, from above; 1e-12 where ε = 0 suffices.

    T compositions of multiplier σ/Δ₂ are one of σ/(Δ₂·√T), so this is exact without sampling.
    """
    low, high = math.log(1e-12), math.log(1e19)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if gaussian_delta(multiplier, math.exp(middle)) <= delta:
            high = middle
        else:
            low = middle
    return math.exp(high) * (1 + 1e-12)
