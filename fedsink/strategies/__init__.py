"""What a round asks of clients, and what becomes of their replies.

Names are loaded when they are first used: settings, self term and trainer need no Flower.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsink.strategies.base import RoundStrategy
    from fedsink.strategies.dp_sinkhorn import DPSinkhorn
    from fedsink.strategies.dp_sinkhorn_settings import DPSinkhornSettings
    from fedsink.strategies.parameter_gradient import ParameterGradient
    from fedsink.strategies.parameter_gradient_settings import ParameterGradientSettings
    from fedsink.strategies.privatize_once import PrivatizeOnce
    from fedsink.strategies.privatize_once_settings import PrivatizeOnceSettings

_MODULES = {
    "DPSinkhorn": "dp_sinkhorn",
    "DPSinkhornSettings": "dp_sinkhorn_settings",
    "ParameterGradient": "parameter_gradient",
    "ParameterGradientSettings": "parameter_gradient_settings",
    "PrivatizeOnce": "privatize_once",
    "PrivatizeOnceSettings": "privatize_once_settings",
    "RoundStrategy": "base",
}

__all__ = [
    "DPSinkhorn",
    "DPSinkhornSettings",
    "ParameterGradient",
    "ParameterGradientSettings",
    "PrivatizeOnce",
    "PrivatizeOnceSettings",
    "RoundStrategy",
]

if __name__ != "fedsink.strategies":
    # A second copy would have classes and caches of its own.
    raise ImportError(
        "The link strategies/ at the repository's root is for readers: "
        "import fedsink.strategies instead."
    )


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
