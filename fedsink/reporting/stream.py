"""A text stream whose loss stops nobody."""

from __future__ import annotations

from typing import TextIO


class ForgivingStream:
    """Writes to another stream until that fails, and then writes nowhere.

    A pipe whose reader left, a terminal that was closed, a closed file: progress is lost, the run
    continues. (rich, left to itself, answers a broken pipe by closing standard output and exiting.)
    """

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`."""
        self._stream: TextIO | None = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write `text` if that is still possible; return its length either way."""
        if self._stream is not None:
            try:
                self._stream.write(text)
            except (OSError, ValueError):
                self._stream = None
        return len(text)

    def flush(self) -> None:
        """Flush if that is still possible."""
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._stream = None
