"""Plain text for a terminal, a log or a notebook: received text, tables, durations."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

MISSING = "-"


def printable(text: str) -> str:
    """Returns a received text for a terminal: what would move its cursor stands as an escape.

    >>> printable("ε" + chr(27) + "[2K") == "ε" + chr(92) + "x1b[2K"
    True
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class ForgivingStream:
    """Writes to another stream until that fails, and from then on nowhere."""

    # A pipe that has lost its reader, or a closed terminal, costs progress and not the run (rich by
    # itself closes standard output and exits). What its encoding lacks becomes a question mark.

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream  # None: it was closed before the program began
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Writes `text` if that is still possible; returns its length either way."""
        printable = text.encode(self.encoding, "replace").decode(self.encoding)
        self._try(lambda stream: stream.write(printable))
        return len(text)

    def flush(self) -> None:
        """Flushes if that is still possible."""
        self._try(lambda stream: stream.flush())

    def _try(self, action: Callable[[TextIO], object]) -> None:
        if self._stream is not None:
            try:
                action(self._stream)
            except (OSError, ValueError):
                self._stream = None


def in_notebook() -> bool:
    """Tells whether a Jupyter kernel, which shows HTML, runs this process."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def duration(seconds: float) -> str:
    """Writes a time in its two largest units; a figure that is none as one that is missing.

    >>> duration(42), duration(5025)
    ('42 s', '1 h 23 min')
    """
    if not math.isfinite(seconds):
        return MISSING
    whole = round(seconds)
    if whole < 1:
        return f"{seconds:.2g} s"
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def format_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Aligns rows under their keys; the columns are the keys in order of first appearance.

    Numbers are set flush right with three decimals (or significant digits where those would show
    only zeros), text flush left; a missing key or None shows as "-".

    >>> print(format_table([{"run": "a", "loss": 0.25}, {"run": "b", "loss": None}]))
    run   loss
    ---  -----
    a    0.250
    b        -
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if not columns:
        raise ValueError(f"A table needs at least one row with one column; received {rows!r}.")
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    numeric = [
        any(_is_number(row.get(column)) for row in rows)
        and all(row.get(column) is None or _is_number(row.get(column)) for row in rows)
        for column in columns
    ]
    widths = [
        max(len(text) for text in [column, *column_cells])
        for column, column_cells in zip(columns, zip(*cells, strict=True), strict=True)
    ]

    def line(texts: Sequence[str]) -> str:
        aligned = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(texts, widths, numeric, strict=True)
        ]
        return "  ".join(aligned).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(columns), rule, *(line(row) for row in cells)])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: object) -> str:
    if value is None:
        return MISSING
    if isinstance(value, float):
        return f"{value:.3g}" if 0 < abs(value) < 5e-4 else f"{value:.3f}"
    return " ".join(str(value).split())
