"""Files and folders that appear whole; some belong only to their owner."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, BinaryIO


def write_once(path: Path, content: bytes, *, durable: bool = True) -> bool:
    """Writes a new file of mode 0600, by default to the disk; returns False where one exists.

    Guarantees:
        - The file has all of its content or does not exist, however the process ends.
        - Where the system knows files without a name (Linux), a killed process leaves none behind.
    """
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        file, name = _new_file(path.parent)
        with file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
            try:
                # Told a folder, os.link follows the link that leads to a file without a name.
                os.link(name, path, src_dir_fd=folder)
                new = True
            except FileExistsError:
                new = False
        if durable:
            os.fsync(folder)  # also where another process was first: its name must last, too
    finally:
        os.close(folder)
    return new


def write_atomic(path: Path, data: bytes, mode: int | None = None) -> None:
    """Writes `data` to `path` as `atomic_file` does."""
    with atomic_file(path, mode) as file:
        file.write(data)


@contextlib.contextmanager
def atomic_file(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """Opens a file to write, which takes the name `path` when the context ends without an error.

    With a `mode` the file has it from its first byte on, its folder has to be there, and its name
    must outlast a power cut. Without one its folder is made, and the name lasts where a folder can
    be waited for (not on Windows).

    Guarantees:
        At any moment the whole old file or the whole new one exists.
    """
    if mode is None:
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        # "x" refuses to follow a link somebody left there.
        with open(temporary, "xb", opener=partial(os.open, mode=mode or 0o666)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    with contextlib.suppress(*[OSError] * (mode is None)):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def new_folder(path: Path, mode: int = 0o755) -> Iterator[Path]:
    """Gives a folder to fill, which takes the name `path` when the context ends without error."""
    # It is made aside and renamed: a stopped command leaves no half-filled folder behind.
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield partial
        partial.chmod(mode)
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _new_file(folder: Path) -> tuple[IO[bytes], str]:
    """Returns a file that is gone when it is closed, and a name to link it by until then."""
    if hasattr(os, "O_TMPFILE"):
        try:
            handle = os.open(folder, os.O_WRONLY | os.O_TMPFILE, 0o600)
            return os.fdopen(handle, "wb"), f"/proc/self/fd/{handle}"
        except OSError:  # not on this file system, or nothing at all is: then the next line says so
            pass
    named = tempfile.NamedTemporaryFile(prefix=".", dir=folder)  # noqa: SIM115
    return named, named.name
