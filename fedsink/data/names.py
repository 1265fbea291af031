"""Numbers of users and of records that depend on their names alone.

What comes or goes beside them changes no such number, nor anything that is dealt by number.
"""

from __future__ import annotations

import hashlib


def number_of(name: str) -> int:
    """Return a number in [0, 2⁶³) for a name: the leading bits of its SHA-256."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1
