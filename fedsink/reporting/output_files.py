"""Files that fedsink writes: replaced in one step, or one line of JSON after the other."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from fedsink.errors import CheckpointError
from fedsink.values import read_json

RELEASED = ("generator.safetensors", "generator.json", "privacy.json")
"""Files of a run folder that hold only what was released: a generator and its promise."""


def write_atomic(path: Path, data: bytes) -> None:
    """Writes `data` to `path`: at any moment the whole old file or the whole new one exists.

    Raises:
        OSError: the folder cannot be written.
    """
    with atomic_file(path) as file:
        file.write(data)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a file to write, which takes the name `path` when the context ends without an error.

    The bytes go to a temporary file in the same folder, reach the disk (fsync), and take the name
    by `os.replace`. The folder is made if it is missing; the temporary file is removed on error.

    Raises:
        OSError: the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        # "x" refuses to follow a link somebody left there, and applies the user's umask.
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@contextlib.contextmanager
def new_folder(path: Path, mode: int = 0o755) -> Iterator[Path]:
    """Gives a folder to fill, which takes the name `path` when the context ends without an error.

    It is made aside and renamed: a stopped command leaves no half-filled folder behind.

    Raises:
        OSError: it cannot be written, or `path` is there and not an empty folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield partial
        partial.chmod(mode)
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _sync_folder(folder: Path) -> None:
    # Makes the rename itself durable; Windows and some network mounts cannot, and need not.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_json(path: str | os.PathLike[str], value: object) -> None:
    """Replaces `path` by `value` as indented JSON, atomically.

    Raises:
        ValueError: a number that is not finite (JSON has none), or a value that JSON cannot hold;
            an existing file stays as it was.
    """
    write_atomic(Path(path), (_encode(value, indent=2) + "\n").encode())


def append_jsonl(path: str | os.PathLike[str], values: Mapping[str, object]) -> None:
    """Appends `values` to `path` as one line of JSON.

    Raises:
        ValueError: as `write_json`; nothing is written then.
    """
    line = _encode(dict(values), indent=None) + "\n"
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("ab") as file:
        file.write(line.encode())


def truncate_jsonl(path: str | os.PathLike[str], key: str, last: int) -> int:
    """Keeps the lines whose value under `key` is at most `last`, so that a resumed run can append.

    A last line torn by a crash is dropped; kept lines keep their bytes. A missing file holds no
    line. The replacement is atomic.

    Args:
        path: a file written by `append_jsonl`.
        key: of a whole number in every line, for instance "round".
        last: the last value to keep.

    Returns:
        The number of lines kept.

    Raises:
        CheckpointError: a line other than the last is not a JSON object, or one lacks `key`.
    """
    target = Path(path)
    if not target.exists():
        return 0
    content = target.read_bytes()
    lines = content.splitlines()
    kept = []
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
            kept.append(line + b"\n")
    if b"".join(kept) != content:
        write_atomic(target, b"".join(kept))
    return len(kept)


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
