"""The SQLite file under a ledger: its tables, seals, file mode and locks.

Facts are only ever added, and each is sealed with the one before it.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedsink.errors import LedgerError

VERSION = 3
ORIGIN = b""
"""Seal before the first fact."""

TABLES = """
CREATE TABLE accounts (
    id INTEGER PRIMARY KEY, lineage TEXT NOT NULL, adjacency TEXT NOT NULL,
    admission TEXT NOT NULL, alpha REAL, seal BLOB NOT NULL,
    UNIQUE (lineage, adjacency));
CREATE TABLE ceilings (
    number INTEGER PRIMARY KEY, account INTEGER NOT NULL REFERENCES accounts,
    epsilon REAL, delta REAL, seal BLOB NOT NULL);
CREATE TABLE contents (
    number INTEGER NOT NULL, fingerprint BLOB PRIMARY KEY, lineage TEXT NOT NULL,
    seal BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, account INTEGER NOT NULL REFERENCES accounts, name TEXT NOT NULL,
    operator TEXT, day INTEGER, seal BLOB NOT NULL,
    UNIQUE (account, name));
CREATE TABLE sources (
    number INTEGER NOT NULL, run INTEGER PRIMARY KEY REFERENCES runs,
    fingerprint BLOB NOT NULL REFERENCES contents, seal BLOB NOT NULL);
CREATE TABLE reservations (
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs, plan TEXT NOT NULL,
    event TEXT NOT NULL, use TEXT, rounds INTEGER NOT NULL, uses INTEGER NOT NULL,
    epsilon REAL, delta REAL NOT NULL, rho REAL, method TEXT,
    step INTEGER, reserved INTEGER NOT NULL, seal BLOB NOT NULL,
    UNIQUE (run, plan));
CREATE TABLE instalments (
    number INTEGER PRIMARY KEY, reservation INTEGER NOT NULL REFERENCES reservations,
    reserved INTEGER NOT NULL, epsilon REAL NOT NULL, seal BLOB NOT NULL);
CREATE VIEW charged AS
    SELECT reservations.id AS id, run, plan, event, use, rounds, uses, delta, rho, method, step,
        COALESCE(MAX(instalments.reserved), reservations.reserved) AS reserved,
        COALESCE(MAX(instalments.epsilon), reservations.epsilon) AS epsilon
    FROM reservations LEFT JOIN instalments ON reservation = reservations.id
    GROUP BY reservations.id;
CREATE TABLE claims (
    number INTEGER NOT NULL, run INTEGER NOT NULL REFERENCES runs, round INTEGER NOT NULL,
    reservation INTEGER NOT NULL REFERENCES reservations, label INTEGER NOT NULL,
    digest BLOB NOT NULL, seal BLOB NOT NULL,
    PRIMARY KEY (run, round)) WITHOUT ROWID;
CREATE TABLE releases (
    number INTEGER NOT NULL, run INTEGER NOT NULL, round INTEGER NOT NULL, seal BLOB NOT NULL,
    PRIMARY KEY (run, round), FOREIGN KEY (run, round) REFERENCES claims) WITHOUT ROWID;
CREATE TABLE head (number INTEGER NOT NULL, seal BLOB NOT NULL);
CREATE TABLE counts (
    reservation INTEGER NOT NULL REFERENCES reservations, label INTEGER NOT NULL,
    uses INTEGER NOT NULL,
    PRIMARY KEY (reservation, label)) WITHOUT ROWID;
CREATE TABLE refusals (
    day INTEGER NOT NULL, reason TEXT NOT NULL, times INTEGER NOT NULL,
    PRIMARY KEY (day, reason)) WITHOUT ROWID;
CREATE TABLE prices (
    id INTEGER PRIMARY KEY, plan BLOB UNIQUE, epsilon REAL NOT NULL, seal BLOB NOT NULL);
"""
"""`counts` adds up `claims`, `prices` holds ε of plans, which anyone can compute again, and
`refusals` is for the owner to look at: nothing is decided by it."""

CHAINED = {
    "accounts": ("id", "lineage", "adjacency", "admission", "alpha"),
    "ceilings": ("number", "account", "epsilon", "delta"),
    "contents": ("number", "fingerprint", "lineage"),
    "runs": ("id", "account", "name", "operator", "day"),
    "sources": ("number", "run", "fingerprint"),
    "reservations": (
        "id", "run", "plan", "event", "use", "rounds", "uses", "epsilon", "delta", "rho",
        "method", "step", "reserved",
    ),
    "instalments": ("number", "reservation", "reserved", "epsilon"),
    "claims": ("number", "run", "round", "reservation", "label", "digest"),
    "releases": ("number", "run", "round"),
}  # fmt: skip
"""The facts: each table's columns that are sealed, the first of which numbers all facts."""

CEILINGS = "(SELECT account, MAX(number), epsilon, delta FROM ceilings GROUP BY account)"
"""The ceiling of each account that was noted last, as a table of a query."""

Value = int | float | str | bytes | None

_PATIENCE = 60.0  # seconds to wait for another process
_INSERT = {
    table: f"INSERT INTO {table} ({', '.join(columns)}, seal) VALUES (?{', ?' * len(columns)})"
    for table, columns in CHAINED.items()
}


class Database:
    """Connects to a ledger's file.

    Args:
        path: the file, made with mode 0600 where there is none.
        durable: whether a commit survives a power cut (`synchronous=FULL`) or only the end of
            the process (in a simulation nobody cuts the power on purpose).
        writable: False opens an existing file for reading.

    Raises:
        LedgerError: the file cannot be used, others may read it, or its version is unknown.
    """

    def __init__(self, path: Path, *, durable: bool = True, writable: bool = True) -> None:
        self.path = path
        if writable:
            self._create()
        self._refuse_shared()
        try:
            self.connection = self._connect("rw" if writable else "ro")
        except sqlite3.Error as error:
            raise LedgerError(self._unusable(error)) from error
        with self.explained():
            self.connection.execute("PRAGMA foreign_keys=ON")
            if writable:
                # SQLite waits by itself for a table, but not for the switch to a write-ahead log.
                _persistently(lambda: self.connection.execute("PRAGMA journal_mode=WAL"))
                self.connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
        self._head: tuple[int, bytes] | None = None
        self._check_version(writable)

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """All rows of one statement."""
        with self.explained():
            return self.connection.execute(query, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Executes one decision: excludes other processes, and keeps all of it or nothing.

        Raises:
            LedgerError: the file cannot be written; nothing of the decision is kept.
        """
        with self.explained():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                if self._head is not None:
                    self.connection.execute("UPDATE head SET number=?, seal=?", self._head)
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise
            finally:
                self._head = None

    def append(self, table: str, *values: Value) -> int:
        """Adds a fact inside a transaction, sealed with all facts before it; returns its number.

        Args:
            table: a key of `CHAINED`.
            values: of its columns after the number, of the types that the columns have.
        """
        if self._head is None:
            self._head = self.head()
        number, previous = self._head
        seal = sealed(previous, table, number + 1, *values)
        self.connection.execute(_INSERT[table], (number + 1, *values, seal))
        self._head = number + 1, seal
        return number + 1

    def head(self) -> tuple[int, bytes]:
        """Returns the number of facts, and the seal of the last one.

        Raises:
            LedgerError: the ledger has no head.
        """
        head: tuple[int, bytes] | None
        head = self.connection.execute("SELECT number, seal FROM head").fetchone()
        if head is None:
            raise LedgerError(f"the ledger {self.path} is damaged: restore it from a backup.")
        return head

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Gives all reads inside the state of one moment, whatever other processes add."""
        with self.explained():
            self.connection.execute("BEGIN")
            try:
                yield
            finally:
                self.connection.rollback()

    @contextmanager
    def explained(self) -> Iterator[sqlite3.Connection]:
        """Yields the connection; turns SQLite's errors into sentences about the ledger."""
        try:
            yield self.connection
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise LedgerError(self._unusable(error)) from error

    def close(self) -> None:
        """Closes the connection."""
        self.connection.close()

    def _connect(self, mode: str) -> sqlite3.Connection:
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        return sqlite3.connect(uri, uri=True, timeout=_PATIENCE, isolation_level=None)

    def _create(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600))
        except OSError as error:
            raise LedgerError(self._unusable(error.strerror)) from None

    def _refuse_shared(self) -> None:
        try:
            mode = stat.S_IMODE(self.path.stat().st_mode)
        except OSError as error:
            raise LedgerError(self._unusable(error.strerror)) from None
        if os.name == "posix" and mode & 0o077:
            raise LedgerError(
                f"the ledger {self.path} has mode {mode:04o}, so others can read or change it: "
                "give it mode 0600 after checking who did."
            )

    def _check_version(self, writable: bool) -> None:
        if writable and self._version() == 0:
            with self.transaction() as connection:
                # Another process may have been first; other tables belong to another program.
                if self._version() == 0 and not self.rows("SELECT 1 FROM sqlite_master"):
                    for statement in TABLES.split(";"):
                        connection.execute(statement)
                    connection.execute("INSERT INTO head VALUES (0, x'')")
                    connection.execute(f"PRAGMA user_version={VERSION}")
        if (version := self._version()) != VERSION:
            self.connection.close()
            raise LedgerError(
                f"{self.path} is no ledger of version {VERSION} (it says {version}): use the "
                "fedsink that wrote it, or name another file."
            )

    def _version(self) -> int:
        return int(self.rows("PRAGMA user_version")[0][0])

    def _unusable(self, reason: object) -> str:
        return (
            f"the ledger {self.path} cannot be used ({reason}), and nothing is released without "
            "it: check the disk and the file's permissions."
        )


def _persistently(step: Callable[[], object]) -> None:
    """Repeats a step of opening the file while another process opens it."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            step()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def sealed(previous: bytes, table: str, *row: Value) -> bytes:
    """SHA-256 of a row, and of all facts before it by the seal of the last one.

    Args:
        previous: seal of the last fact; `ORIGIN` where there is none.
        table: of the row.
        row: built-in values of the types that the columns have.
    """
    return hashlib.sha256(previous + repr((table, *row)).encode("utf-8", "replace")).digest()
