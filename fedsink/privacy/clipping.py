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

# Relative room below the bound, so that rounding the clipped values to float32 stays within it.
_SLACK = 2.0**-20


@dataclass(frozen=True)
class BatchClip:
    """Clip the whole gradient of a batch, an n×d matrix G, to L2 norm ≤ Δ: G·min(1, Δ/‖G‖).

    The two clipped gradients of any two shards lie in one ball of radius Δ, hence a sensitivity
    of 2Δ whatever the loss; the noise of DP-Sinkhorn's Algorithm 1 is 2Δσ for this reason
    (Cao et al. 2021; their Theorem 4.1 drops the factor 2).

    Guarantees:
        - The clipped gradient has norm at most Δ.
        - Any two clipped gradients differ by at most the sensitivity, 2Δ.
        - An all-zero gradient stays zero; a gradient with a non-finite entry becomes zero.

    Args:
        bound: Δ, in units of the gradient's L2 norm; finite and > 0.

    Raises:
        PrivacyError: If the bound is not a finite number > 0.
    """

    bound: float
    name: ClassVar[str] = "batch"

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", checks.positive("bound", self.bound))

    @property
    def sensitivity(self) -> float:
        """2Δ: the diameter of the ball the gradient is clipped to."""
        return 2.0 * self.bound

    def apply(self, gradient: torch.Tensor) -> torch.Tensor:
        """The clipped gradient, same shape and dtype; the norm is taken in float64.

        Raises:
            PrivacyError: If the gradient is neither float32 nor float64.
        """
        if gradient.dtype not in (torch.float32, torch.float64):
            raise PrivacyError(
                f"a gradient to clip must be float32 or float64, received {gradient.dtype}: "
                "narrower types round past the bound."
            )
        norm = torch.linalg.vector_norm(gradient, dtype=torch.float64)
        # A select, not a branch: control flow must not depend on private values.
        clipped = gradient * _shrinkage(norm, self.bound).to(gradient.dtype)
        return torch.where(torch.isfinite(norm), clipped, torch.zeros_like(gradient))


@dataclass(frozen=True)
class RecordClip:
    """Clip each record's contribution g_j to L2 norm ≤ Δ; the client releases Σ_j g_j + noise.

    Adding or removing one record changes the sum by its own clipped contribution, hence a
    sensitivity of Δ. This holds for contributions that depend on no other record.

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

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", checks.positive("bound", self.bound))

    @property
    def sensitivity(self) -> float:
        """Δ: what one record can add to the sum."""
        return self.bound

    def scales(self, norms: torch.Tensor) -> torch.Tensor:
        """The factors min(1, Δ/‖g_j‖) for the contributions' exact L2 norms, float64, same shape.

        A factor of 0 does not remove a non-finite entry (0·∞ is not a number): drop such a
        contribution before summing.

        Raises:
            PrivacyError: If a norm is negative.
        """
        if bool((norms < 0).any()):
            raise PrivacyError("norms must not be negative: pass the contributions' L2 norms.")
        norms = norms.to(torch.float64)
        factors = _shrinkage(norms, self.bound)
        return torch.where(torch.isfinite(norms), factors, torch.zeros_like(factors))


Clip = BatchClip | RecordClip
CLIPS: dict[str, type[BatchClip] | type[RecordClip]] = {"batch": BatchClip, "record": RecordClip}


def _shrinkage(norms: torch.Tensor, bound: float) -> torch.Tensor:
    """min(1, Δ(1 − slack)/norm), 1 at norm 0."""
    return torch.clamp(bound * (1.0 - _SLACK) / norms, max=1.0)
