"""What a round asks of clients, and what becomes of their replies.

Names are loaded when they are first used: settings, self term and trainer need no Flower.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsink.strategies.base import RoundStrategy
    from fedsink.strategies.dp_sinkhorn.settings import DPSinkhornSettings
    from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhorn
    from fedsink.strategies.gs_wgan.settings import GSWGANSettings
    from fedsink.strategies.gs_wgan.strategy import GSWGAN
    from fedsink.strategies.parameter_gradient.settings import ParameterGradientSettings
    from fedsink.strategies.parameter_gradient.strategy import ParameterGradient
    from fedsink.strategies.privatize_once.settings import PrivatizeOnceSettings
    from fedsink.strategies.privatize_once.strategy import PrivatizeOnce
    from fedsink.strategies.registry import STRATEGIES
    from fedsink.strategies.settings import StrategySettings

_MODULES = {
    "STRATEGIES": "registry",
    "DPSinkhorn": "dp_sinkhorn.strategy",
    "DPSinkhornSettings": "dp_sinkhorn.settings",
    "GSWGAN": "gs_wgan.strategy",
    "GSWGANSettings": "gs_wgan.settings",
    "ParameterGradient": "parameter_gradient.strategy",
    "ParameterGradientSettings": "parameter_gradient.settings",
    "PrivatizeOnce": "privatize_once.strategy",
    "PrivatizeOnceSettings": "privatize_once.settings",
    "RoundStrategy": "base",
    "StrategySettings": "settings",
}

__all__ = [
    "GSWGAN",
    "STRATEGIES",
    "DPSinkhorn",
    "DPSinkhornSettings",
    "GSWGANSettings",
    "ParameterGradient",
    "ParameterGradientSettings",
    "PrivatizeOnce",
    "PrivatizeOnceSettings",
    "RoundStrategy",
    "StrategySettings",
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
