"""One release of the central mode: a clipped total plus Gaussian noise.

>>> from fedsink.privacy.clips import BatchClip, RecordClip
>>> ClippedGaussian(BatchClip(0.5), 1.1).noise_std, ClippedGaussian(RecordClip(0.5), 1.1).noise_std
(1.1, 0.55)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fedsink.errors import PrivacyError
from fedsink.privacy.clips import CLIPS, Clip
from fedsink.privacy.randomness.noise import Stream, add_gaussian_each
from fedsink.values import privacy_checks as checks


@dataclass(frozen=True)
class ClippedGaussian:
    """total + N(0, (σ·S)² I), where S is the sensitivity that the clip states.

    S is 2Δ for the clip of a batch's or a critic's gradient, 2Δ√n for that of a critic's rows, and
    Δ for that of a record's contribution, so the noise is Algorithm 1's 2Δσ (Cao et al. 2021), not
    the Δσ of their Theorem 4.1. Sampling, composition and adjacency belong to `PrivacyPlan`; there
    is no matched cost, since nothing here is deconvolved.

    Guarantees:
        - The noise's standard deviation is the multiplier times the sensitivity the clip states.
        - The event is a Gaussian whose multiplier is the noise's standard deviation over the
          sensitivity.
        - Every coordinate gets independent noise of that standard deviation.
        - Nothing is released where the total is not finite.

    Args:
        clip: `BatchClip`, `RecordClip`, `CriticClip` or `RowClip`.
        noise_multiplier: σ = noise std / sensitivity, > 0.

    Raises:
        PrivacyError: If the clip is none of them, or the multiplier is not a finite number > 0.
    """

    clip: Clip
    noise_multiplier: float

    name: ClassVar[str] = "clipped-gaussian"
    choice: ClassVar[str] = "gaussian"  # its name among the configuration's mechanisms

    def __post_init__(self) -> None:
        checks.one_of("clip", self.clip, CLIPS.values())
        checks.positive("sigma", self.noise_multiplier)

    @property
    def sensitivity(self) -> float:
        """S in L2: what one record can change, 2Δ per batch or Δ per record."""
        return self.clip.sensitivity

    @property
    def noise_std(self) -> float:
        """σ·S, the standard deviation of the noise on each released coordinate."""
        return self.noise_multiplier * self.sensitivity

    @property
    def event(self) -> Any:
        """One unsampled use as a `dp_accounting.DpEvent`."""
        return checks.require("dp_accounting").GaussianDpEvent(self.noise_multiplier)

    def release(self, total: torch.Tensor, stream: Stream) -> torch.Tensor:
        """`total` + N(0, noise_std² I) in float64, returned as float32 on the same device.

        Args:
            total: The clipped gradient (batch clip) or the sum of clipped contributions
                (record clip) or of clipped gradients (critic clip), of any shape.
            stream: A stream for this client and round alone; never one used before.

        Raises:
            PrivacyError: If the total holds a non-finite entry; it was not clipped.
        """
        _refuse_infinite(total)
        return stream.add_gaussian(total, self.noise_std)

    def release_each(self, totals: torch.Tensor, streams: Sequence[Stream]) -> torch.Tensor:
        """What `release` gives for each total, (k, ...), and its own stream, stacked.

        Raises:
            PrivacyError: If a total holds a non-finite entry; then none is released.
        """
        _refuse_infinite(totals)
        return add_gaussian_each(streams, totals, self.noise_std)


def _refuse_infinite(total: torch.Tensor) -> None:
    if not bool(torch.isfinite(total).all()):
        raise PrivacyError("the total to release is not finite: clip it before releasing.")
