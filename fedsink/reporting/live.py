"""A bar redrawn in place on a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO, cast

from fedsink.reporting.stream import ForgivingStream

if TYPE_CHECKING:
    from fedsink.reporting.progress import Status

SECONDS_BETWEEN_FRAMES = 0.1
BAR_WIDTH, NARROWEST_BAR = 24, 5


class LiveBar:
    """A rich progress bar that is redrawn at most ten times a second, from the caller's thread.

    Standard output stays untouched; what others write to `sys.stderr` appears above the bar.
    """

    def __init__(
        self,
        stream: ForgivingStream,
        total: int,
        title: str,
        start_round: int,
        clock: Callable[[], float],
    ) -> None:
        """Draw the bar on `stream` at `start_round` of `total`."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._clock = clock
        self._total = total
        self._frame_at = clock()
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
        """Move the bar to `round`, with as much of `status` beside it as there is room for."""
        now = self._clock()
        width = self._bar.console.width
        text = status.fitted(width)
        room = width - len(text) - 1
        self._gauge.bar_width = min(BAR_WIDTH, room)
        self._bar.columns = (self._gauge, self._text) if room >= NARROWEST_BAR else (self._text,)
        self._bar.update(self._task, completed=round, description=text)
        if round == self._total or now - self._frame_at >= SECONDS_BETWEEN_FRAMES:
            self._frame_at = now
            self._bar.refresh()

    def close(self) -> None:
        """Draw the last state, show the cursor again, and give standard error back."""
        self._bar.stop()
