"""Progress of a run: a live bar on a terminal or in a notebook, plain lines in a log."""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

from fedsink.reporting.displays import (
    Clock,
    Display,
    ForgivingStream,
    LiveBar,
    LogLines,
    NotebookBar,
    Status,
    in_notebook,
)

SECONDS_TO_KNOW = 2.0


class Progress:
    """Shows how far a run is; a context manager.

    On a terminal, and below the cell of a notebook, a bar is redrawn in place. Elsewhere a line is
    printed for the first and the last update and in between after a tenth of the rounds, or after
    5 s (a twentieth of the time so far once that is longer, which keeps the log of a day-long run
    short). All except the notebook's bar goes to standard error. An error or Ctrl-C passes through;
    the terminal is restored and the last state shown. A stream that can no longer be written to
    never stops the run.

    Where a terminal is narrow, the bar gives way, then rounds a second, then figures other than ε
    (the last first), then the title, then the time left: round and ε are always there. Rate and
    time left appear 2 seconds after the first update. They count only the rounds after it, because
    whatever is built, compiled or loaded once comes before it.

    Example:
        >>> with Progress(2000, "central") as progress:
        ...     progress.update(1, loss=0.25, ε=1.3)

    Args:
        total: rounds of the whole run.
        title: name of the run.
        start_round: rounds done by an earlier process; rate and time left do not count them.
        stream: None for standard error.
        clock: seconds from any origin.

    Raises:
        ValueError: fewer than one round, or start_round outside 0..total.
    """

    def __init__(
        self,
        total: int,
        title: str,
        *,
        start_round: int = 0,
        stream: TextIO | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
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
            self._display = LogLines(output, self.total, self._clock)
        return self

    def update(self, round: int, **figures: float | str) -> None:
        """Shows that `round` rounds are done, with figures such as loss=0.2 or ε=3.1.

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
        self._display.show(round, self._status(round, figures, now, *self._warm))

    def __exit__(self, *error: object) -> None:
        if self._display is not None:
            self._display.close()
            self._display = None

    def _status(
        self,
        round: int,
        figures: dict[str, float | str],
        now: float,
        warm_round: int,
        warm_at: float,
    ) -> Status:
        parts = [(2, self.title), (0, f"round {round}/{self.total}")]
        for rank, (name, value) in enumerate(figures.items(), start=3):
            figure = value if isinstance(value, str) else f"{value:.4g}"
            parts.append((0 if name.startswith("ε") else rank, f"{name} {figure}"))
        done, elapsed = round - warm_round, now - warm_at
        if round == self.total:  # the rate of all rounds of this process
            done, elapsed = round - self.start_round, now - self._started
        known = round == self.total or elapsed >= SECONDS_TO_KNOW
        if known and done > 0 and elapsed > 0:
            rate = done / elapsed
            left = duration((self.total - round) / rate)
            parts += [(3 + len(figures), f"{rate:.3g} rounds/s"), (1, f"{left} left")]
        return Status(tuple(parts))


def duration(seconds: float) -> str:
    """Writes seconds as m:ss or h:mm:ss, rounded to a second."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _redraws(stream: TextIO | None) -> bool:
    # Editors' shells and some build servers are terminals that cannot move the cursor.
    return (
        stream is not None  # where it was closed before the program began
        and stream.isatty()
        and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
    )
