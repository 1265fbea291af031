"""The user's cache folder, in which a file is whole or not there at all."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, cast

from fedsink.errors import DataError


def cache_folder() -> Path:
    """Returns $XDG_CACHE_HOME/fedsink, or ~/.cache/fedsink where that variable is not set."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fedsink"


def fill_once(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Returns `folder`, after `fill(temporary)` made its content if it was not there yet.

    The content is made in a temporary neighbour and renamed, so a crash leaves nothing half
    done. If several processes start together, one wins and all see the same files.

    Raises:
        DataError: where the cache folder cannot be written.
    """
    if folder.is_dir():
        return folder
    temporary = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        fill(temporary)
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    except OSError as error:
        raise DataError(
            f"the cache folder {folder.parent} cannot be written ({error.strerror}); "
            f"set XDG_CACHE_HOME to a folder that can."
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def key_of(files: Sequence[Path], *facts: object) -> str:
    """Returns the name of a cache entry that is made from `files`; replaced files give another.

    Args:
        files: at least one, of one folder; their names, sizes and times count, and the folder.
        facts: whatever else decides the content of the entry.

    Raises:
        OSError: a file is not there.
    """
    stamps = [(file.name, (s := file.stat()).st_size, s.st_mtime_ns) for file in files]
    whole = repr((str(files[0].resolve().parent), *facts, stamps))
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def unpacked(root: Path, files: Sequence[Path]) -> Path:
    """Returns a cache folder that mirrors `files` of the read-only `root`, decompressed.

    Args:
        root: a folder that is only read.
        files: paths relative to `root`, without `.gz`; each is there plain or with `.gz`.
    """
    sources = [_plain_or_gz(root / name) for name in files]

    def fill(folder: Path) -> None:
        for name, source in zip(files, sources, strict=True):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                packed = _reader(source)
            except OSError as error:
                raise DataError(f"{source} cannot be read ({error.strerror}).") from error
            try:
                with packed, target.open("wb") as plain:
                    shutil.copyfileobj(packed, plain, 1 << 20)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise DataError(
                    f"{source} cannot be unpacked ({error}); replace it with an intact copy."
                ) from error

    return fill_once(cache_folder() / "unpacked" / key_of(sources, *map(str, files)), fill)


def _reader(source: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.GzipFile(source)) if source.suffix == ".gz" else source.open("rb")


def _plain_or_gz(path: Path) -> Path:
    return path if path.is_file() else path.with_name(path.name + ".gz")
