"""Clips: they bound what one record can change, and they know their own sensitivity.

>>> BatchClip(bound=0.5).sensitivity
1.0
>>> RecordClip(bound=0.5).sensitivity
0.5
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedsink.errors import PrivacyError
from fedsink.privacy import checks

# Relative room below the bound for the roundings of norms, products and the cast to float32.
_SLACK = 2.0**-20
# Below this bound that room would itself be lost in rounding.
_SMALLEST = 2.0**-1000


@dataclass(frozen=True)
class BatchClip:
    """Clip the whole gradient of a batch, an n×d matrix G, to L2 norm ≤ Δ: G·min(1, Δ/‖G‖).

    The two clipped gradients of any two shards lie in one ball of radius Δ, hence a sensitivity
    of 2Δ whatever the loss; the noise of DP-Sinkhorn's Algorithm 1 is 2Δσ for this reason
    (Cao et al. 2021; their Theorem 4.1 drops the factor 2).

    Guarantees:
        - The clipped gradient has norm at most Δ, in exact arithmetic, for any gradient and any
          Δ > 0 that a float can hold.
        - Any two clipped gradients differ by at most the sensitivity, 2Δ.
        - An all-zero gradient stays zero; a gradient with a non-finite entry becomes zero.
        - Which operations run does not depend on the gradient's values.

    Args:
        bound: Δ, in units of the gradient's L2 norm; finite and > 0.

    Raises:
        PrivacyError: If the bound is not a finite number > 0.
    """

    bound: float
    name: ClassVar[str] = "batch"
    replacement: ClassVar[str] = "without-replacement"
    """The dominating pair of another record in the same place; see `replacement_epsilon`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", checks.positive("bound", self.bound))

    @property
    def sensitivity(self) -> float:
        """2Δ: the diameter of the ball the gradient is clipped to."""
        return 2.0 * self.bound

    def apply(self, gradient: torch.Tensor) -> torch.Tensor:
        """The clipped gradient, same shape and dtype; computed in float64 and cast last.

        Raises:
            PrivacyError: If the gradient is neither float32 nor float64.
        """
        return self.apply_each(gradient.unsqueeze(0)).squeeze(0)

    def apply_each(self, gradients: torch.Tensor) -> torch.Tensor:
        """Each client's gradient clipped by itself, (K, ...); otherwise like `apply`."""
        if gradients.dtype not in (torch.float32, torch.float64):
            raise PrivacyError(
                f"a gradient to clip must be float32 or float64, received {gradients.dtype}: "
                "narrower types round past the bound."
            )
        clipped = shrunk(gradients.flatten(1), self.bound, cast=gradients.dtype)
        return clipped.reshape(gradients.shape)


@dataclass(frozen=True)
class RecordClip:
    """Clip each record's contribution g_j to L2 norm ≤ Δ; the client releases Σ_j g_j + noise.

    Adding or removing one record changes the sum by its own clipped contribution, hence a
    sensitivity of Δ. This holds for contributions that depend on no other record. The sum is
    computed in `fedsink.transport`, where contributions are never stored one by one.

    Guarantees:
        - Every scaled contribution has norm at most Δ, so the sum's sensitivity is Δ.
        - A record of zero norm keeps factor 1; one of non-finite norm gets factor 0.

    Args:
        bound: Δ, in units of a contribution's L2 norm; finite and > 0.

    Raises:
        PrivacyError: If the bound is not a finite number > 0.
    """

    bound: float
    name: ClassVar[str] = "record"
    replacement: ClassVar[str] = "opposite"
    """The dominating pair of another record in the same place; see `replacement_epsilon`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", checks.positive("bound", self.bound))

    @property
    def sensitivity(self) -> float:
        """Δ: what one record can add to the sum."""
        return self.bound

    def scales(self, norms: torch.Tensor) -> torch.Tensor:
        """The factors min(1, Δ/‖g_j‖) for the contributions' exact L2 norms, float64, same shape.

        A factor too small for a normal float64 is 0. A factor of 0 does not remove a non-finite
        entry (0·∞ is not a number): drop such a contribution before summing.

        Raises:
            PrivacyError: If a norm is negative.
        """
        if bool((norms < 0).any()):
            raise PrivacyError("norms must not be negative: pass the contributions' L2 norms.")
        norms = norms.to(torch.float64)
        bound = 0.0 if self.bound < _SMALLEST else self.bound * (1.0 - _SLACK)
        factors = torch.clamp(bound / norms, max=1.0)
        usable = norms.isfinite() & (factors >= torch.finfo(torch.float64).tiny)
        return torch.where(usable, factors, torch.zeros_like(factors))


Clip = BatchClip | RecordClip
CLIPS: dict[str, type[BatchClip] | type[RecordClip]] = {"batch": BatchClip, "record": RecordClip}


def shrunk(
    vectors: torch.Tensor,
    bound: float,
    *,
    slack: float = _SLACK,
    cast: torch.dtype = torch.float64,
) -> torch.Tensor:
    """Each vector v scaled to norm ≤ Δ: v·min(1, Δ/‖v‖), exact over the whole range of floats.

    The largest entry is divided out first, so that no square overflows or vanishes. A result too
    small for a normal number of the type becomes zero: such numbers round by up to half of
    themselves, and a factor that did so would scale past the bound.

    Args:
        vectors: (K, N), float32 or float64.
        bound: Δ > 0; below 2⁻¹⁰⁰⁰ every result is zero.
        slack: the room left below Δ by vectors that are scaled, relative; a caller that adds
            results up needs more of it.
        cast: the type of the result, float32 (only for float32 vectors) or float64.

    Returns:
        (K, N). A vector within the bound is unchanged, one with a non-finite entry becomes zero.

    Guarantees:
        - Every result has norm at most Δ, in exact arithmetic.
        - Which operations run does not depend on the vectors' values.
    """
    if vectors.numel() == 0 or bound < _SMALLEST:
        return torch.zeros_like(vectors, dtype=cast)
    values = vectors.to(torch.float64)
    largest = values.abs().amax(1, keepdim=True)  # NaN where an entry is NaN
    direction = values / largest
    length = torch.linalg.vector_norm(direction, dim=1, keepdim=True)  # 1 to √N
    clip = bound * (1.0 - slack)
    scaled = direction * (clip / length)
    scaled = torch.where(scaled.abs() >= torch.finfo(cast).tiny, scaled, 0.0)
    # Selects, not branches: control flow must not depend on private values.
    shorter = torch.where(length <= clip / largest, values, scaled)
    return torch.where(largest.isfinite() & (largest > 0.0), shorter, 0.0).to(cast)
