"""Progress of a run: a live bar on a terminal or in a notebook, plain lines in a log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TextIO

from fedsink.reporting.live import LiveBar
from fedsink.reporting.notebook import NotebookBar, in_notebook
from fedsink.reporting.stream import ForgivingStream

SECONDS_BETWEEN_LINES = 5.0
LINES_PER_RUN = 10
GAP_SHARE = 0.05
SECONDS_TO_KNOW = 2.0


@dataclass(frozen=True)
class Status:
    """One line about a run, and what of it gives way where there is no room.

    Attributes:
        parts: what is shown, in this order, each with its rank: the highest goes first, and 0
            stays whatever happens.
    """

    parts: tuple[tuple[int, str], ...]

    def fitted(self, width: int) -> str:
        """The line in at most so many columns, if the parts of rank 0 have room there."""
        for highest in range(max(rank for rank, _ in self.parts), -1, -1):
            text = "  ".join(part for rank, part in self.parts if rank <= highest)
            if len(text) <= width:
                break
        return text

    def __str__(self) -> str:
        return "  ".join(part for _, part in self.parts)


class Display(Protocol):
    """Where progress is shown."""

    def show(self, round: int, status: Status) -> None:
        """Show the state after `round`."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was found."""
        ...


class Progress:
    """Shows how far a run is; a context manager.

    On a terminal, and below the cell of a notebook, a bar is redrawn in place. Elsewhere a line is
    printed for the first and the last update and in between after a tenth of the rounds, or after
    5 s (a twentieth of the time so far once that is longer, which keeps the log of a day-long run
    short). All but the notebook's bar goes to standard error. An error or Ctrl-C passes through;
    the terminal is restored and the last state shown. A stream that can no longer be written to
    never stops the run.

    Where a terminal is narrow, the bar gives way, then rounds a second, then figures other than ε
    (the last first), then the title, then the time left: round and ε are always there. Rate and
    time left are shown when they are known: 2 seconds after the first update, and by the rounds
    after it alone, because whatever is built, compiled or loaded once comes before it.

    Example:
        >>> with Progress(2000, "central") as progress:
        ...     progress.update(1, loss=0.25, ε=1.3)
    """

    def __init__(
        self,
        total: int,
        title: str,
        *,
        start_round: int = 0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare a display; nothing is shown before the context is entered.

        Args:
            total: rounds of the whole run.
            title: what is running.
            start_round: rounds already done by an earlier process; the rate and the time left
                count only rounds done in this one.
            stream: None for standard error.
            clock: seconds from any origin.

        Raises:
            ValueError: total below 1, or start_round outside 0..total.
        """
        if total < 1:
            raise ValueError(f"A run needs at least 1 round; received total={total}.")
        if not 0 <= start_round <= total:
            raise ValueError(
                f"start_round must lie in 0..{total} (the total); received {start_round}."
            )
        self.total = total
        self.title = title
        self.start_round = start_round
        self._stream = stream
        self._clock = clock
        self._started = 0.0
        self._warm: tuple[int, float] | None = None
        self._display: Display | None = None

    def __enter__(self) -> Progress:
        stream = sys.stderr if self._stream is None else self._stream
        self._started = self._clock()
        output = ForgivingStream(stream)
        if self._stream is None and in_notebook():
            self._display = NotebookBar(self.total, self.title, self.start_round, self._clock)
        elif _redraws(stream):
            self._display = LiveBar(output, self.total, self.title, self.start_round, self._clock)
        else:
            self._display = _Lines(output, self.total, self._clock)
        return self

    def update(self, round: int, **columns: float | str) -> None:
        """Show that `round` rounds are done, with figures such as loss=0.2 or ε=3.1.

        Raises:
            ValueError: used outside its context, or a round outside start_round..total.
        """
        if self._display is None:
            raise ValueError("Progress shows nothing outside its context; use `with Progress(…)`.")
        if not self.start_round <= round <= self.total:
            raise ValueError(
                f"round must lie in {self.start_round}..{self.total}; received {round}."
            )
        now = self._clock()
        if self._warm is None:
            self._warm = round, now
        self._display.show(round, self._describe(round, columns, now, *self._warm))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._display is not None:
            self._display.close()
            self._display = None

    def _describe(
        self,
        round: int,
        columns: dict[str, float | str],
        now: float,
        warm_round: int,
        warm_at: float,
    ) -> Status:
        parts = [(2, self.title), (0, f"round {round}/{self.total}")]
        for place, (name, value) in enumerate(columns.items(), start=3):
            parts.append((0 if name.startswith("ε") else place, f"{name} {_figure(value)}"))
        done, elapsed = round - warm_round, now - warm_at
        if round == self.total:  # the rate of all of them
            done, elapsed = round - self.start_round, now - self._started
        known = round == self.total or elapsed >= SECONDS_TO_KNOW
        if known and done > 0 and elapsed > 0:
            rate = done / elapsed
            left = duration((self.total - round) / rate)
            parts += [(3 + len(columns), f"{rate:.3g} rounds/s"), (1, f"{left} left")]
        return Status(tuple(parts))


def duration(seconds: float) -> str:
    """Write seconds as m:ss or h:mm:ss, rounded to a second."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _redraws(stream: TextIO) -> bool:
    # Editors' shells and some build servers are terminals that cannot move the cursor.
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def _figure(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


class _Lines:
    """Prints a line now and then."""

    def __init__(self, stream: ForgivingStream, total: int, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._total = total
        self._clock = clock
        self._started = clock()
        self._printed_at = 0.0
        self._printed_round: int | None = None
        self._waiting: str | None = None

    def show(self, round: int, status: Status) -> None:
        self._waiting = str(status)
        if self._due(round):
            self._printed_at, self._printed_round = self._clock(), round
            self._print()

    def close(self) -> None:
        self._print()

    def _due(self, round: int) -> bool:
        if self._printed_round is None or round == self._total:
            return True
        now = self._clock()
        gap = max(SECONDS_BETWEEN_LINES, GAP_SHARE * (now - self._started))
        share = (round - self._printed_round) / self._total
        return now - self._printed_at >= gap or share >= 1 / LINES_PER_RUN

    def _print(self) -> None:
        if self._waiting is not None:
            self._stream.write(self._waiting + "\n")
            self._stream.flush()
            self._waiting = None
