"""Base of local mechanisms: noise on one record, with its sensitivity, its cost and its words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch

from fedsink.errors import PrivacyError
from fedsink.privacy.randomness.noise import Stream

Norm = Literal["l1", "l2"]

# Eight float32 ulps, for maps of others, whose diameter may exceed Δ by rounding.
_SLACK = 2.0**-20


@dataclass(frozen=True)
class MatchedCost:
    """The entropic transport problem whose minimiser is the distribution before the noise.

    Theorem 1 (Reshetova, Chen, Özgür 2024): let Y ~ P_Y be the output of a channel with density
    p_M(y|x) applied to X ~ P_X. With c(x, y) = −log p_M(y|x) and unit weight on the mutual
    information, ``min_G W_{c,1}(P_{G(Z)}, P_Y)`` is attained at P_{G(Z)} = P_X, without any
    debiasing term: the entropic bias is the deconvolution. Multiplying by a constant gives

    - Laplace of scale σ:  c = ‖x − y‖₁, λ = σ.
    - Gaussian of std σ:   c = ‖x − y‖₂², λ = 2σ².

    Attributes:
        cost: ``"l1"`` for ‖x − y‖₁ or ``"squared_l2"`` for ‖x − y‖₂².
        lam: λ in cost units, the weight of KL(π ‖ μ⊗ν); it is not GeomLoss' blur.
    """

    cost: str
    lam: float


class LocalMechanism(ABC):
    """A mechanism Y = x + noise for values x = f(record), with its own local guarantee.

    The sensitivity Δ is a *diameter*, sup‖x − x'‖ in the mechanism's norm, from public bounds.
    Subclasses are frozen dataclasses; the rest of the package asks a mechanism only
    through these methods, so that no other file knows a mechanism by name.
    `fedsink.privacy.mechanisms` finds them.

    Guarantees:
        - One release of a record is (ε, δ) local differential privacy, replace-one.
        - `from_scale` and `from_epsilon` invert each other, never to the owner's disadvantage.

    Attributes:
        name: its name in a configuration, a message and a policy.
        norm: the norm of its sensitivity; a plan refuses a map that bounds another.
        needs_delta: whether the guarantee has a δ > 0; otherwise it is pure ε.
        gaussian_trade_off: whether it is exactly a Gaussian mechanism, as sharper audits suppose.
        calibrations: ways from (ε, δ) to the scale, where there are several; the default first.
        sensitivity: Δ > 0.
        epsilon: ε > 0.
        delta: δ; 0 without `needs_delta`.
        scale: the noise's parameter σ, in units of the values.
    """

    name: ClassVar[str]
    norm: ClassVar[Norm]
    needs_delta: ClassVar[bool]
    gaussian_trade_off: ClassVar[bool] = False
    calibrations: ClassVar[tuple[str, ...]] = ()
    adjacency: ClassVar[str] = "replace-one"
    unit: ClassVar[str] = "record"

    sensitivity: float
    epsilon: float
    delta: float
    scale: float

    @classmethod
    @abstractmethod
    def from_epsilon(
        cls, sensitivity: float, epsilon: float, delta: float, calibration: str | None = None
    ) -> Self:
        """The mechanism with this guarantee.

        Args:
            sensitivity: Δ > 0.
            epsilon: ε > 0.
            delta: δ in (0, 1), read where `needs_delta`.
            calibration: one of `calibrations`; None: the default, or the only one.

        Raises:
            PrivacyError: If a value is out of range.
        """

    @classmethod
    @abstractmethod
    def from_scale(cls, sensitivity: float, scale: float, delta: float) -> Self:
        """The mechanism with noise of this scale σ; its ε is the least that holds, rounded up.

        Args:
            sensitivity: Δ > 0.
            scale: σ > 0.
            delta: δ in (0, 1), read where `needs_delta`.

        Raises:
            PrivacyError: If a value is out of range.
        """

    @abstractmethod
    def privatize(self, values: torch.Tensor, stream: Stream) -> torch.Tensor:
        """`values` (N, ...) plus noise, float32 on the same device.

        Release it once: a second draw for the same records costs ε again.

        Raises:
            PrivacyError: If a value is not finite; map non-finite values to zero first.
        """

    @property
    @abstractmethod
    def noise_std(self) -> float:
        """Standard deviation of the noise on each coordinate."""

    @property
    @abstractmethod
    def matched_cost(self) -> MatchedCost:
        """The cost and λ whose entropic transport removes the noise (Theorem 1)."""

    @property
    @abstractmethod
    def event(self) -> Any:
        """The mechanism as a `dp_accounting.DpEvent`, its noise in units of the sensitivity."""


def slackened(sensitivity: float) -> float:
    """Δ with room for the float32 rounding of the map that promises it."""
    return sensitivity * (1.0 + _SLACK)


def finite(values: torch.Tensor) -> torch.Tensor:
    """The values to privatize; raises PrivacyError where one of them is not finite."""
    if not bool(torch.isfinite(values).all()):
        raise PrivacyError("values to privatize must be finite: map non-finite values to zero.")
    return values
