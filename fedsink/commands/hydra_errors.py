"""Hydra's and OmegaConf's errors in one sentence."""

from __future__ import annotations

import re
from functools import lru_cache

from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue

from fedsink.conf.loading import choices, composed
from fedsink.errors import FedsinkError
from fedsink.registry import did_you_mean


def one_sentence(error: Exception) -> str:
    """What was wrong, what was received, and what to do."""
    text = str(error)
    if match := re.search(r"Could not override '([^']+)'", text):
        return _unknown_key(match.group(1))
    if match := re.search(r"Key '([^']+)' is not in struct", text):
        return _unknown_key(match.group(1))
    if match := re.search(r"Could not find 'recipe/default/([^'/]+)/([^'/]+)/([^'/]+)'", text):
        return _no_recipe(*match.groups())
    if match := re.search(r"Could not find '([^']+)/([^'/]+)'", text):
        group, choice = match.groups()
        return (
            f"There is no {group}={choice}: choose one of {', '.join(choices(group)) or 'nothing'}."
        )
    if isinstance(error, MissingMandatoryValue):
        key = error.full_key or str(error.key)
        return f"{key} must be given: add {key}=… to the command."
    if isinstance(error, InterpolationResolutionError):
        if (refused := _refusal(error)) is not None:
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
    """What fedsink itself refused while a value was resolved, for which OmegaConf has its own."""
    while error is not None and not isinstance(error, FedsinkError):
        error = error.__cause__ or error.__context__
    return error


@lru_cache(maxsize=1)
def known_keys() -> list[str]:
    """Every group and every dotted key of the default configuration and of all group files."""
    keys: list[str] = []
    for mode in ("central", "ldp"):
        config = composed([f"mode={mode}"])
        keys += list(_dotted(OmegaConf.to_container(config, resolve=False), ""))
    return sorted(set(keys))


def _unknown_key(key: str) -> str:
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
