"""Keys and values as they are typed, without the places of the machine that a run is on.

>>> typed_words(["mode='central'", "data.root=/a b", "hydra.run.dir=x"], {})
['mode=central', 'data.root=FOLDER']
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from fedsink.values import Config, leaves

HIDDEN = "(a place on that machine)"
"""Text that replaces a path on a page."""

_PLACES = {
    "data.root": "FOLDER",
    "data.clients_file": "FILE",
    "policy": "FILE",
    "public.root": "FOLDER",
    "start": "FOLDER",
    "engine.address": "ADDRESS",
}
_NO_PLACES = {"engine.address": "auto"}
_OF_NO_SETTING = ("run", "resume", "scales", "paper")
_PLAIN = re.compile(r"[A-Za-z_][\w.:/-]*")
_WORDS = ("null", "true", "false", "nan", "inf")


def typed_words(overrides: Sequence[str], config: Config) -> list[str]:
    """Returns what was typed, to be stored with the run: `key=value`, in Hydra's grammar.

    Guarantees:
        - They hold no path, no address of a cluster, and nothing about the run's folder.

    `config`, resolved, has the value of a key that was typed with ${…}.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser  # pages go without it

    words = []
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key, value = override.key_or_group, override.value()
        if key.partition(".")[0].partition("/")[0] in ("hydra", *_OF_NO_SETTING):
            continue
        if "${" in str(value):
            value = dict(leaves(config)).get(key)
        text = "" if override.is_delete() else f"={_typed(key, value, None)}"
        words.append(f"{override.get_key_element()}{text}")
    return words


def typed_command(config: Config) -> str | None:
    """Returns the command that started a run, by its stored configuration; None if it has none."""
    run = config.get("run")
    words = run.get("typed") if isinstance(run, Mapping) else None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return None
    of_nodes = (config.get("engine") or {}).get("name") == "deploy"
    command = ("deploy", "app=APP", "superlink=SUPERLINK") if of_nodes else ("simulate",)
    return shlex.join(["fedsink", *command, *words])


def shown(key: str, value: object) -> str:
    """Writes a value as a page shows it: as typed, except for places."""
    return _typed(key, value, HIDDEN)


def shown_settings(config: Config) -> dict[str, str]:
    """Returns every key of a configuration and its value, as a page shows it."""
    left_out = (*_OF_NO_SETTING, "scale")
    settings = {key: value for key, value in config.items() if key not in left_out}
    return {key: shown(key, value) for key, value in leaves(settings)}


def _typed(key: str, value: Any, place: str | None) -> str:
    """Writes a value as Hydra reads it; `place`, or None for FOLDER and FILE, hides a place."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(_typed(key, item, place) for item in value)}]"
    if isinstance(value, Mapping):
        items = (f"{name}:{_typed(f'{key}.{name}', item, place)}" for name, item in value.items())
        return "{" + ",".join(items) + "}"
    if not isinstance(value, str):
        return str(value)
    absolute = PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute()
    if (key in _PLACES and value != _NO_PLACES.get(key)) or (
        absolute or value.startswith(("~", "file:", "\\\\"))
    ):
        return place or _PLACES.get(key, "PLACE")
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return quoted_text(value)


def quoted_text(text: str) -> str:
    r"""Quotes a text in Hydra's grammar, so that an interpolation in it is read as text.

    >>> print(quoted_text("l'été"), quoted_text('"a"'), quoted_text("C:\\"))
    "l'été" '"a"' "C:\\"
    """
    mark = "'" if '"' in text else '"'
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    return mark + re.sub(rf"(\\+)(?={mark}|\Z)", r"\1\1", text).replace(mark, f"\\{mark}") + mark
