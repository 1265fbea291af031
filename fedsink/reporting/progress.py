"""Progress of a run: a live bar on a terminal or in a notebook, plain lines in a log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from html import escape
from typing import Any, TextIO, cast

from fedsink.reporting.displays import ForgivingStream, duration, in_notebook

GAP_SHARE = 0.05
"""Least time between two lines of a log, as a part of the time so far."""

_BAR_WIDTH, _NARROWEST_BAR = 24, 5
_SECONDS_BETWEEN_LINES, _LINES_PER_RUN = 5.0, 10
_DAY = 86_400.0  # over which the rate is taken


class Progress:
    """Shows how far a run is; a context manager.

    On a terminal, and below the cell of a notebook, a bar is redrawn in place; where a terminal is
    narrow, the bar gives way, then the end of the line. Elsewhere a line is printed for the first
    and the last update and in between after a tenth of the rounds, or after 5 s (a twentieth of the
    time so far once that is longer, which keeps the log of a day-long run short). All except the
    notebook's bar goes to standard error. Rate and time left count neither the rounds of an earlier
    process (`start_round`) nor those before the first update: whatever is built, compiled or loaded
    once comes before it.
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
        self.total, self.title, self.start_round = total, title, start_round
        self._stream, self._clock = stream, clock

    def __enter__(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        stream = sys.stderr if self._stream is None else self._stream
        self._output = ForgivingStream(stream)
        self._gauge = BarColumn(bar_width=_BAR_WIDTH)
        # No markup: a title such as "[smoke]" is text, not a style.
        self._words = TextColumn("{task.description}", markup=False)
        self._bar = Bar(
            self._gauge,
            self._words,
            console=Console(file=cast("TextIO", self._output), force_terminal=True),
            auto_refresh=False,
            redirect_stdout=False,
            speed_estimate_period=_DAY,
            get_time=self._clock,
        )
        self._bar.add_task(self.title, total=self.total, completed=self.start_round)
        self._handle: Any = None
        if self._stream is None and in_notebook():
            from IPython.display import display

            self._handle = display(  # type: ignore[no-untyped-call]
                self._html(), raw=True, display_id=True
            )
        elif _redraws(stream):
            self._bar.start()
        self._began = self._shown_at = self._clock()
        self._shown = self.start_round
        return self

    def update(self, round: int, **figures: float | str) -> None:
        """Shows that `round` rounds are done, with figures such as loss=0.2 or ε=3.1."""
        (task,) = self._bar.tasks
        self._bar.update(task.id, completed=round)
        self._figures = figures
        now = self._clock()
        gap = 0.25 if self._handle else 0.1
        due = round == self.total
        if not (self._handle or self._bar.live.is_started):
            gap = max(_SECONDS_BETWEEN_LINES, GAP_SHARE * (now - self._began))
            first = self._shown == self.start_round
            due = due or first or round - self._shown >= self.total / _LINES_PER_RUN
        if due or now - self._shown_at >= gap:
            self._show()

    def __exit__(self, *error: object) -> None:
        if self._shown != self._bar.tasks[0].completed:
            self._show()
        if self._bar.live.is_started:
            self._bar.stop()

    def _show(self) -> None:
        (task,) = self._bar.tasks
        self._shown, self._shown_at = int(task.completed), self._clock()
        parts = [self.title, f"round {self._shown}/{self.total}"]
        for name, value in self._figures.items():
            parts.append(f"{name} {value if isinstance(value, str) else f'{value:.4g}'}")
        if (speed := task.speed) and (left := task.time_remaining) is not None:
            parts += [f"{duration(left)} left", f"{speed:.3g} rounds/s"]
        self._bar.update(task.id, description="  ".join(parts))
        if self._handle:
            self._handle.update(self._html(), raw=True)
        elif self._bar.live.is_started:
            room = self._bar.console.width - len(task.description) - 1
            self._gauge.bar_width = min(_BAR_WIDTH, room)
            self._bar.columns = (self._gauge, self._words)[room < _NARROWEST_BAR :]
            self._bar.refresh()
        else:
            self._output.write(task.description + "\n")
            self._output.flush()

    def _html(self) -> dict[str, str]:
        """Returns a line of text behind a bar, without scripts: a stored notebook keeps it."""
        (task,) = self._bar.tasks
        bar = f'<progress value="{task.completed}" max="{self.total}"></progress>'
        text = task.description
        return {"text/plain": text, "text/html": f"{bar} <code>{escape(text)}</code>"}


def _redraws(stream: TextIO | None) -> bool:
    # Editors' shells and some build servers are terminals that cannot move the cursor.
    return (
        stream is not None  # where it was closed before the program began
        and stream.isatty()
        and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
    )
