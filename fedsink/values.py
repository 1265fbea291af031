"""Values of a configuration: each checked once, with a message that names its key.

>>> integer({"rows": 0}, "rows", where="strategy.")
Traceback (most recent call last):
fedsink.errors.ConfigError: strategy.rows must be a whole number of at least 1, not 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from numbers import Integral
from typing import Any, TypeVar

from fedsink.errors import ConfigError, FedsinkError

T = TypeVar("T")
Config = Mapping[str, Any]


def strictly(cls: type[T], values: Config, where: str = "") -> T:
    """Build a settings dataclass, which checks the values, from exactly the keys that it has.

    Args:
        cls: the dataclass.
        values: by the names of its fields.
        where: the group of these keys; "" for those outside of any group.

    Raises:
        ConfigError: an unknown key or a missing one, by its full name.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} is a group of keys, not {values!r}.")
    group = f"{where}." if where else ""
    known = [f for f in fields(cls) if f.init]  # type: ignore[arg-type]
    if unknown := sorted(set(values) - {f.name for f in known}):
        names = ", ".join(f.name for f in known)
        raise ConfigError(f"Unknown key {group}{unknown[0]}; there are {names}.")
    needed = (f.name for f in known if f.default is MISSING and f.default_factory is MISSING)
    if missing := [name for name in needed if name not in values]:
        raise ConfigError(f"The configuration lacks {group}{missing[0]}.")
    try:
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    except FedsinkError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"The configuration of {where} is mistyped: {error}.") from error


PLACES = ("data.root", "data.clients_file", "policy")
"""Configuration keys that name a file or a folder of the machine that a run began on."""


def leaves(values: Config, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested tables by their dotted keys; an empty table is a value."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


class Options(Mapping[str, Any]):
    """A group of keys that knows which of them were never read.

    Args:
        where: the group.
        values: of its keys.

    Attributes:
        unread: the keys that nothing has asked for.
    """

    def __init__(self, where: str, values: Config) -> None:
        self._where, self._values = where, values
        self.unread = set(values)

    def __getitem__(self, key: str) -> Any:
        self.unread.discard(key)
        if key not in self._values:
            raise ConfigError(f"The configuration lacks {self._where}.{key}.")
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


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


def positive(values: Config, key: str, *, where: str = "", also: str = "") -> float:
    """A finite number above 0; `also` says what else the caller takes, "null or "."""
    value = values[key]
    if not is_number(value) or not 0.0 < value < math.inf:
        raise ConfigError(f"{where}{key} must be {also}a positive number, not {value!r}.")
    return float(value)


def number(
    values: Config, key: str, *, minimum: float = 0.0, where: str = "", also: str = ""
) -> float:
    """A finite number of at least `minimum`; `also` as in `positive`."""
    value = values[key]
    if not is_number(value) or not minimum <= value < math.inf:
        raise ConfigError(
            f"{where}{key} must be {also}a number of at least {minimum:g}, not {value!r}."
        )
    return float(value)


def within(values: Config, key: str, interval: str, *, where: str = "") -> float:
    """A number in an interval as it is written, "[0, 1)"."""
    value = values[key]
    low, high = (float(end) for end in interval[1:-1].split(","))
    excluded = [low] * interval.startswith("(") + [high] * interval.endswith(")")
    if not is_number(value) or not low <= value <= high or value in excluded:
        raise ConfigError(f"{where}{key} must be in {interval}, not {value!r}.")
    return float(value)


def integer(values: Config, key: str, *, minimum: int = 1, where: str = "", also: str = "") -> int:
    """A whole number of at least `minimum`; `also` as in `positive`."""
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError(
            f"{where}{key} must be {also}a whole number of at least {minimum}, not {value!r}."
        )
    return value


def count(name: str, value: object, *, minimum: int = 1) -> int:
    """A whole number of at least `minimum` that Python gives, NumPy's among them.

    Raises:
        ConfigError: it is none; the message calls it `name`.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ConfigError(f"{name} must be a whole number of at least {minimum}, not {value!r}.")
    return integer({name: int(value)}, name, minimum=minimum)


def flag(values: Config, key: str, *, where: str = "") -> bool:
    """A truth value."""
    value = values[key]
    if not isinstance(value, bool):
        raise ConfigError(f"{where}{key} is true or false, not {value!r}.")
    return value


def is_number(value: object) -> bool:
    """Whether `value` is a number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)
