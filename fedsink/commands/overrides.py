"""Keys as a user types them, read before Hydra reads them, so that a mistake gets advice."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from fedsink.commands.keys import not_a_pair
from fedsink.errors import ConfigError

_OF_GRAMMAR = set("'\"[]{}(),$\\")
"""Characters that a value may mean something by: it is left to the user to quote them."""


def overrides(arguments: Sequence[str], *, sweep: bool = False) -> list[str]:
    """The keys in Hydra's grammar.

    Hydra reads letters of other alphabets, `~` and some signs in quotes alone. Where it cannot
    read a value that holds no sign of its grammar (quotes, brackets, commas, backslashes, $), the
    value is quoted, and a `~` at its start becomes the home folder, as in a shell.

    >>> overrides(["data.root=/donnees/ete", "eps=3"])
    ['data.root=/donnees/ete', 'eps=3']
    >>> overrides(["data.root=/données/été 2026"])
    ["data.root='/données/été 2026'"]

    Args:
        arguments: key=value, +key=value or ~key.
        sweep: whether key=a,b stands for several runs.

    Raises:
        ConfigError: an argument is no key=value, its key is given twice, or its value cannot be
            read.
    """
    first: dict[str, str] = {}
    for position, argument in enumerate(arguments):
        if "=" not in argument and not argument.startswith("~"):
            raise ConfigError(not_a_pair(arguments, position, "see fedsink simulate --help"))
        key = argument.partition("=")[0].lstrip("+~")
        if key in first:
            raise ConfigError(
                f"{key} was given twice ({first[key]} and {argument}): leave one of them out."
            )
        first[key] = argument
    return [_readable(argument, sweep) for argument in arguments]


def _readable(argument: str, sweep: bool) -> str:
    key, equals, value = argument.partition("=")
    plain = bool(equals) and not _OF_GRAMMAR & set(value)
    home = os.path.expanduser(value) if value.startswith("~") else value
    for text in (argument, f"{key}='{home}'") if plain else (argument,):
        try:
            parsed = OverridesParser.create().parse_override(text)
        except HydraException:
            continue
        if parsed.is_sweep_override() and not sweep:
            raise ConfigError(
                f"{argument} stands for several runs: add --multirun, or, if it is one value, "
                f"quote it: {quoted(argument)}."
            )
        return text
    raise ConfigError(
        f"{argument} cannot be read: quote the value inside the argument, as in "
        f"{quoted(argument)}; in a list, each of its elements."
    )


def quoted(argument: str) -> str:
    """How key=value is typed in a shell so that Hydra takes the value as it stands."""
    key, _, value = argument.partition("=")
    escaped = value.replace('"', '\\"')
    return shlex.quote(f'{key}="{escaped}"')
