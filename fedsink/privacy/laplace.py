"""The Laplace mechanism for local privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from fedsink.privacy import checks
from fedsink.privacy.matched import MatchedCost
from fedsink.privacy.noise import Stream
from fedsink.privacy.release import finite, slackened


@dataclass(frozen=True)
class LaplaceMechanism:
    """Y = x + Laplace(σ)^d with scale σ = Δ₁/ε: pure ε local differential privacy.

    Δ₁ is the *diameter* sup‖x − x'‖₁ of the set the values are mapped to, from public bounds: 2r
    for a ball of radius r. Corollary 1 of Reshetova, Chen, Özgür (2024) prints ε/Δ₁ for the scale
    and sup‖x‖₁ for the sensitivity; both are slips.

    Guarantees:
        - The scale is at least Δ₁/ε.
        - The log-likelihood ratio of any output for two inputs Δ₁ apart is at most ε.
        - Every coordinate gets independent Laplace noise of that scale.

    Args:
        sensitivity: Δ₁ > 0, the L1 diameter under replace-one.
        epsilon: ε > 0.

    Raises:
        PrivacyError: If either is not a finite number > 0.
    """

    sensitivity: float
    epsilon: float
    scale: float = field(init=False)

    name: ClassVar[str] = "laplace"
    adjacency: ClassVar[str] = "replace-one"
    unit: ClassVar[str] = "record"
    delta: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        sensitivity = checks.positive("sensitivity", self.sensitivity)
        epsilon = checks.positive("epsilon", self.epsilon)
        scale = math.nextafter(slackened(sensitivity) / epsilon, math.inf)
        object.__setattr__(self, "scale", scale)

    @classmethod
    def from_scale(cls, sensitivity: float, scale: float) -> LaplaceMechanism:
        """The mechanism with this noise scale σ; its ε is Δ₁/σ, rounded up."""
        scale = checks.positive("scale", scale)
        implied = slackened(checks.positive("sensitivity", sensitivity)) / scale
        mechanism = cls(sensitivity, math.nextafter(implied, math.inf))
        object.__setattr__(mechanism, "scale", scale)
        return mechanism

    def privatize(self, values: torch.Tensor, stream: Stream) -> torch.Tensor:
        """`values` (N, ...) plus noise, float32 on the same device.

        Release it once: a second draw for the same records costs ε again.

        Raises:
            PrivacyError: If a value is not finite; map non-finite values to zero first.
        """
        return stream.add_laplace(finite(values), self.scale)

    @property
    def matched_cost(self) -> MatchedCost:
        """‖x − y‖₁ with λ = σ (Theorem 1)."""
        return MatchedCost("l1", self.scale)

    @property
    def event(self) -> Any:
        """The mechanism as a `dp_accounting.DpEvent`, its noise in units of the sensitivity."""
        return checks.require("dp_accounting").LaplaceDpEvent(
            self.scale / slackened(self.sensitivity)
        )

    def describe(self) -> dict[str, Any]:
        """What to print and to write into privacy.json."""
        return {
            "mechanism": self.name,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "sensitivity_l1": self.sensitivity,
            "scale": self.scale,
            "adjacency": self.adjacency,
            "unit": self.unit,
        }
