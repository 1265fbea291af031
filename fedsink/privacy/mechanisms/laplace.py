"""The Laplace mechanism for local privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from fedsink.privacy.mechanisms.local import LocalMechanism, MatchedCost, Norm, finite, slackened
from fedsink.privacy.randomness.noise import Stream
from fedsink.values import privacy_checks as checks


@dataclass(frozen=True)
class LaplaceMechanism(LocalMechanism):
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
    delta: float = field(init=False, repr=False, default=0.0)
    scale: float = field(init=False)

    name: ClassVar[str] = "laplace"
    norm: ClassVar[Norm] = "l1"
    needs_delta: ClassVar[bool] = False

    def __post_init__(self) -> None:
        sensitivity = checks.positive("sensitivity", self.sensitivity)
        epsilon = checks.positive("epsilon", self.epsilon)
        scale = math.nextafter(slackened(sensitivity) / epsilon, math.inf)
        object.__setattr__(self, "scale", scale)

    @classmethod
    def from_epsilon(
        cls,
        sensitivity: float,
        epsilon: float,
        delta: float = 0.0,
        calibration: str | None = None,
    ) -> LaplaceMechanism:
        """The mechanism with this ε; neither δ nor a calibration changes it."""
        return cls(sensitivity, epsilon)

    @classmethod
    def from_scale(cls, sensitivity: float, scale: float, delta: float = 0.0) -> LaplaceMechanism:
        """The mechanism with this noise scale σ; its ε is Δ₁/σ, rounded up."""
        scale = checks.positive("scale", scale)
        implied = slackened(checks.positive("sensitivity", sensitivity)) / scale
        mechanism = cls(sensitivity, math.nextafter(implied, math.inf))
        object.__setattr__(mechanism, "scale", scale)
        return mechanism

    def privatize(self, values: torch.Tensor, stream: Stream) -> torch.Tensor:
        """`values` (N, ...) plus noise; see `LocalMechanism.privatize`."""
        return stream.add_laplace(finite(values), self.scale)

    @property
    def noise_std(self) -> float:
        """√2·σ."""
        return self.scale * math.sqrt(2.0)

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
