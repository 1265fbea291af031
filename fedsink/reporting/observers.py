"""What a run tells while it trains, and whoever listens to it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from fedsink.reporting.stream import ForgivingStream

Ending = Literal["finished", "stopped", "failed"]
"""How training ended; a run that was stopped or has failed can be resumed."""


class Observer:
    """Listens to a run; this one does nothing, and a subclass overrides what it needs.

    A run that is resumed begins again after a checkpoint. What it told after that checkpoint it
    tells once more, and what it told before `keep` it does not.
    """

    def begin(self, round: int) -> None:
        """Training begins after this round: 0, or that of the checkpoint."""

    def record(self, record: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl."""

    def picture(self, round: int, path: Path) -> None:
        """A PNG in samples/ that shows this round."""

    def keep(self) -> None:
        """A checkpoint is about to be written: store what was told so far."""

    def end(self, ending: Ending) -> None:
        """Training has ended."""


class Observers(Observer):
    """Tells several observers, and costs no run: one that fails is left out from then on.

    Args:
        observers: by the name under which a failure is reported, once, on standard error.
    """

    def __init__(self, observers: Mapping[str, Observer]) -> None:
        self._observers = dict(observers)
        self._begun = False

    def begin(self, round: int) -> None:
        """Tell all."""
        self._begun = True
        self._tell("begin", round)

    def record(self, record: Mapping[str, Any]) -> None:
        """Tell all."""
        self._tell("record", record)

    def picture(self, round: int, path: Path) -> None:
        """Tell all."""
        self._tell("picture", round, path)

    def keep(self) -> None:
        """Tell all."""
        self._tell("keep")

    def end(self, ending: Ending) -> None:
        """Tell all, if it had begun."""
        if self._begun:
            self._tell("end", ending)

    def _tell(self, event: str, *values: object) -> None:
        for name, observer in list(self._observers.items()):
            try:
                getattr(observer, event)(*values)
            except Exception as error:
                del self._observers[name]
                reason = " ".join(str(error).split()) or "no message"
                ForgivingStream(sys.stderr).write(
                    f"{name} failed ({type(error).__name__}: {reason}): the run continues without "
                    "it.\n"
                )
