"""What the local mechanisms share: values to privatize, and sensitivities with their slack."""

from __future__ import annotations

import torch

from fedsink.errors import PrivacyError

# Eight float32 ulps: maps are computed in float32, so their diameter may exceed Δ by rounding.
_SLACK = 2.0**-20


def slackened(sensitivity: float) -> float:
    """Δ with room for the float32 rounding of the map that promises it."""
    return sensitivity * (1.0 + _SLACK)


def finite(values: torch.Tensor) -> torch.Tensor:
    """The values to privatize; raises PrivacyError where one of them is not finite."""
    if not bool(torch.isfinite(values).all()):
        raise PrivacyError("values to privatize must be finite: map non-finite values to zero.")
    return values
