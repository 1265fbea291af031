"""What reading changed in the records, for the terminal of a simulation and for nobody else.

A source tells it by `note` while it reads; `fedsink.data.sources.notes` has it afterwards. A node
asks for none of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LISTENER: ContextVar[list[str] | None] = ContextVar("notes", default=None)


def note(sentence: str) -> None:
    """Tell `listening` one sentence; outside of it nothing is kept."""
    if (heard := _LISTENER.get()) is not None:
        heard.append(sentence)


@contextmanager
def listening() -> Iterator[list[str]]:
    """The sentences that are noted inside the block."""
    heard: list[str] = []
    token = _LISTENER.set(heard)
    try:
        yield heard
    finally:
        _LISTENER.reset(token)
