"""Displays of progress (a bar, a notebook's cell, lines of a log), and plain-text tables."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, ClassVar, TextIO, cast

Clock = Callable[[], float]
"""Seconds from any origin."""

BAR_WIDTH, NARROWEST_BAR = 24, 5
SECONDS_BETWEEN_LINES = 5.0
LINES_PER_RUN = 10
GAP_SHARE = 0.05


def printable(text: str) -> str:
    """Returns a received text for a terminal: what would move its cursor stands as an escape.

    >>> printable("ε" + chr(27) + "[2K") == "ε" + chr(92) + "x1b[2K"
    True
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class ForgivingStream:
    """Writes to another stream until that fails, and from then on nowhere.

    If a pipe has lost its reader, or a terminal or file was closed, progress is lost and the run
    continues. What its encoding lacks is written as a question mark. (rich by itself answers a
    broken pipe by closing standard output and exiting.)
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream  # None: it was closed before the program began
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Writes `text` if that is still possible; returns its length either way."""
        said = text.encode(self.encoding, "replace").decode(self.encoding)
        self._try(lambda stream: stream.write(said))
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


@dataclass(frozen=True)
class Status:
    """A line about a run, with the order in which its parts give way on a narrow terminal.

    Attributes:
        parts: texts in the order in which they are shown, each with a rank: the highest rank is
            dropped first, and 0 is never dropped.
    """

    parts: tuple[tuple[int, str], ...]

    def fitted(self, width: int) -> str:
        """Returns the line in at most `width` columns, if the parts of rank 0 have room there."""
        for highest in range(max(rank for rank, _ in self.parts), -1, -1):
            text = "  ".join(part for rank, part in self.parts if rank <= highest)
            if len(text) <= width:
                break
        return text

    def __str__(self) -> str:
        return "  ".join(part for _, part in self.parts)


class Display(ABC):
    """Shows the state of a run, which is redrawn at most every `seconds_between_frames`."""

    seconds_between_frames: ClassVar[float] = 0.0

    def __init__(self, total: int, clock: Clock) -> None:
        self._total, self._clock = total, clock
        self._frame_at = clock()

    @abstractmethod
    def show(self, round: int, status: Status) -> None:
        """Shows the state after `round`."""

    @abstractmethod
    def close(self) -> None:
        """Shows the last state, and leaves the terminal as it was found."""

    def _frame_is_due(self, round: int) -> bool:
        now = self._clock()
        due = round == self._total or now - self._frame_at >= self.seconds_between_frames
        if due:
            self._frame_at = now
        return due


class LiveBar(Display):
    """A rich progress bar that is redrawn from the caller's thread.

    Standard output stays untouched; what others write to `sys.stderr` appears above the bar.
    """

    seconds_between_frames = 0.1

    def __init__(
        self, stream: ForgivingStream, total: int, title: str, start_round: int, clock: Clock
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        super().__init__(total, clock)
        self._gauge = BarColumn(bar_width=BAR_WIDTH)
        # No markup: a title such as "[smoke]" is text, not a style.
        self._text = TextColumn("{task.description}", markup=False)
        self._bar = Progress(
            self._gauge,
            self._text,
            console=Console(file=cast("TextIO", stream), force_terminal=True),
            auto_refresh=False,
            redirect_stdout=False,
        )
        self._task = self._bar.add_task(title, total=total, completed=start_round)
        self._bar.start()

    def show(self, round: int, status: Status) -> None:
        """Moves the bar to `round`, with as much of `status` beside it as there is room for."""
        width = self._bar.console.width
        text = status.fitted(width)
        room = width - len(text) - 1
        self._gauge.bar_width = min(BAR_WIDTH, room)
        self._bar.columns = (self._gauge, self._text) if room >= NARROWEST_BAR else (self._text,)
        self._bar.update(self._task, completed=round, description=text)
        if self._frame_is_due(round):
            self._bar.refresh()

    def close(self) -> None:
        """Draws the last state, shows the cursor again, and gives standard error back."""
        self._bar.stop()


class NotebookBar(Display):
    """A line of text behind a bar, in HTML without scripts and without widgets.

    The last state stays in the stored notebook. Where HTML is not shown, the line of text is.
    """

    seconds_between_frames = 0.25

    def __init__(self, total: int, title: str, start_round: int, clock: Clock) -> None:
        from IPython.display import display

        super().__init__(total, clock)
        self._last = (start_round, title)
        self._handle: Any = display(  # type: ignore[no-untyped-call]
            self._bundle(), raw=True, display_id=True
        )

    def show(self, round: int, status: Status) -> None:
        """Moves the bar to `round`, with `status` beside it."""
        self._last = (round, str(status))
        if self._frame_is_due(round):
            self.close()

    def close(self) -> None:
        """Draws the last state."""
        self._handle.update(self._bundle(), raw=True)

    def _bundle(self) -> dict[str, str]:
        round, text = self._last
        bar = f'<progress value="{round}" max="{self._total}"></progress>'
        return {"text/plain": text, "text/html": f"{bar} <code>{escape(text)}</code>"}


class LogLines(Display):
    """Prints a line for the first and the last update, and in between so that a log stays short."""

    def __init__(self, stream: ForgivingStream, total: int, clock: Clock) -> None:
        super().__init__(total, clock)
        self._stream = stream
        self._started = clock()
        self._printed_at = 0.0
        self._printed_round: int | None = None
        self._waiting: str | None = None

    def show(self, round: int, status: Status) -> None:
        """Prints `status` if a line is due, and remembers it if not."""
        self._waiting = str(status)
        if self._line_is_due(round):
            self._printed_at, self._printed_round = self._clock(), round
            self.close()

    def close(self) -> None:
        """Prints the last state, unless it was printed."""
        if self._waiting is not None:
            self._stream.write(self._waiting + "\n")
            self._stream.flush()
            self._waiting = None

    def _line_is_due(self, round: int) -> bool:
        if self._printed_round is None or round == self._total:
            return True
        now = self._clock()
        gap = max(SECONDS_BETWEEN_LINES, GAP_SHARE * (now - self._started))
        share = (round - self._printed_round) / self._total
        return now - self._printed_at >= gap or share >= 1 / LINES_PER_RUN


def in_notebook() -> bool:
    """Tells whether a Jupyter kernel, which shows HTML, runs this process."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


MISSING = "-"


def format_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Aligns rows under their keys; the columns are the keys in order of first appearance.

    Numbers are set flush right with three decimals (or significant digits where those would show
    only zeros), text flush left; a missing key or None shows as "-". The text has no final
    newline.

    >>> print(format_table([{"run": "a", "loss": 0.25}, {"run": "b", "loss": None}]))
    run   loss
    ---  -----
    a    0.250
    b        -

    Raises:
        ValueError: no rows, or rows without any key.
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
