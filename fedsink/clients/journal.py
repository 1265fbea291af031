"""What a client has answered under its secret key, so that nothing is answered twice."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from fedsink.errors import ClientError

_PATIENCE = 60.0  # seconds to wait for another process


class ReleaseRefusedError(ClientError):
    """The request differs from the one this client has already answered in its place."""


class ReleaseJournal:
    """One row per (client, purpose, round): the digest of the request that was answered.

    A crashed server that resumes asks some rounds again. The identical request is answered
    with the identical bytes (the noise is a function of key and request), which reveals
    nothing new. A different request for the same round would be a second, unaccounted
    release: it is refused.

    Guarantees:
        A place is claimed before its answer exists.
        A place once claimed is answered only for the digest that claimed it.
        Claims survive the end of the process, however it ends.
    """

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)
        _persistently(lambda: self._connection.execute("PRAGMA journal_mode=WAL"))
        # A claim must survive kill -9, not a power cut: a simulation has no adversary there.
        self._connection.execute("PRAGMA synchronous=OFF")
        _persistently(
            lambda: self._connection.execute(
                "CREATE TABLE IF NOT EXISTS releases (client INTEGER, purpose TEXT, round INTEGER,"
                " digest BLOB NOT NULL, PRIMARY KEY (client, purpose, round))"
            )
        )

    def claim(self, client: int, purpose: str, round: int, digest: bytes) -> None:
        """Claim a place for this digest, or raise if another digest holds it.

        Raises:
            ReleaseRefusedError: another request was answered in this place.
        """
        place = (client, purpose, round)
        self._connection.execute(
            "INSERT OR IGNORE INTO releases VALUES (?, ?, ?, ?)", (*place, digest)
        )
        with closing(
            self._connection.execute(
                "SELECT digest FROM releases WHERE client=? AND purpose=? AND round=?", place
            )
        ) as rows:
            held = rows.fetchone()[0]
        if held != digest:
            raise ReleaseRefusedError(
                f"Client {client} has already answered another {purpose} request in round {round}."
            )


def _persistently(step: Callable[[], object]) -> None:
    """Repeat a step of opening the file while another process opens it.

    SQLite waits by itself for a lock on a table, but not for the one that turns a new file to
    write-ahead logging.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            step()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
