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

from fedsink.conf.loading import choices
from fedsink.server.compose import compose_config
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
# What was made of the configuration, and what has done its work when all values are resolved.
_LEFT_OUT = ("run", "resume", "study", "plan", "scale", "scales")
_PLAIN = re.compile(r"[A-Za-z_][\w.:/-]*")
_WORDS = ("null", "true", "false", "nan", "inf")
_ABSENT = object()
_Differing = tuple[str, object, object]


@dataclass(frozen=True)
class Difference:
    """A key whose value is not the one that the recipe gives it.

    Attributes:
        key: in full, as it is typed.
        value: of the run; a place on its machine is hidden.
        usual: of the recipe; None: it has no such key.
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
            config: of a run, resolved; its entries `run`, `scale` and `scales` do not count.

        Raises:
            HydraException, OmegaConfBaseException: no choices give a configuration of this mode.
        """
        chosen, usual = _chosen(config)
        differing = list(_differences(usual, config))
        if config["engine"].get("name") == "deploy":
            command = ["fedsink", "deploy", "app=APP", "superlink=SUPERLINK"]
            command += [word for word in chosen if not word.startswith("engine=")]
        else:
            command = ["fedsink", "simulate", *chosen]
        differences = [
            Difference(key, shown(key, value), None if usual is _ABSENT else shown(key, usual))
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


def _chosen(config: Config) -> tuple[list[str], dict[str, Any]]:
    """Choices of groups, and the configuration that they give."""
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
    return min(options, key=lambda option: _distance(option[1], config))


def _grouped(config: Config, words: list[str], also: list[str]) -> tuple[list[str], dict[str, Any]]:
    usual = compose_config([*words, *also])
    for group, key in _GROUPS.items():
        wanted = config[group].get(key)
        if usual[group].get(key) != wanted and wanted in choices(group):
            words = [*words, f"{group}={wanted}"]
            usual = compose_config([*words, *also])
    return words, usual


def _distance(usual: Config, config: Config) -> int:
    return sum(1 for _ in _differences(usual, config))


def _differences(usual: Config, config: Config, where: str = "") -> Iterator[_Differing]:
    """Keys in full, with their usual values and those of a configuration, where they differ."""
    for key in dict.fromkeys([*config, *usual]):
        before, after = usual.get(key, _ABSENT), config.get(key, _ABSENT)
        if (not where and key in _LEFT_OUT) or (before is None and after is _ABSENT):
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _differences(before, after, f"{where}{key}.")
        elif type(before) is not type(after) or before != after:
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
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value)
    return f"'{escaped}'"


def _is_place(value: object) -> bool:
    if not isinstance(value, str):
        return False
    absolute = PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute()
    return absolute or value.startswith(("~", "file:", "\\\\"))
