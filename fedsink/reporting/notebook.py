"""A bar below a notebook's cell, redrawn in place."""

from __future__ import annotations

import sys
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsink.reporting.progress import Status

SECONDS_BETWEEN_FRAMES = 0.25


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this, which shows HTML; IPython on a terminal does not."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class NotebookBar:
    """A line of text behind a bar, in HTML without scripts and without widgets.

    What is shown last stays in the stored notebook. Where HTML is not shown, the line is.
    """

    def __init__(
        self, total: int, title: str, start_round: int, clock: Callable[[], float]
    ) -> None:
        """Draw the bar at `start_round` of `total`."""
        from IPython.display import display

        self._clock, self._total = clock, total
        self._frame_at = clock()
        self._last = (start_round, title)
        self._handle: Any = display(  # type: ignore[no-untyped-call]
            self._bundle(), raw=True, display_id=True
        )

    def show(self, round: int, status: Status) -> None:
        """Move the bar to `round`, with `status` beside it."""
        self._last = (round, str(status))
        now = self._clock()
        if round == self._total or now - self._frame_at >= SECONDS_BETWEEN_FRAMES:
            self._frame_at = now
            self._handle.update(self._bundle(), raw=True)

    def close(self) -> None:
        """Draw the last state."""
        self._handle.update(self._bundle(), raw=True)

    def _bundle(self) -> dict[str, str]:
        round, text = self._last
        bar = f'<progress value="{round}" max="{self._total}"></progress>'
        return {"text/plain": text, "text/html": f"{bar} <code>{escape(text)}</code>"}
