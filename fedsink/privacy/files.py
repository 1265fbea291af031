"""Files that appear whole and belong only to their owner."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import IO


def write_once(path: Path, content: bytes, *, durable: bool = True) -> bool:
    """Writes a new file of mode 0600 to the disk; returns False where one exists.

    Guarantees:
        - The file has all of its content or does not exist, however the process ends.
        - Where the system knows files without a name (Linux), a killed process leaves none behind.

    Args:
        path: of the file.
        content: all of it.
        durable: whether to wait until it outlasts a power cut.

    Raises:
        OSError: it cannot be written; nothing is left.
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


def replace_with(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Writes a file of this mode to the disk, in place of one of its name.

    Guarantees:
        At any moment the whole old file or the whole new one exists.

    Raises:
        OSError: it cannot be written; the old file stays.
    """
    handle, name = tempfile.mkstemp(prefix=".", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _new_file(folder: Path) -> tuple[IO[bytes], str]:
    """A file that is gone when it is closed, and a name to link it by until then."""
    if hasattr(os, "O_TMPFILE"):
        try:
            handle = os.open(folder, os.O_WRONLY | os.O_TMPFILE, 0o600)
            return os.fdopen(handle, "wb"), f"/proc/self/fd/{handle}"
        except OSError:  # not on this file system, or nothing at all is: then the next line says so
            pass
    named = tempfile.NamedTemporaryFile(prefix=".", dir=folder)  # noqa: SIM115
    return named, named.name
