"""Inventory of a data set's files, read and passed over, for whoever holds the records.

Readers of files find them by an `Inventory`, count there what they pass over, and return its
sentences as `Reading.notes`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedsink.errors import DataError

HIDDEN = "hidden or a program's own"
SEEN = "read already under another name"
CIRCLE = "a link to a folder around it"
ASTRAY = "a link that leads nowhere"
SPECIAL = "no regular file (a pipe, a socket or a device)"
BESIDE = "beside the folders that are read"
_PROGRAMS = (
    *("@eadir", "@recycle", "#recycle", "#snapshot", "$recycle.bin", "system volume information"),
    *("__macosx", "lost+found", "thumbs.db", "desktop.ini"),
)
_NAMED = 4  # files of a sentence


@dataclass
class Inventory:
    """Finds the files of a data set, and counts what lies there and is not read.

    Guarantees:
        - No file is found twice, under whatever names, and nothing but a regular file is found.
        - What lies below the folders that are walked, and is not found, stands in a sentence.
    """

    root: Path  # from which sentences name files
    _passed: dict[str, list[str]] = field(default_factory=dict, init=False)
    _seen: set[object] = field(default_factory=set, init=False)

    def pass_over(self, why: str, *paths: str | Path) -> None:
        """Counts files or folders that are not read, under one of the reasons above or another."""
        for path in paths:
            self._passed.setdefault(why, []).append(os.path.relpath(path, self.root))

    def is_hidden(self, path: str | Path) -> bool:
        """Tells if a file or folder is hidden or a program's own, and counts those that are."""
        name = os.path.basename(path)
        hidden = name.startswith(".") or name.casefold() in _PROGRAMS
        if hidden:
            self.pass_over(HIDDEN, path)
        return hidden

    def is_new(self, path: str | Path, status: os.stat_result | None = None) -> bool:
        """Tells if a path is of a regular file that was not found before, and counts others."""
        try:
            status = status or os.stat(path)
        except (OSError, ValueError):
            self.pass_over(ASTRAY, path)
            return False
        if not stat.S_ISREG(status.st_mode):
            self.pass_over(SPECIAL, path)
        elif self._first(path, status):
            return True
        else:
            self.pass_over(SEEN, path)
        return False

    def walk(self, tops: Sequence[Path]) -> list[tuple[int, str]]:
        """Finds every file in folders and below: its folder's place in `tops`, and its path."""
        # In the order of the folders, then of the names. Links are followed after everything that
        # lies there itself: a file with a place and links is found at its place.
        found: list[tuple[int, str, str]] = []
        folders = [(number, str(top)) for number, top in enumerate(tops) if not top.is_symlink()]
        links = [(number, str(top)) for number, top in enumerate(tops) if top.is_symlink()]
        while folders or links:
            if not folders:
                links.sort(reverse=True)
                number, path = links.pop()
                if not os.path.isdir(path):
                    if self.is_new(path):
                        found.append((number, *os.path.split(path)))
                    continue
                around = Path(os.path.realpath(os.path.dirname(path)))
                if around.is_relative_to(os.path.realpath(path)):
                    self.pass_over(CIRCLE, path)
                    continue
                folders.append((number, path))
            number, place = folders.pop()
            for entry in self._entries(place):
                if self.is_hidden(entry.path):
                    continue
                if entry.is_symlink():
                    links.append((number, entry.path))
                elif entry.is_dir():
                    folders.append((number, entry.path))
                elif self.is_new(entry.path, entry.stat()):
                    found.append((number, place, entry.name))
        return [(number, os.path.join(place, name)) for number, place, name in sorted(found)]

    def notes(self, read: int) -> Iterator[str]:
        """Yields how many files were `read` and were not, then a sentence for each reason."""
        if passed := sum(map(len, self._passed.values())):
            yield f"Files read: {read}. Passed over: {passed}."
        for why, names in self._passed.items():
            some = ", ".join(sorted(names)[:_NAMED]) + (", …" if len(names) > _NAMED else "")
            yield f"Not read: {len(names)}, {why}: {some}."

    def _first(self, path: str | Path, status: os.stat_result) -> bool:
        # Some network file systems number no files.
        key = (status.st_dev, status.st_ino) if status.st_ino else os.path.realpath(path)
        new = key not in self._seen
        self._seen.add(key)
        return new

    def _entries(self, place: str) -> list[os.DirEntry[str]]:
        try:
            if not self._first(place, os.stat(place)):
                self.pass_over(SEEN, place)
                return []
            with os.scandir(place) as entries:
                return list(entries)
        except OSError as error:
            raise DataError(
                f"{os.path.abspath(place)} cannot be listed ({error.strerror}); change its "
                "permissions, or remove it."
            ) from error
