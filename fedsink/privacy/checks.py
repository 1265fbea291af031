"""Checks of public privacy parameters, one clear sentence each."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from fedsink.errors import PrivacyError

_SMALLEST_SCALE, _LARGEST_SCALE = 2.0**-126, 2.0**120  # normal float32 numbers


def positive(name: str, value: float) -> float:
    """`value` as a float; raises PrivacyError unless it is a finite number > 0."""
    if not is_number(value) or not math.isfinite(value) or value <= 0:
        raise PrivacyError(f"{name} must be a finite number > 0, received {value!r}.")
    return float(value)


def probability(name: str, value: float) -> float:
    """`value` as a float; raises PrivacyError unless 0 < value ≤ 1."""
    if not is_number(value) or not 0 < value <= 1:
        raise PrivacyError(f"{name} must lie in (0, 1], received {value!r}.")
    return float(value)


def failure_probability(value: float) -> float:
    """δ as a float; raises PrivacyError unless 0 < δ < 1."""
    if not is_number(value) or not 0 < value < 1:
        raise PrivacyError(f"delta must lie in (0, 1), received {value!r}.")
    return float(value)


def count(name: str, value: int, *, minimum: int = 1) -> int:
    """`value` as an int; raises PrivacyError unless it is an integer ≥ `minimum`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise PrivacyError(f"{name} must be an integer ≥ {minimum}, received {value!r}.")
    return int(value)


def noise_scale(value: float) -> float:
    """The std or scale of noise; raises PrivacyError outside 2⁻¹²⁶, ..., 2¹²⁰.

    A release is float32: smaller noise would vanish in it, and larger noise would be infinite.
    """
    value = positive("the scale of the noise", value)
    if not _SMALLEST_SCALE <= value <= _LARGEST_SCALE:
        raise PrivacyError(
            f"the scale of the noise must lie in [2^-126, 2^120], received {value!r}: "
            "the release is rounded to float32."
        )
    return value


def require(module: str) -> Any:
    """Import an accounting library on first use; raises PrivacyError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise PrivacyError(
            f"this needs the Python package {package} (missing: {error.name}): "
            f"install it with `pip install {package}`."
        ) from None


def one_of(name: str, value: object, kinds: Iterable[type]) -> None:
    """Refuse a value of another class than these; raises PrivacyError."""
    if not isinstance(value, kinds := tuple(kinds)):
        names = ", ".join(kind.__name__ for kind in kinds)
        raise PrivacyError(f"{name} must be one of {names}, received {value!r}.")


def is_number(value: object) -> bool:
    """Whether `value` is a real number; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)
