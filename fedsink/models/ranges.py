"""The range of what an observation model's parts are given."""

from __future__ import annotations

import math

from fedsink.errors import ModelError


def check_law(part: str, std: float, scale: str, value: float) -> None:
    """Refuse a std that is not a finite number ≥ 0, or a `scale` that is not positive and finite.

    Raises:
        ModelError: naming observation.PART.std or observation.PART.SCALE.
    """
    if not 0.0 <= std < math.inf:
        raise ModelError(f"observation.{part}.std must be a finite number ≥ 0, got {std}.")
    if not 0.0 < value < math.inf:
        raise ModelError(f"observation.{part}.{scale} must be a positive number, got {value}.")
