"""The command line of a run, and the differences between its configuration and the recipe.

Both are one list: the command is the choices of groups, then a key for every difference. Composing
the command gives the run's configuration again, even if the run was started by experiment=NAME.
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
"""Text that replaces a path on a page."""

# Groups that other values depend on, in the order in which they are chosen.
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
    "public.root": "FOLDER",
    "engine.address": "ADDRESS",
}
# Keys that the values of a recipe depend on (fedsink/conf/rule.py): stated before the rest.
_SIZES = (
    *("data.shape", "data.classes", "data.nominal_records"),
    *("clients", "conditional", "eps", "delta"),
)
# Keys that a run adds to its configuration, and keys without effect once values are resolved.
_LEFT_OUT = ("run", "resume", "study", "plan", "scale", "scales", "paper")
_PLAIN = re.compile(r"[A-Za-z_][\w.:/-]*")
_WORDS = ("null", "true", "false", "nan", "inf")
_ABSENT = object()
_MISSING = object()  # the group has the key, and its value must be typed
_Differing = tuple[str, object, object]


@dataclass(frozen=True)
class Difference:
    """A key whose value differs from the recipe's.

    Attributes:
        key: in full, as typed.
        value: of the run; a place on its machine is hidden.
        usual: of the recipe; None: the recipe lacks the key, or its value must be typed.
    """

    key: str
    value: str
    usual: str | None


@dataclass(frozen=True)
class CommandLine:
    """The command that gives a configuration.

    Guarantees:
        - The command holds no path, and no address of a cluster.

    Attributes:
        chosen: choices of groups, as typed.
        differences: between the run's configuration and the one that the choices give.
        command: both, as typed, with FOLDER, FILE or ADDRESS for places of the run's machine.
    """

    chosen: tuple[str, ...]
    differences: tuple[Difference, ...]
    command: str

    @classmethod
    def of(cls, config: Config) -> CommandLine:
        """Finds the choices of groups that come nearest, and the differences from them.

        Args:
            config: of a run, resolved; its entries `run`, `scale`, `scales` and `paper` are
                ignored.

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
                (key, usual, value)
                for key, usual, value in differing
                if value is not _ABSENT or not key.startswith("engine.")
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
    """Writes a value as a page shows it: as typed, except for places."""
    return "left out" if value is _ABSENT else _typed(key, value, HIDDEN)


def shown_settings(config: Config) -> dict[str, str]:
    """Returns every key of a configuration and its value, as a page shows it."""
    kept = {key: value for key, value in config.items() if key not in _LEFT_OUT}
    return {key: shown(key, value) for key, value in leaves(kept)}


def _usual_text(key: str, usual: object) -> str | None:
    return None if usual is _ABSENT or usual is _MISSING else shown(key, usual)


def _chosen(config: Config) -> tuple[list[str], list[_Differing]]:
    """Returns choices of groups, and the differences from the configuration that they give."""
    data = str(config["data"]["name"])
    sources = choices("data")
    # Several files may describe one source: femnist and femnist_62 are read alike.
    candidates = [name for name in sources if name == data or name.startswith(f"{data}_")]
    # Sources without a default folder do not compose unless the key is set.
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
    if usual["clip"] != config["clip"]:  # only now: a recipe has only the clips of its method
        usual, stated = _usual(config, [*words, *also], (*_SIZES, "clip"))
    place = {key: number for number, (key, _) in enumerate(leaves(config))}
    differing = [*stated, *_differences(usual, config)]
    # A key that an experiment set and that changes nothing would be refused where it is typed.
    differing = [change for change in differing if not lacking(change[0], config)]
    return words, sorted(differing, key=lambda difference: place.get(difference[0], len(place)))


def _usual(
    config: Config, words: list[str], sizes: tuple[str, ...] = _SIZES
) -> tuple[dict[str, Any], list[_Differing]]:
    """Composes the choices `words` with the public sizes of a configuration.

    Returns:
        The values under `words`, with the configuration's values of `sizes` and of every key that
        must be typed; and those of these keys whose values differ.
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
    """Returns the value of a key under choices of groups."""
    value = OmegaConf.select(whole, key, default=_MISSING)
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _unequal(before: object, after: object) -> bool:
    return type(before) is not type(after) or before != after


def _differences(usual: Config, config: Config, where: str = "") -> Iterator[_Differing]:
    """Yields the full keys whose values differ, with the usual value and the configuration's."""
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
    """Writes a value as Hydra reads it on a command line, with `place` for every place in it."""
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
