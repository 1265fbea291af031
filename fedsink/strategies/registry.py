"""Methods by the name that `strategy.name` gives them."""

from __future__ import annotations

from typing import Any

from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError
from fedsink.models import Generator
from fedsink.registry import Registry
from fedsink.strategies.base import RoundStrategy
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhorn
from fedsink.strategies.gs_wgan.strategy import GSWGAN
from fedsink.strategies.parameter_gradient.strategy import ParameterGradient
from fedsink.strategies.privatize_once.strategy import PrivatizeOnce
from fedsink.strategies.settings import StrategySettings
from fedsink.values import Config

STRATEGIES: Registry[type[RoundStrategy]] = Registry(
    "strategy.name",
    {cls.Settings.name: cls for cls in (DPSinkhorn, GSWGAN, ParameterGradient, PrivatizeOnce)},
    group="fedsink.strategies",
)


def settings_of(config: Config, data: DataSpec, clients: int, run: str) -> StrategySettings:
    """Settings of the method that `strategy.name` names.

    Args:
        config: plain mappings and values, all interpolations resolved.
        data: public description of the records.
        clients: K.
        run: public name of the run.

    Raises:
        FedsinkError: the method is unknown or belongs to the other mode, or a value is wrong.
    """
    mode, name = config["mode"], config["strategy"]["name"]
    settings = STRATEGIES.find(name).Settings
    if settings.name != name:
        raise ConfigError(
            f"strategy.name={name!r} is installed with settings that are named {settings.name!r}: "
            "give its entry point that name."
        )
    if settings.mode != mode:
        fitting = [other for other in STRATEGIES if STRATEGIES[other].Settings.mode == mode]
        raise ConfigError(f"mode={mode} runs strategy={' or '.join(fitting)}, not {name!r}.")
    return settings.from_config(config, data, clients, run)


def strategy_of(settings: StrategySettings, generator: Generator, key: bytes) -> RoundStrategy:
    """The strategy that runs a method.

    Args:
        settings: of the method.
        generator: trained in place.
        key: keys the server's own randomness (not secret).
    """
    cls: Any = STRATEGIES.find(settings.name)
    strategy: RoundStrategy = cls(settings, generator, key)
    return strategy
