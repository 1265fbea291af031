"""The Gaussian mechanism for local privacy, calibrated exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from scipy.special import log_ndtr

from fedsink.privacy import checks
from fedsink.privacy.matched import MatchedCost
from fedsink.privacy.noise import Stream
from fedsink.privacy.release import add_noise, slackened

_BISECTIONS = 200


@dataclass(frozen=True)
class GaussianMechanism:
    """Y = x + N(0, σ² I) with the smallest σ that is (ε, δ) local differential privacy.

    The *analytic* mechanism (Balle and Wang 2018, Theorem 8): σ is exact where
    ``Φ(Δ₂/2σ − εσ/Δ₂) − e^ε Φ(−Δ₂/2σ − εσ/Δ₂) = δ``; the classical √(2 ln(1.25/δ)) holds only
    for ε ≤ 1. Δ₂ is the *diameter* sup‖x − x'‖₂ of the set the values are mapped to: 2r for a
    ball of radius r, √2 for non-negative unit vectors.

    Guarantees:
        - The exact δ of the scale at ε does not exceed δ, and the scale is within 1e-5 of least.
        - Every coordinate gets independent normal noise of that scale.

    Args:
        sensitivity: Δ₂ > 0, the L2 diameter under replace-one.
        epsilon: ε > 0.
        delta: δ in (0, 1).

    Raises:
        PrivacyError: If a value is out of range.
    """

    sensitivity: float
    epsilon: float
    delta: float
    scale: float = field(init=False)

    name: ClassVar[str] = "gaussian"
    adjacency: ClassVar[str] = "replace-one"
    unit: ClassVar[str] = "record"

    def __post_init__(self) -> None:
        sensitivity = checks.positive("sensitivity", self.sensitivity)
        epsilon = checks.positive("epsilon", self.epsilon)
        delta = checks.failure_probability(self.delta)
        object.__setattr__(self, "scale", slackened(sensitivity) * _multiplier(epsilon, delta))

    @classmethod
    def from_scale(cls, sensitivity: float, scale: float, delta: float) -> GaussianMechanism:
        """The mechanism with this noise std σ; its ε is the least that holds at δ, rounded up."""
        scale = checks.positive("scale", scale)
        sensitivity = checks.positive("sensitivity", sensitivity)
        delta = checks.failure_probability(delta)
        mechanism = cls(sensitivity, _epsilon(scale / slackened(sensitivity), delta), delta)
        object.__setattr__(mechanism, "scale", scale)
        return mechanism

    def privatize(self, values: torch.Tensor, stream: Stream) -> torch.Tensor:
        """`values` (N, ...) plus noise, float32 on the same device.

        Release it once: a second draw for the same records composes.

        Raises:
            PrivacyError: If a value is not finite; map non-finite values to zero first.
        """
        return add_noise(values, self.scale * stream.normal(*values.shape))

    @property
    def matched_cost(self) -> MatchedCost:
        """‖x − y‖₂² with λ = 2σ² (Theorem 1)."""
        return MatchedCost("squared_l2", 2.0 * self.scale**2)

    @property
    def event(self) -> Any:
        """The mechanism as a `dp_accounting.DpEvent`, its noise in units of the sensitivity."""
        return checks.require("dp_accounting").GaussianDpEvent(
            self.scale / slackened(self.sensitivity)
        )

    def describe(self) -> dict[str, Any]:
        """What to print and to write into privacy.json."""
        return {
            "mechanism": self.name,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "sensitivity_l2": self.sensitivity,
            "scale": self.scale,
            "adjacency": self.adjacency,
            "unit": self.unit,
        }


def gaussian_delta(multiplier: float, epsilon: float) -> float:
    """The exact δ of N(0, σ²) at ε, with multiplier σ/Δ₂ (Balle and Wang 2018, equation 6)."""
    half, shift = 0.5 / multiplier, epsilon * multiplier
    first, second = log_ndtr(half - shift), epsilon + log_ndtr(-half - shift)
    return float(math.exp(first) * -math.expm1(min(0.0, second - first)))


def _multiplier(epsilon: float, delta: float) -> float:
    """The least σ/Δ₂ for (ε, δ), from above."""
    low, high = math.log(1e-9), math.log(1e9)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if gaussian_delta(math.exp(middle), epsilon) <= delta:
            high = middle
        else:
            low = middle
    return math.exp(high) * (1 + 1e-12)


def _epsilon(multiplier: float, delta: float) -> float:
    """The least ε for (σ/Δ₂, δ), from above; the smallest positive float where ε = 0 suffices."""
    low, high = math.log(1e-12), math.log(1e19)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if gaussian_delta(multiplier, math.exp(middle)) <= delta:
            high = middle
        else:
            low = middle
    return math.exp(high) * (1 + 1e-12)
