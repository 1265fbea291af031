"""Finds a method by the name that `strategy.name` gives it.

A method is a `StrategySettings` and a `RoundStrategy` that names it in `Settings`. One line here
makes it known; the entry points "fedsink.strategies" of installed packages add others.
"""

from __future__ import annotations

from typing import Any

from fedsink.configuration import Configuration
from fedsink.errors import ConfigError, FedsinkError
from fedsink.models import Generator
from fedsink.registry import Registry
from fedsink.strategies.base.round_strategy import RoundStrategy, StrategySettings
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhornStrategy
from fedsink.strategies.gs_wgan import GSWGANStrategy
from fedsink.strategies.privatize_once import PrivatizeOnce

_OWN: tuple[type[RoundStrategy], ...] = (DPSinkhornStrategy, GSWGANStrategy, PrivatizeOnce)

STRATEGIES: Registry[type[RoundStrategy]] = Registry(
    "strategy.name",
    {cls.Settings.name: cls for cls in _OWN},
    group="fedsink.strategies",
)


def settings_of(config: Configuration, run: str) -> StrategySettings:
    """Returns the settings of the method that `strategy.name` names, for a run of this name."""
    name = config.strategy["name"]
    settings = check_mode(config.mode, name)
    try:
        made = settings.from_config(config, run)
    except FedsinkError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"A value that strategy={name} needs is missing or of the wrong type: {error}; "
            "fedsink simulate --cfg job shows them all."
        ) from error
    if unread := sorted(config.strategy.unread):
        raise ConfigError(f"Unknown key strategy.{unread[0]}: strategy={name} has no such option.")
    return made


def check_mode(mode: str, name: str) -> type[StrategySettings]:
    """Returns the settings' class of a method; raises ConfigError where a mode has no such one."""
    settings = STRATEGIES.find(name).Settings
    if settings.name != name:
        raise ConfigError(
            f"strategy.name={name!r} is installed with settings that are named {settings.name!r}: "
            "give its entry point that name."
        )
    if settings.mode != mode:
        fitting = [other for other in STRATEGIES if STRATEGIES[other].Settings.mode == mode]
        raise ConfigError(f"mode={mode} runs strategy={' or '.join(fitting)}, not {name!r}.")
    return settings


def strategy_of(settings: StrategySettings, generator: Generator, key: bytes) -> RoundStrategy:
    """Returns the strategy that runs a method; `key` is of the server's own randomness."""
    cls: Any = STRATEGIES.find(settings.name)
    strategy: RoundStrategy = cls(settings, generator, key)
    return strategy
