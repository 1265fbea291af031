"""Keys of Hydra as a user types them, and its errors in one sentence: a mistake gets advice."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import (
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from fedsink.commands.command_keys import not_a_pair
from fedsink.conf.loading import choices, composed, file_of, groups, quoted_text
from fedsink.errors import ConfigError, FedsinkError
from fedsink.registry import GONE, did_you_mean

_OF_GRAMMAR = set("'\"[]{}(),$\\")
"""Characters that a value may mean something by: it is left to the user to quote them."""
_PLUGINS = {
    "sweeper": ("ax", "nevergrad", "optuna"),
    "launcher": ("joblib", "ray", "rq", "submitit"),
}
"""Hydra's own plugins that are packages by themselves, by group."""
_ELEMENT = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^,]*?)\s*(?:,|$)""")
"""An element of a list as it is typed, up to the next comma; a quoted one may hold commas."""


def overrides(arguments: Sequence[str], *, sweep: bool = False) -> list[str]:
    """Returns the keys in Hydra's grammar.

    Hydra reads letters of other alphabets, `~` and some signs in quotes only. Where it cannot
    read a value, or an element of a list, that holds no sign of its grammar (quotes, brackets,
    commas, backslashes, $), it is quoted, and a `~` at the start of a value becomes the home
    folder, as in a shell.

    >>> overrides(["data.root=/donnees/ete", "eps=3"])
    ['data.root=/donnees/ete', 'eps=3']
    >>> overrides(["data.root=/données/été 2026"])
    ['data.root="/données/été 2026"']
    >>> overrides(["data.classes=[chat,été]"])
    ['data.classes=[chat,"été"]']

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
    for text in (argument, *(f"{key}={plain}" for plain in _plain(value) if equals)):
        parsed = _parsed(text)
        if parsed is None:
            continue
        if parsed.is_sweep_override() and not sweep:
            raise ConfigError(
                f"{argument} stands for several runs: add --multirun, or, if it is one "
                f"{_one_value(key, value)}."
            )
        return text
    if _elements(value) is None:
        raise ConfigError(
            f"{argument} cannot be read: quote the value inside the argument, as in "
            f"{quoted(argument)}."
        )
    raise ConfigError(
        f"{argument} cannot be read: quote the elements of the list inside the argument, as in "
        f"{quoted(argument)}."
    )


def quoted(argument: str) -> str:
    """Returns key=value as it is typed in a shell so that Hydra takes the value as it stands.

    In a list every element is quoted that Hydra does not read by itself; empty ones are left out.
    """
    key, _, value = argument.partition("=")
    elements = _elements(value)
    if elements is None:
        return shlex.quote(f"{key}={quoted_text(value)}")
    return shlex.quote(f"{key}=[{','.join(_element(text) for text in elements if text)}]")


def names(text: str) -> tuple[str, ...]:
    """Returns the names in `[A,B]`, of which those with a comma stand in quotes.

    >>> names("[chat,l'été,'a, b']")
    ('chat', "l'été", 'a, b')
    """
    elements = _elements(text if text.startswith("[") else f"[{text}]")
    return tuple(map(_unquoted, elements or ()))


def _unquoted(element: str) -> str:
    if element[:1] not in ("'", '"') or (parsed := _parsed(f"x={element}")) is None:
        return element
    return str(OmegaConf.create({"x": parsed.value()}).x)


def _one_value(key: str, value: str) -> str:
    """Advises a user who means a single value by text with commas."""
    if OmegaConf.is_list(OmegaConf.select(composed([]), key.lstrip("+"))):
        return f"list, write it in brackets: {quoted(f'{key}=[{value}]')}"
    return f"value, quote it: {quoted(f'{key}={value}')}"


def _plain(value: str) -> list[str]:
    """Quotes a value, or elements of a list, where no sign of the grammar is in them."""
    if not _OF_GRAMMAR & set(value):
        home = os.path.expanduser(value) if value.startswith("~") else value
        return [quoted_text(home)]
    elements = _elements(value) or []
    if any(not e or (_OF_GRAMMAR & set(e) and not _reads(e)) for e in elements):
        return []
    return [f"[{','.join(map(_element, elements))}]"] if elements else []


def _elements(value: str) -> list[str] | None:
    """Returns the elements of a list as they are typed; None where the value is no list."""
    if not (value.startswith("[") and value.endswith("]")):
        return None
    inner, place, elements = value[1:-1], 0, []
    while place <= len(inner):
        match = _ELEMENT.match(inner, place)
        if match is None:  # never: the last alternative takes whatever there is
            return None
        elements.append(match[1])
        place = match.end() if match[0].endswith(",") else len(inner) + 1
    return elements


def _element(text: str) -> str:
    return text if _reads(text) else quoted_text(text)


def _reads(element: str) -> bool:
    """Tells whether Hydra reads the text as one element of a list."""
    parsed = _parsed(f"x=[{element}]")
    read = None if parsed is None else parsed.value()
    return isinstance(read, list) and len(read) == 1


def _parsed(text: str) -> Override | None:
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException:
        return None


def typed_value(argument: str) -> str:
    """Returns the value of `key=value` without the quotes of Hydra's grammar."""
    parsed = _parsed(argument)
    return argument.partition("=")[2] if parsed is None else str(parsed.value())


def one_sentence(error: Exception) -> str:
    """Turns an error of Hydra or OmegaConf into a sentence: the mistake, the value, the remedy."""
    text = str(error)
    if match := re.search(r"Could not override '([^']+)'", text):
        return _unknown_key(match.group(1))
    if match := re.search(r"Key '([^']+)' is not in struct", text):
        return _unknown_key(match.group(1))
    if match := re.search(r"Could not find 'recipe/default/([^'/]+)/([^'/]+)/([^'/]+)'", text):
        return _no_recipe(*match.groups())
    if match := re.search(r"Could not find '([^']+)/([^'/]+)'", text):
        group, choice = match.groups()
        if gone := GONE.get(f"{group}={choice}"):
            return gone
        kind = group.removeprefix("hydra/")
        if choice in _PLUGINS.get(kind, ()):
            return (
                f"{group}={choice} needs the Python package hydra-{choice}-{kind}, which is not "
                f"installed: `pip install hydra-{choice}-{kind}`, or leave {group} out."
            )
        return (
            f"There is no {group}={choice}: choose one of {', '.join(choices(group)) or 'nothing'}."
            f"{did_you_mean(choice, choices(group))}"
        )
    if isinstance(error, MissingMandatoryValue):
        key = error.full_key or str(error.key)
        return f"{key} must be given: add {key}=… to the command."
    if isinstance(error, InterpolationResolutionError):
        refused = _refusal(error) or _of_other_mode(error)
        if refused is not None:
            return str(refused)
        if match := re.search(r"key 'scales\.([^.']+)\.\w+' not found", text):
            return f"This experiment has no scale={match.group(1)}: choose smoke, cpu or paper."
        match = re.search(r"key 'recipe\.([^.']+)\.\w+' not found", text)
        if match and match.group(1) not in ("record", "batch"):
            return f"clip is record or batch, not {match.group(1)!r}."
        return (
            f"A value refers to another that this mode or recipe does not have: {_flat(text)} "
            "Does the generator or strategy belong to the other mode?"
        )
    return f"The configuration is not valid: {_flat(text)}"


def _refusal(error: BaseException | None) -> FedsinkError | None:
    """Returns fedsink's own error that OmegaConf wrapped while it resolved a value, if any."""
    while error is not None and not isinstance(error, FedsinkError):
        error = error.__cause__ or error.__context__
    return error


def _of_other_mode(error: InterpolationResolutionError) -> FedsinkError | None:
    """Returns the refusal of a method that belongs to the other mode, if that is the mistake."""
    from fedsink.strategies.methods import check_mode

    root: Any = error.parent_node and error.parent_node._get_root()
    try:
        check_mode(root.mode, root.strategy.name)
    except FedsinkError as refused:
        return refused
    except (AttributeError, OmegaConfBaseException):
        pass
    return None


@lru_cache(maxsize=1)
def known_keys() -> list[str]:
    """Lists every group and dotted key of the default configuration of each mode."""
    keys: list[str] = []
    for mode in ("central", "ldp"):
        config = composed([f"mode={mode}"])
        keys += list(_dotted(OmegaConf.to_container(config, resolve=False), ""))
    return sorted(set(keys))


def _unknown_key(key: str) -> str:
    group, _, option = key.partition(".")
    if gone := GONE.get(key) or GONE.get(group) or GONE.get(".".join(key.split(".")[:2])):
        return gone
    if option and group in groups():
        having = [choice for choice in choices(group) if _has(group, choice, option)]
        if having == ["deploy"]:
            return f"{key} acts only in fedsink deploy: leave it out."
        if having:
            chosen = " or ".join(f"{group}={choice}" for choice in having)
            return f"{key} acts with {chosen}: choose it, or leave {key} out."
    if key in known_keys():
        return (
            f"{key} is a key of another mode, strategy or engine than those chosen: leave it "
            "out, or choose the one that has it. Without it, --cfg job lists the keys that there "
            "are."
        )
    tail = ".".join(key.split(".")[-2:])  # mechanism.map.block: the group itself exists
    near = [tail] if tail in known_keys() else []
    hint = f" Did you mean {near[0]}?" if near else did_you_mean(key, known_keys(), cutoff=0.5)
    return f"Unknown key {key!r}.{hint} fedsink simulate --cfg job lists them all."


def _has(group: str, choice: str, option: str) -> bool:
    """Tells whether a choice's own file has an option."""
    values: Any = OmegaConf.to_container(file_of(group, choice), resolve=False)
    return option in _dotted(values, "")


def _no_recipe(mode: str, mechanism: str, records: str) -> str:
    folder = f"recipe/default/{mode}"
    fitting = [name for name in choices("mechanism") if records in choices(f"{folder}/{name}")]
    return f"mode={mode} has no mechanism={mechanism}: choose {' or '.join(fitting)}."


def _dotted(node: object, prefix: str) -> list[str]:
    if not isinstance(node, dict):
        return []
    words = []
    for key, value in node.items():
        words.append(f"{prefix}{key}")
        words += _dotted(value, f"{prefix}{key}.")
    return words


def _flat(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(line.rstrip(".") for line in lines[:2]) + "."
