"""Adding noise to a record's mapped values, shared by the local mechanisms."""

from __future__ import annotations

import torch

from fedsink.errors import PrivacyError

# Eight float32 ulps: maps are computed in float32, so their diameter may exceed Δ by rounding.
_SLACK = 2.0**-20


def slackened(sensitivity: float) -> float:
    """Δ with room for the float32 rounding of the map that promises it."""
    return sensitivity * (1.0 + _SLACK)


def add_noise(values: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Float32 `values` + float64 `noise`, added in float64; refuses non-finite values."""
    if not bool(torch.isfinite(values).all()):
        raise PrivacyError("values to privatize must be finite: map non-finite values to zero.")
    return (values.to(torch.float64) + noise.to(values.device)).to(torch.float32)
