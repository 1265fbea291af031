"""Python values as Hydra overrides.

>>> as_overrides({"eps": float("inf"), "strategy": {"rows": 20}, "data.root": "/a b"}, {"strategy"})
['eps=inf', 'strategy.rows=20', "data.root='/a b'"]
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from numbers import Integral, Real
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString

from fedsink.errors import ConfigError

_KEY = re.compile(r"[A-Za-z_]\w*([./@][A-Za-z_]\w*)*", re.ASCII)


def as_overrides(values: Mapping[str, Any], groups: Collection[str]) -> list[str]:
    """One override for each key, of which Hydra reads exactly the value that was given.

    A mapping under the name of a group stands for the options of that group; under any other key it
    is a table. Text that holds ``${`` is an interpolation, as on the command line.

    Args:
        values: None, truth values, numbers, text, paths, and lists, tuples and mappings of these,
            by keys with or without dots.
        groups: names of the configuration groups.

    Raises:
        ConfigError: a key that is none, or is given twice, or a value of another type.
    """
    overrides: dict[str, str] = {}
    for key, value in _flat(values, groups):
        if key in overrides:
            raise ConfigError(f"{key} was given twice: leave one of them out.")
        overrides[key] = f"{key}={_literal(key, value)}"
    return list(overrides.values())


def quoted_text(text: str) -> str:
    """A text in Hydra's grammar, read as it stands, what looks like an interpolation included.

    >>> print(quoted_text("l'été"), quoted_text('"a"'))
    "l'été" '"a"'
    """
    quote = Quote.single if '"' in text else Quote.double
    escaped = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    return QuotedString(escaped, quote).with_quotes()


def _flat(values: Mapping[str, Any], groups: Collection[str]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if key in groups and isinstance(value, Mapping):
            yield from ((f"{key}.{_checked(option)}", inner) for option, inner in value.items())
        else:
            yield _checked(key), value


def _checked(key: object) -> str:
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise ConfigError(f"A key is a name such as eps or strategy.rows, not {key!r}.")
    return key


def _literal(key: str, value: object) -> str:
    """A value in the grammar of Hydra's overrides."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real):
        return repr(float(value))
    if isinstance(value, str | os.PathLike):
        return QuotedString(os.fsdecode(value), Quote.single).with_quotes()
    if isinstance(value, list | tuple):
        return f"[{','.join(_literal(key, element) for element in value)}]"
    if isinstance(value, Mapping):
        items = (f"{_checked(name)}:{_literal(key, inner)}" for name, inner in value.items())
        return f"{{{','.join(items)}}}"
    raise ConfigError(
        f"{key} is of the type {type(value).__name__}: give None, a truth value, a number, text, a "
        "path, or a list or mapping of these."
    )
