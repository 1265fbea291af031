"""Clips of gradients of sampled records: a batch's gradient, or each record's contribution.

>>> BatchClip(bound=0.5).sensitivity
1.0
>>> RecordClip(bound=0.5).sensitivity
0.5
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from fedsink.errors import PrivacyError
from fedsink.privacy.adjacency import CLIENT, USER
from fedsink.privacy.clips.base import Clip, check_type, shrunk
from fedsink.values import privacy_checks as checks

if TYPE_CHECKING:
    from fedsink.privacy.sampling import Schedule


class ClipOfRecords(Clip):
    """A clip of a gradient of sampled records."""

    needed: ClassVar[str] = "clip={} samples no records: choose clip=record or clip=batch."
    sampled: ClassVar[bool] = True

    def check_plan(self, schedule: Schedule, adjacency: str, capacity: int | None) -> None:
        """Refuses a user as the unit, and a client whose contribution is unbounded."""
        if adjacency == CLIENT:
            self.of_client(capacity)
        if adjacency == USER:
            raise PrivacyError(
                "the user adjacency needs a clip that keeps all records of a user together, "
                f"received clip={self.name}: choose adjacency=client (with capacity=auto or "
                "clip=batch), or strategy=gs_wgan, whose clip=critic keeps them together."
            )

    def check_rate(self, rate: float) -> float:
        """The rate as a float in (0, 1]; raises PrivacyError for any other value."""
        return checks.probability("rate", rate)


@dataclass(frozen=True)
class BatchClip(ClipOfRecords):
    """Clips the whole gradient of a batch, an n×d matrix G, to L2 norm ≤ Δ: G·min(1, Δ/‖G‖).

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

    name: ClassVar[str] = "batch"
    replacement: ClassVar[str] = "without-replacement"

    @property
    def sensitivity(self) -> float:
        """2Δ: the diameter of the ball the gradient is clipped to."""
        return 2.0 * self.bound

    def of_client(self, capacity: int | None) -> int:
        """1: any two clipped gradients are within 2Δ of one another."""
        return 1

    def reach(self, records: int) -> float:
        """Δ, whatever the batch."""
        return self.bound

    def apply(self, gradient: torch.Tensor) -> torch.Tensor:
        """The clipped gradient, same shape and dtype; computed in float64 and cast last.

        Raises:
            PrivacyError: If the gradient is neither float32 nor float64.
        """
        return self.apply_each(gradient.unsqueeze(0)).squeeze(0)

    def apply_each(self, gradients: torch.Tensor) -> torch.Tensor:
        """Each client's gradient clipped by itself, (K, ...); otherwise like `apply`."""
        check_type(gradients)
        clipped = shrunk(gradients.unsqueeze(-1).flatten(1), self.bound, cast=gradients.dtype)
        return clipped.reshape(gradients.shape)


@dataclass(frozen=True)
class RecordClip(ClipOfRecords):
    """Clips each record's contribution g_j to L2 norm ≤ Δ; the client releases Σ_j g_j + noise.

    Adding or removing one record changes the sum by its own clipped contribution, hence a
    sensitivity of Δ. This holds for contributions that depend on no other record. The sum is
    computed by `fedsink.transport.clipped_sums`, which has these guarantees and never stores
    contributions one by one.

    Args:
        bound: Δ, in units of a contribution's L2 norm; finite and > 0.

    Raises:
        PrivacyError: If the bound is not a finite number > 0.
    """

    name: ClassVar[str] = "record"
    per_record: ClassVar[bool] = True
    replacement: ClassVar[str] = "opposite"

    @property
    def sensitivity(self) -> float:
        """Δ: the longest contribution of one record to the sum."""
        return self.bound

    def of_client(self, capacity: int | None) -> int:
        """B: the largest number of contributions of norm Δ that appear or vanish."""
        if capacity is None:
            raise PrivacyError(
                "the client adjacency with clip=record needs a capacity: without one a client's "
                "sum is unbounded. Give a capacity or use clip=batch."
            )
        return capacity

    def reach(self, records: int) -> float:
        """Δ for each record."""
        return self.bound * records
