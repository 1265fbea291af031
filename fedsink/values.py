"""Checks of single values, with messages that name the value, and readers of groups of values.

>>> checks.count("strategy.rows", 0)
Traceback (most recent call last):
fedsink.errors.ConfigError: strategy.rows must be a whole number of at least 1, not 0.
>>> privacy_checks.count("rounds", 0)
Traceback (most recent call last):
fedsink.errors.PrivacyError: rounds must be an integer ≥ 1, received 0.
"""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from itertools import groupby
from numbers import Integral, Real
from typing import Any, NoReturn, TypeVar

from fedsink.errors import CheckpointError, ConfigError, FedsinkError, PrivacyError

T = TypeVar("T")
Config = Mapping[str, Any]

PLACES = ("data.root", "data.clients_file", "policy", "public.root")
"""Configuration keys that name a file or a folder of the machine that a run began on."""


def read_json(text: str | bytes) -> Any:
    """Returns the value of a JSON text that somebody else may have written, or a ValueError."""
    # Of an object with one key twice every reader shows another value, so that there is none.
    try:
        return json.loads(text, object_pairs_hook=_each_once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def alike(one: Any, two: Any) -> bool:
    """Tells whether JSON values are equal, numbers up to the rounding of another machine."""
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(alike(one[key], two[key]) for key in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(alike, one, two))
    if isinstance(one, float) and isinstance(two, float):
        return math.isclose(one, two, rel_tol=1e-9)
    return bool(one == two)


def check_format(what: str, found: object, *readable: int, error: type[FedsinkError]) -> None:
    """Refuses what is of another format than this fedsink reads; none of it counts as empty."""
    # A missing number counts as 1: earlier versions wrote none.
    if str(found) not in map(str, readable):
        raise error(
            f"{what} is of format {str(found)[:20]}, and this fedsink reads "
            f"{' and '.join(map(str, readable))}: use a fedsink that reads it, or restore it if it "
            "was changed."
        )


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it has the key {twice[:40]!r} twice")
    return table


@dataclass(frozen=True)
class Checks:
    """Checks of single values. Each returns the value as Python's own type, or raises `error`.

    Every check takes the value's name for the message, and `also`, which says what else the
    caller accepts: "null or ".
    """

    error: type[FedsinkError]
    # Words of its messages.
    above_zero: str = "a positive number"
    whole: str = "a whole number of at least"
    lie: str = "be in"
    but: str = "not"

    def positive(self, name: str, value: Any, *, also: str = "") -> float:
        """Returns a finite number above 0."""
        if not 0 < as_float(value) < math.inf:
            self._refuse(f"{name} must be {also}{self.above_zero}", value)
        return float(value)

    def number(self, name: str, value: Any, *, minimum: float = 0.0, also: str = "") -> float:
        """Returns a finite number of at least `minimum`."""
        if not minimum <= as_float(value) < math.inf:
            self._refuse(f"{name} must be {also}a number of at least {minimum:g}", value)
        return float(value)

    def count(self, name: str, value: Any, *, minimum: int = 1, also: str = "") -> int:
        """Returns a whole number of at least `minimum`, NumPy's among them."""
        if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
            self._refuse(f"{name} must be {also}{self.whole} {minimum}", value)
        return int(value)

    def within(self, name: str, value: Any, interval: str) -> float:
        """Returns a number in an interval as it is written, "[0, 1)"."""
        low, high = (float(end) for end in interval[1:-1].split(","))
        excluded = [low] * interval.startswith("(") + [high] * interval.endswith(")")
        number = as_float(value)
        if not low <= number <= high or number in excluded:
            self._refuse(f"{name} must {self.lie} {interval}", value)
        return number

    def probability(self, name: str, value: Any) -> float:
        """Returns a probability above 0."""
        return self.within(name, value, "(0, 1]")

    def failure_probability(self, value: Any) -> float:
        """Returns δ of (ε, δ): 0 < δ < 1."""
        return self.within("delta", value, "(0, 1)")

    def choice(self, name: str, value: Any, *choices: str) -> str:
        """Reads one of some words."""
        if not isinstance(value, str) or value not in choices:
            *most, last = choices
            words = f"{', '.join(most)} or {last}" if most else last
            self._refuse(f"{name} is {words}", value)
        return value

    def flag(self, name: str, value: Any) -> bool:
        """True or False."""
        if not isinstance(value, bool):
            self._refuse(f"{name} is true or false", value)
        return value

    def one_of(self, name: str, value: object, kinds: Iterable[type]) -> None:
        """Refuses an object of a class that is not in `kinds`."""
        if not isinstance(value, kinds := tuple(kinds)):
            names = ", ".join(kind.__name__ for kind in kinds)
            self._refuse(f"{name} must be one of {names}", value)

    def require(self, module: str) -> Any:
        """Imports a library on first use; raises `error` if it is not installed."""
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as missing:
            package = module.partition(".")[0].replace("_", "-")
            raise self.error(
                f"this needs the Python package {package} (missing: {missing.name}): "
                f"install it with `pip install {package}`."
            ) from None

    def _refuse(self, sentence: str, value: object) -> NoReturn:
        try:
            shown = repr(value)
        except ValueError:  # Python prints no whole number of more than 4300 digits
            shown = "a number of thousands of digits"
        raise self.error(f"{sentence}, {self.but} {shown}.")


checks = Checks(ConfigError)
privacy_checks = Checks(PrivacyError, "a finite number > 0", "an integer ≥", "lie in", "received")


def is_number(value: object) -> bool:
    """Tells whether `value` is a real number; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def as_float(value: object) -> float:
    """Returns a real number as a float: ±∞ where it is too large, and NaN where it is no number."""
    if not is_number(value):
        return math.nan
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]


def strictly(cls: type[T], values: Config, where: str = "") -> T:
    """Builds a settings dataclass, which checks the values, from exactly the keys of a group."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} is a group of keys, not {values!r}.")
    group = f"{where}." if where else ""
    accepted = [f for f in fields(cls) if f.init]  # type: ignore[arg-type]
    if unknown := sorted(map(str, set(values) - {f.name for f in accepted})):
        names = ", ".join(f.name for f in accepted)
        raise ConfigError(f"Unknown key {group}{unknown[0]}; there are {names}.")
    needed = (f.name for f in accepted if f.default is MISSING and f.default_factory is MISSING)
    if missing := [name for name in needed if name not in values]:
        raise ConfigError(f"The configuration lacks {group}{missing[0]}.")
    try:
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    except FedsinkError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"The configuration of {where} is mistyped: {error}.") from error


def leaves(values: Config, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of nested tables by their dotted keys; an empty table is a value."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


MOST_CLIENTS = 10_000_000
"""The largest number of clients in a file that is read."""

_NAME = re.compile(r"(0|[1-9][0-9]{0,14})(?:-([1-9][0-9]{0,14}))?")


def names_of(clients: range) -> list[int | str]:
    """Returns the names of clients with one entry: ten numbers at most, else the range "0-99"."""
    return [*clients] if len(clients) <= 10 else [f"{clients[0]}-{clients[-1]}"]


def by_range(entries: Iterable[tuple[int, T]]) -> Iterator[tuple[int | str, T]]:
    """Yields names and entries, given increasing clients: neighbours with equal entries share."""
    placed = enumerate(entries)
    for (_, entry), alike in groupby(placed, lambda one: (one[1][0] - one[0], one[1][1])):
        clients = [client for _, (client, _) in alike]
        for name in names_of(range(clients[0], clients[-1] + 1)):
            yield name, entry


def read_ranges(listed: object, below: int) -> list[tuple[range, Config]]:
    """Returns the clients of each entry, by its `client`, and the entry; who wrote it is unknown.

    Guarantees:
        - Clients increase, none has two entries, and all are below `below`.
        - What is refused takes neither time nor memory for the clients that it names.
    """
    found, free = list[tuple[range, Any]](), 0
    for entry in listed if isinstance(listed, list) else [None]:
        name = entry.get("client") if isinstance(entry, Mapping) else None
        match = _NAME.fullmatch(str(name))
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (-1, -1)
        if not free <= first <= last < below:
            raise CheckpointError(
                "A list of clients has increasing numbers, or ranges like 0-99, each client once "
                f"and below {below}: {str(name)[:40]!r} is not its next one."
            )
        found.append((range(first, last + 1), entry))
        free = last + 1
    return found


def given(options: Config) -> dict[str, Any]:
    """Returns the options that are stated; null leaves an option to its default."""
    return {key: value for key, value in options.items() if value is not None}


class Options(Mapping[str, Any]):
    """A group of keys that records which of them were never read."""

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
