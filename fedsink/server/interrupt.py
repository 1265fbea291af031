"""Ctrl-C and SIGTERM end a run between two rounds, with a checkpoint."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, ClassVar

from fedsink.errors import FedsinkError


class InterruptedRunError(FedsinkError):
    """The user stopped the run; its checkpoint is complete.

    Args:
        stopped: where, in a sentence.
        command: what continues the run.
    """

    exit_code: ClassVar[int] = 130

    def __init__(self, stopped: str, command: str) -> None:
        super().__init__(f"{stopped} Continue with: {command}")
        self.stopped = stopped


class Interruption:
    """Turns the first SIGINT or SIGTERM into a request; the second one interrupts at once.

    Outside the main thread (stock Flower runs the server in one) signals cannot be caught, and
    the request never comes.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
