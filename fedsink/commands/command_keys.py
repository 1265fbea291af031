"""key=value arguments of the commands that need no Hydra."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedsink.errors import ConfigError
from fedsink.registry import GONE, did_you_mean

Parser = Callable[[str], Any]


def parse(
    arguments: Sequence[str],
    parsers: Mapping[str, Parser],
    *,
    of: str = "",
    needs: Sequence[str] = (),
) -> dict[str, Any]:
    """Reads the key=value arguments of the command `of`, which needs some of its keys."""
    values: dict[str, Any] = {}
    for position, argument in enumerate(arguments):
        key, equals, text = argument.partition("=")
        if not equals:
            raise ConfigError(not_a_pair(arguments, position, f"keys: {', '.join(parsers)}"))
        if key not in parsers:
            raise ConfigError(
                GONE.get(key)
                or f"Unknown key {key!r}.{did_you_mean(key, parsers)} Keys: {', '.join(parsers)}."
            )
        if key in values:
            raise ConfigError(f"{key} was given twice.")
        try:
            values[key] = parsers[key](text)
        except ValueError as error:
            raise ConfigError(f"{key}={text}: {str(error).removesuffix('.')}.") from error
    for key in needs:
        if values.get(key) in (None, "", []):
            raise ConfigError(f"{key}= is missing; fedsink {of} --help says what to give.")
    return values


def not_a_pair(arguments: Sequence[str], position: int, more: str) -> str:
    """Returns a sentence about the argument at `position`; `more` says where keys are listed."""
    word, *others = arguments[position:]
    before = arguments[position - 1] if position else ""
    if before.count("{") > before.count("}") or before.count("[") > before.count("]"):
        whole_value = shlex.quote(" ".join([before, word, *others]))
        return f"{word!r} belongs to the argument before it: quote that whole, {whole_value}."
    if others and "=" not in others[0] and not word.startswith("-"):
        return f"Keys are written key=value: {word}={others[0]}, not {word} {others[0]}; {more}."
    return f"{word!r} is not of the form key=value; {more}."


def whole(minimum: int) -> Parser:
    """Returns a whole number of at least `minimum`."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"expected a whole number, received {text!r}") from None
        if number < minimum:
            raise ValueError(f"must be at least {minimum}")
        return number

    return read


def choice(*options: str) -> Parser:
    """Reads one of `options`."""

    def read(text: str) -> str:
        if text not in options:
            raise ValueError(f"choose one of {', '.join(options)}")
        return text

    return read


def real(text: str) -> float:
    """Returns a number."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"expected a number, received {text!r}") from None


def flag(text: str) -> bool:
    """Reads `true` or `false`."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"expected true or false, received {text!r}")
    return text.lower() == "true"
