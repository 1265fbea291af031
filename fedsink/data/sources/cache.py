"""The user's cache folder, in which a file is whole or not there at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from fedsink.errors import DataError
from fedsink.files import new_folder


def cache_folder() -> Path:
    """Returns $XDG_CACHE_HOME/fedsink, or ~/.cache/fedsink where that variable is not set."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fedsink"


def fill_once(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Returns `folder`, after `fill(temporary)` made its content if it was not there yet."""
    # A crash leaves nothing half done; of several processes one wins, and all see the same files.
    if not folder.is_dir():
        try:
            with new_folder(folder, mode=0o700) as temporary:
                fill(temporary)
        except OSError as error:
            if not folder.is_dir():  # no other process was first
                raise DataError(
                    f"the cache folder {folder.parent} cannot be written ({error.strerror}); "
                    f"set XDG_CACHE_HOME to a folder that can."
                ) from error
    return folder


def key_of(files: Sequence[Path], *facts: object) -> str:
    """Returns the name of a cache entry made from files of a folder, as they are now, and facts."""
    stamps = [(file.name, (s := file.stat()).st_size, s.st_mtime_ns) for file in files]
    whole = repr((str(files[0].resolve().parent), *facts, stamps))
    return hashlib.sha256(whole.encode()).hexdigest()[:16]
