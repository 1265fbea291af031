"""The public name of a run, as every request states it."""

from __future__ import annotations

import secrets
import time

LONGEST = 200
UNNAMED = "unnamed"


def run_name(value: object) -> str:
    """The value, if it can name a run.

    Raises:
        ValueError: it is not a string of 1 to 200 printable characters. A node writes the name
            into its ledger and its log.
    """
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST or not value.isprintable():
        raise ValueError(
            f"A run's name must be 1 to {LONGEST} printable characters, not {str(value)[:40]!r}."
        )
    return value


def new_run_name() -> str:
    """A name that no run had before: the time and 32 random bits."""
    return time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(4)
