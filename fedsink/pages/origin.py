"""Where a run comes from: how its configuration differs from the recipe, and the command again.

Both are one list. The command is the choices of groups, then a key for every difference; what
composes it gets the run's configuration back, whether or not an experiment had been named.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from fedsink.conf.acting import lacking
from fedsink.conf.loading import choices, composed, quoted_text
from fedsink.values import Config, leaves

HIDDEN = "(a place on that machine)"
"""What a page says in the place of a path."""

# What the values of others follow from, in the order in which they are chosen.
_GROUPS = {
    "strategy": "name",
    "mechanism": "name",
    "generator": "name",
    "view": "name",
    "map": "name",
    "partition": "name",
    "engine": "name",
    "noise": "backend",
}
_PLACES = {
    "data.root": "FOLDER",
    "data.clients_file": "FILE",
    "policy": "FILE",
    "engine.address": "ADDRESS",
}
# What the values of a recipe follow from (fedsink/conf/rule.py): stated before the rest.
_SIZES = (
    *("data.shape", "data.classes", "data.nominal_records"),
    *("clients", "conditional", "eps", "delta"),
)
# What was made of the configuration, and what has done its work when all values are resolved.
_LEFT_OUT = ("run", "resume", "study", "plan", "scale", "scales", "paper")
_PLAIN = re.compile(r"[A-Za-z_][\w.:/-]*")
_WORDS = ("null", "true", "false", "nan", "inf")
_ABSENT = object()
_MISSING = object()  # the group has the key, and leaves its value to whoever types
_Differing = tuple[str, object, object]


@dataclass(frozen=True)
class Difference:
    """A key whose value is not the one that the recipe gives it.

    Attributes:
        key: in full, as it is typed.
        value: of the run; a place on its machine is hidden.
        usual: of the recipe; None: it has no such key, or leaves its value to whoever types.
    """

    key: str
    value: str
    usual: str | None


@dataclass(frozen=True)
class Origin:
    """How to get a configuration.

    Guarantees:
        - No path is in it, and no address of a cluster.

    Attributes:
        chosen: choices of groups, as they are typed.
        differences: from what these give.
        command: both, as one types them. It names FOLDER, FILE or ADDRESS where the run had a place
            of its machine.
    """

    chosen: tuple[str, ...]
    differences: tuple[Difference, ...]
    command: str

    @classmethod
    def of(cls, config: Config) -> Origin:
        """Find the choices of groups that come nearest, and what differs from them.

        Args:
            config: of a run, resolved; of its entries `run`, `scale`, `scales` and `paper` do not
                count.

        Raises:
            HydraException, OmegaConfBaseException: no choices give a configuration of this mode.
        """
        automatic = config["engine"].get("chosen") is not None
        if automatic:
            config = {**config, "engine": {**config["engine"], "name": "auto"}}
            del config["engine"]["chosen"]
        chosen, differing = _chosen(config)
        if automatic:  # the engine that was taken may lack options that `auto` has
            differing = [
                each
                for each in differing
                if each[2] is not _ABSENT or not each[0].startswith("engine.")
            ]
        if config["engine"].get("name") == "deploy":
            command = ["fedsink", "deploy", "app=APP", "superlink=SUPERLINK"]
            command += [word for word in chosen if not word.startswith("engine=")]
        else:
            command = ["fedsink", "simulate", *chosen]
        differences = [
            Difference(key, shown(key, value), _usual_text(key, usual))
            for key, usual, value in differing
        ]
        return cls(
            tuple(chosen),
            tuple(differences),
            shlex.join([*command, *(_override(*difference) for difference in differing)]),
        )


def shown(key: str, value: object) -> str:
    """A value as a page shows it: as it is typed, except for what names a place."""
    return "left out" if value is _ABSENT else _typed(key, value, HIDDEN)


def settings(config: Config) -> dict[str, str]:
    """Every key of a configuration and its value, as a page shows it."""
    kept = {key: value for key, value in config.items() if key not in _LEFT_OUT}
    return {key: shown(key, value) for key, value in leaves(kept)}


def _usual_text(key: str, usual: object) -> str | None:
    return None if usual is _ABSENT or usual is _MISSING else shown(key, usual)


def _chosen(config: Config) -> tuple[list[str], list[_Differing]]:
    """Choices of groups, and what differs from the configuration that they give."""
    data = str(config["data"]["name"])
    sources = choices("data")
    # Several files may describe one source: femnist and femnist_62 are read alike.
    candidates = [name for name in sources if name == data or name.startswith(f"{data}_")]
    # Some sources have no folder of their own, and do not compose without one.
    folder = ["data.root=null"] if "root" in config["data"] else []
    options = [
        _grouped(config, [f"mode={config['mode']}", f"data={name}"], folder)
        for name in candidates or sources
    ]
    return min(options, key=lambda option: len(option[1]))


def _grouped(
    config: Config, words: list[str], also: list[str]
) -> tuple[list[str], list[_Differing]]:
    usual, stated = _usual(config, [*words, *also])
    for group, key in _GROUPS.items():
        wanted = config[group].get(key)
        if lacking(group, config):
            continue
        if usual[group].get(key) != wanted and wanted in choices(group):
            words = [*words, f"{group}={wanted}"]
            usual, stated = _usual(config, [*words, *also])
    if usual["clip"] != config["clip"]:  # only now: a recipe has the clips of its own method alone
        usual, stated = _usual(config, [*words, *also], (*_SIZES, "clip"))
    place = {key: number for number, (key, _) in enumerate(leaves(config))}
    differing = [*stated, *_differences(usual, config)]
    # A key that an experiment set and that changes nothing would be refused where it is typed.
    differing = [each for each in differing if not lacking(each[0], config)]
    return words, sorted(differing, key=lambda difference: place.get(difference[0], len(place)))


def _usual(
    config: Config, words: list[str], sizes: tuple[str, ...] = _SIZES
) -> tuple[dict[str, Any], list[_Differing]]:
    """What choices give for the public sizes of a configuration, and its values that they lack.

    Returns:
        The values under `words`, those of the configuration in the place of each of `sizes` and of
        every key that a group leaves to whoever types; and these keys, where their values differ.
    """
    whole, stated = composed(words), []
    for key in dict.fromkeys([*sorted(OmegaConf.missing_keys(whole)), *sizes]):
        value, usual = _selected(config, key), _typed_for(whole, key)
        if value is not _ABSENT and _unequal(usual, value):
            stated.append((key, usual, value))
            with open_dict(whole):
                OmegaConf.update(whole, key, value)
    usual_values: Any = OmegaConf.to_container(whole, resolve=True)
    return usual_values, stated


def _selected(config: Config, key: str) -> object:
    value: Any = config
    for part in key.split("."):
        value = value.get(part, _ABSENT) if isinstance(value, Mapping) else _ABSENT
    return value


def _typed_for(whole: DictConfig, key: str) -> object:
    """The value of a key under choices of groups."""
    value = OmegaConf.select(whole, key, default=_MISSING)
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _unequal(before: object, after: object) -> bool:
    return type(before) is not type(after) or before != after


def _differences(usual: Config, config: Config, where: str = "") -> Iterator[_Differing]:
    """Keys in full, with their usual values and those of a configuration, where they differ."""
    for key in dict.fromkeys([*config, *usual]):
        before, after = usual.get(key, _ABSENT), config.get(key, _ABSENT)
        if (not where and key in _LEFT_OUT) or (before is None and after is _ABSENT):
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _differences(before, after, f"{where}{key}.")
        elif _unequal(before, after):
            yield f"{where}{key}", before, after


def _override(key: str, before: object, after: object) -> str:
    if after is _ABSENT:
        return f"~{key}"
    new = "+" if before is _ABSENT else ""
    return f"{new}{key}={_typed(key, after, _PLACES.get(key, 'PLACE'))}"


def _typed(key: str, value: object, place: str) -> str:
    """A value as Hydra reads it on a command line, with `place` for every place in it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(_typed(key, item, place) for item in value)}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k}:{_typed(key, v, place)}" for k, v in value.items()) + "}"
    if not isinstance(value, str):
        return str(value)
    if (key in _PLACES and value != "auto") or _is_place(value):
        return place
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return quoted_text(value)


def _is_place(value: object) -> bool:
    if not isinstance(value, str):
        return False
    absolute = PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute()
    return absolute or value.startswith(("~", "file:", "\\\\"))
