"""Reading values of a configuration, with a message that names the key where one is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from fedsink.errors import ConfigError, FedsinkError

T = TypeVar("T")
Config = Mapping[str, Any]


def strictly(cls: type[T], values: Config, where: str) -> T:
    """Build a settings dataclass, refusing keys that it does not have.

    Raises:
        ConfigError: an unknown key or a missing one, by its full name.
    """
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    if unknown := sorted(set(values) - set(known)):
        raise ConfigError(f"Unknown key {where}.{unknown[0]}; there are {', '.join(known)}.")
    try:
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    except FedsinkError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"The configuration of {where} is incomplete or mistyped: {error}."
        ) from error


def given(options: Config) -> dict[str, Any]:
    """The options that are stated; null leaves one to its default."""
    return {key: value for key, value in options.items() if value is not None}


def choice(values: Config, key: str, *choices: str, where: str = "") -> str:
    """One of a few words."""
    value = values[key]
    if not isinstance(value, str) or value not in choices:
        *most, last = choices
        raise ConfigError(f"{where}{key} is {', '.join(most)} or {last}, not {value!r}.")
    return value


def positive(values: Config, key: str, *, where: str = "") -> float:
    """A number above 0."""
    value = number(values, key, minimum=0.0, where=where)
    if value == 0.0:
        raise ConfigError(f"{where}{key} must be a positive number, not {values[key]!r}.")
    return value


def number(values: Config, key: str, *, minimum: float, where: str = "") -> float:
    """A number of at least `minimum`."""
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= minimum:
        raise ConfigError(f"{where}{key} must be a number of at least {minimum:g}, not {value!r}.")
    return float(value)


def integer(values: Config, key: str, *, minimum: int = 1, where: str = "") -> int:
    """A whole number of at least `minimum`."""
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError(
            f"{where}{key} must be a whole number of at least {minimum}, not {value!r}."
        )
    return value


def flag(values: Config, key: str, *, where: str = "") -> bool:
    """A truth value."""
    value = values[key]
    if not isinstance(value, bool):
        raise ConfigError(f"{where}{key} is true or false, not {value!r}.")
    return value
