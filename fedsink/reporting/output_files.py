"""JSON that fedsink writes: replaced in one step, or one line after the other."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedsink.errors import CheckpointError
from fedsink.files import write_atomic
from fedsink.values import read_json

RELEASED = ("generator.safetensors", "generator.json", "privacy.json")
"""Files of a run folder that hold only what was released: a generator and its promise."""


def write_json(path: str | os.PathLike[str], value: object) -> None:
    """Replaces `path` by `value` as indented JSON, atomically; a ValueError leaves it as it was."""
    write_atomic(Path(path), (_encode(value, indent=2) + "\n").encode())


def append_jsonl(path: str | os.PathLike[str], values: Mapping[str, object]) -> None:
    """Appends `values` to `path` as one line of JSON; after a ValueError nothing is written."""
    line = _encode(dict(values), indent=None) + "\n"
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("ab") as file:
        file.write(line.encode())


def truncate_jsonl(path: str | os.PathLike[str], key: str, last: int) -> int:
    """Keeps the lines whose number under `key` is at most `last`, atomically; returns how many."""
    # Kept lines keep their bytes; a last line torn by a crash is dropped.
    target = Path(path)
    if not target.exists():
        return 0
    content = target.read_bytes()
    lines = content.splitlines()
    complete = []
    for number, line in enumerate(lines, start=1):
        values = _decode(line)
        if values is None:
            if number == len(lines):
                break
            raise CheckpointError(
                f"Line {number} of {target} is not a JSON object; "
                "restore the file from a copy, or start a new run."
            )
        value = values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(
                f"Line {number} of {target} has no number under {key!r} (received {value!r}); "
                "the file belongs to another run."
            )
        if value <= last:
            complete.append(line + b"\n")
    if b"".join(complete) != content:
        write_atomic(target, b"".join(complete))
    return len(complete)


def _decode(line: bytes) -> dict[str, object] | None:
    try:
        values = read_json(line)
    except ValueError:
        return None
    return values if isinstance(values, dict) else None


def _encode(value: object, *, indent: int | None) -> str:
    if found := _not_finite(value, ""):
        place, number = found
        raise ValueError(
            f"JSON holds finite numbers only; received {number} at {place or 'the top'}: "
            "leave the field out, or write null."
        )
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    except TypeError as error:
        raise ValueError(
            f"JSON holds numbers, text, lists and mappings only ({error}); "
            "convert tensors with .item() or .tolist()."
        ) from error


def _not_finite(value: object, place: str) -> tuple[str, float] | None:
    """Returns the place and value of the first number that is not finite."""
    if isinstance(value, float):
        return None if math.isfinite(value) else (place, value)
    if isinstance(value, Mapping):
        items = [(f"{place}.{key}" if place else str(key), item) for key, item in value.items()]
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        items = [(f"{place}[{index}]", item) for index, item in enumerate(value)]
    else:
        return None
    problems = (_not_finite(item, name) for name, item in items)
    return next((hit for hit in problems if hit is not None), None)
