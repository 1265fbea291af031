"""A bar redrawn in place on a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO, cast

from fedsink.reporting.stream import ForgivingStream

SECONDS_BETWEEN_FRAMES = 0.1
BAR_WIDTH = 24


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
        self._bar = Progress(
            # On a narrow terminal the bar gives way: text columns do not wrap.
            BarColumn(bar_width=BAR_WIDTH),
            # No markup: a title such as "[smoke]" is text, not a style.
            TextColumn("{task.description}", markup=False),
            console=Console(file=cast("TextIO", stream), force_terminal=True),
            auto_refresh=False,
            redirect_stdout=False,
        )
        self._task = self._bar.add_task(title, total=total, completed=start_round)
        self._bar.start()

    def show(self, round: int, text: str) -> None:
        """Move the bar to `round`, with `text` beside it."""
        now = self._clock()
        self._bar.update(self._task, completed=round, description=text)
        if round == self._total or now - self._frame_at >= SECONDS_BETWEEN_FRAMES:
            self._frame_at = now
            self._bar.refresh()

    def close(self) -> None:
        """Draw the last state, show the cursor again, and give standard error back."""
        self._bar.stop()
