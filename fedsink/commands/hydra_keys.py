"""Keys of Hydra as a user types them, and its errors in one sentence: a mistake gets advice."""

from __future__ import annotations

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
from fedsink.conf.loading import choices, composed, file_of, groups
from fedsink.errors import ConfigError, FedsinkError
from fedsink.registry import did_you_mean, gone
from fedsink.reporting.typed import quoted_text

_PLUGINS = {
    "sweeper": ("ax", "nevergrad", "optuna"),
    "launcher": ("joblib", "ray", "rq", "submitit"),
}
"""Hydra's own plugins that are packages by themselves, by group."""


def overrides(arguments: Sequence[str], *, sweep: bool = False) -> list[str]:
    """Returns the keys in Hydra's grammar, once all can be read; a `sweep` may say key=a,b."""
    for position, argument in enumerate(arguments):
        if "=" not in argument and not argument.startswith("~"):
            raise ConfigError(not_a_pair(arguments, position, "see fedsink simulate --help"))
    first: dict[str, str] = {}
    for argument in arguments:
        key, _, value = argument.partition("=")
        key = key.lstrip("+~")
        if key in first:
            raise ConfigError(
                f"{key} was given twice ({first[key]} and {argument}): leave one of them out."
            )
        first[key] = argument
        parsed = _parsed(argument)
        if parsed is None:
            raise ConfigError(
                f"{argument} cannot be read: signs and letters beyond a to z are quoted inside the "
                f"argument, as in {quoted(argument)}."
            )
        if parsed.is_sweep_override() and not sweep:
            one = f"value, quote it: {quoted(argument)}"
            if OmegaConf.is_list(OmegaConf.select(composed([]), key)):
                one = f"list, write it in brackets: {shlex.quote(f'{key}=[{value}]')}"
            raise ConfigError(
                f"{argument} stands for several runs: add --multirun, or, if it is one {one}."
            )
    return list(arguments)


def quoted(argument: str) -> str:
    """Returns key=value as it is typed in a shell so that Hydra takes the value as text."""
    # In a list only those elements are quoted that Hydra does not read by themselves.
    key, _, value = argument.partition("=")
    if not (value.startswith("[") and value.endswith("]")):
        return shlex.quote(f"{key}={quoted_text(value)}")
    elements = filter(None, map(str.strip, value[1:-1].split(",")))
    read = (e if _parsed(f"x=[{e}]") else quoted_text(e) for e in elements)
    return shlex.quote(f"{key}=[{','.join(read)}]")


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
        if sentence := gone(f"{group}={choice}"):
            return sentence
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
    if sentence := gone(key) or gone(group) or gone(".".join(key.split(".")[:2])):
        return sentence
    if option and group in groups():
        having = [choice for choice in choices(group) if _has(group, choice, option)]
        if having == ["deploy"]:
            return f"{key} acts only in fedsink deploy: leave it out."
        if having:
            words = " or ".join(f"{group}={choice}" for choice in having)
            return f"{key} acts with {words}: choose it, or leave {key} out."
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
