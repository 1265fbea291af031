"""The SQLite file under a ledger: its tables, its seals, its mode, and ledgers of before."""

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
from fedsink.values import check_format

VERSION = 4

TABLES = """
CREATE TABLE accounts (
    id INTEGER PRIMARY KEY, lineage TEXT NOT NULL, adjacency TEXT NOT NULL,
    epsilon REAL, delta REAL,
    UNIQUE (lineage, adjacency));
CREATE TABLE contents (fingerprint BLOB PRIMARY KEY, lineage TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, account INTEGER NOT NULL REFERENCES accounts, name TEXT NOT NULL,
    plan TEXT NOT NULL, event TEXT NOT NULL, rounds INTEGER NOT NULL, uses INTEGER NOT NULL,
    epsilon REAL, delta REAL NOT NULL, operator TEXT, method TEXT, day TEXT,
    content BLOB REFERENCES contents,
    UNIQUE (account, name));
CREATE TABLE claims (
    run INTEGER NOT NULL REFERENCES runs, round INTEGER NOT NULL, digest BLOB NOT NULL,
    released INTEGER NOT NULL,
    PRIMARY KEY (run, round)) WITHOUT ROWID;
CREATE TABLE counts (
    run INTEGER NOT NULL REFERENCES runs, label INTEGER NOT NULL, uses INTEGER NOT NULL,
    PRIMARY KEY (run, label)) WITHOUT ROWID;
CREATE TABLE seals (number INTEGER PRIMARY KEY, seal BLOB NOT NULL);
CREATE TABLE refusals (
    day INTEGER NOT NULL, reason TEXT NOT NULL, times INTEGER NOT NULL,
    PRIMARY KEY (day, reason)) WITHOUT ROWID
"""
"""An account has the ceiling that was noted last, a run one plan, with its paid rounds and its
charge (NULL in an account without a ceiling). `counts` adds up claims by class, `seals` has one row
for each fact, and nothing is decided by `refusals`."""

_OLD = 3  # the version that is carried over
_OLD_FACTS = {
    "accounts": "id", "ceilings": "number", "contents": "number", "runs": "id",
    "sources": "number", "reservations": "id", "instalments": "number", "claims": "number",
    "releases": "number",
}  # fmt: skip
_OLD_TABLES = ("counts", *reversed(_OLD_FACTS), "head", "refusals", "prices")
_CARRIED_OVER = """
INSERT INTO contents SELECT fingerprint, lineage FROM old_contents;
INSERT INTO accounts SELECT id, lineage, adjacency, c.epsilon, c.delta FROM old_accounts
    JOIN (SELECT account, MAX(number), epsilon, delta FROM old_ceilings GROUP BY account) AS c
    ON account = id;
UPDATE accounts SET (epsilon, delta) =
    (SELECT MAX(epsilon), MAX(delta) FROM old_ceilings WHERE account = id)
    WHERE id IN (SELECT id FROM old_accounts WHERE alpha IS NOT NULL);
INSERT INTO runs SELECT r.id, account, name, plan, event,
    COALESCE((SELECT MAX(reserved) FROM old_instalments WHERE reservation = p.id), p.reserved)
        * (rho IS NULL), uses,
    COALESCE((SELECT MAX(epsilon) FROM old_instalments WHERE reservation = p.id), p.epsilon),
    delta * (rho IS NULL), operator, method, date(day * 86400, 'unixepoch'), fingerprint
    FROM old_reservations AS p JOIN old_runs AS r ON p.run = r.id
    LEFT JOIN old_sources ON old_sources.run = r.id
    WHERE p.id = (SELECT MAX(id) FROM old_reservations WHERE run = r.id);
INSERT INTO runs (account, name, plan, event, rounds, uses, epsilon, delta, method)
    SELECT a.id, '',
    json_object('admission', 'rdp-filter', 'order', alpha, 'plans', json_group_array(json(plan))),
    json_object('class', 'ComposedDpEvent', 'events', json_group_array(json(event))),
    0, 0, a.epsilon, a.delta, 'rdp-filter'
    FROM old_reservations AS p JOIN old_runs AS r ON p.run = r.id
    JOIN accounts AS a ON account = a.id JOIN old_accounts ON account = old_accounts.id
    WHERE rho IS NOT NULL AND p.id IN (SELECT reservation FROM old_claims)
    GROUP BY a.id;
INSERT INTO claims SELECT run, round, digest,
    (run, round) IN (SELECT run, round FROM old_releases) FROM old_claims;
INSERT INTO counts SELECT run, label, COUNT(*) FROM old_claims GROUP BY run, label;
INSERT INTO refusals SELECT * FROM old_refusals
"""
"""Every charge stays. A run that was charged in part (for its first rounds, or use by use under a
filter) keeps what it has paid, and has not paid for all of its rounds: it is charged whole, on top,
when it is asked again. A filter admitted uses up to its ceiling, in whatever way they were chosen,
and proves no less: what it admitted is one charge of its largest ceiling, in a row with a name that
no run has."""

_PATIENCE = 60.0  # seconds to wait for another process


class Database:
    """Connects to a ledger's file, and carries a ledger of version 3 over with all its charges.

    The file is made with mode 0600 where there is none, unless it is only read; a ledger of before
    is then carried over in memory. A `durable` commit survives a power cut, any other the end of
    the process. Raises LedgerError where the file cannot be used, others may read it, or its
    version is unknown.
    """

    def __init__(self, path: Path, *, durable: bool = True, writable: bool = True) -> None:
        self.path = path
        if writable:
            try:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            except OSError as error:
                raise LedgerError(self._unusable(error.strerror)) from None
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError as error:
            raise LedgerError(self._unusable(error.strerror)) from None
        if os.name == "posix" and mode & 0o077:
            raise LedgerError(
                f"the ledger {path} has mode {mode:04o}, so others can read or change it: give it "
                "mode 0600 after checking who did."
            )
        try:
            uri = f"{path.absolute().as_uri()}?mode={'rw' if writable else 'ro'}"
            self.connection = sqlite3.connect(
                uri, uri=True, timeout=_PATIENCE, isolation_level=None
            )
        except sqlite3.Error as error:
            raise LedgerError(self._unusable(error)) from error
        with self.explained():
            if writable:
                # SQLite waits by itself for a table, but not for the switch to a write-ahead log.
                _persistently(lambda: self.connection.execute("PRAGMA journal_mode=WAL"))
                self.connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
            self._check_version(writable)
            self.connection.execute("PRAGMA foreign_keys=ON")

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Returns all rows of one statement."""
        with self.explained():
            return self.connection.execute(query, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Executes one decision: excludes other processes, and keeps all of it or nothing."""
        with self.explained():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    def seal(self, kind: str, *fact: int | float | str | bytes | None) -> None:
        """Seals a fact inside its transaction: SHA-256 of it and of the seal before it."""
        number, previous = self.head()
        content = previous + repr((kind, *fact)).encode("utf-8", "replace")
        sealed = hashlib.sha256(content).digest()
        self.connection.execute("INSERT INTO seals VALUES (?, ?)", (number + 1, sealed))

    def head(self) -> tuple[int, bytes]:
        """Returns the number of facts, and the seal of the last one; (0, b"") before the first."""
        last = self.rows("SELECT number, seal FROM seals ORDER BY number DESC LIMIT 1")
        return last[0] if last else (0, b"")

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

    def _check_version(self, writable: bool) -> None:
        if not writable and self._version() == _OLD:
            copy = sqlite3.connect(":memory:", isolation_level=None)
            self.connection.backup(copy)
            self.connection.close()
            self.connection = copy
        if self._version() == _OLD or (writable and self._version() == 0):
            with self.transaction():  # another process may have been first
                if self._version() == _OLD:
                    self._carry_over()
                # Other tables belong to another program.
                elif self._version() == 0 and not self.rows("SELECT 1 FROM sqlite_master"):
                    self._make_tables()
        if (version := self._version()) != VERSION:
            self.connection.close()
            check_format(f"The ledger {self.path}", version, _OLD, VERSION, error=LedgerError)

    def _make_tables(self) -> None:
        for statement in (*TABLES.split(";"), f"PRAGMA user_version={VERSION}"):
            self.connection.execute(statement)

    def _carry_over(self) -> None:
        self.connection.execute("DROP VIEW charged")
        for table in _OLD_TABLES:
            self.connection.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
        self._make_tables()
        for table, number in _OLD_FACTS.items():
            self.connection.execute(f"INSERT INTO seals SELECT {number}, seal FROM old_{table}")
        for statement in (
            *_CARRIED_OVER.split(";"),
            *(f"DROP TABLE old_{table}" for table in _OLD_TABLES),
        ):
            self.connection.execute(statement)

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


def problems(database: Database) -> list[str]:
    """Returns a sentence for each problem of a ledger; none for a sound one."""
    try:
        with database.snapshot():
            integrity = [row[0] for row in database.rows("PRAGMA integrity_check")]
            if integrity != ["ok"]:
                return [f"the file is damaged: {line}" for line in integrity]
            orphans = database.rows("PRAGMA foreign_key_check")
            overspent = database.rows(
                "SELECT lineage, adjacency FROM accounts JOIN runs ON account = accounts.id"
                " GROUP BY accounts.id HAVING TOTAL(runs.epsilon) > 1.000000002 * accounts.epsilon"
                " OR TOTAL(runs.delta) > 1.000000002 * accounts.delta"
            )
    except LedgerError as error:
        return [f"the file is damaged: {error.__cause__ or error}"]
    return [
        f"a row of {table} refers to a row of {parent} that is not there"
        for table, _, parent, _ in orphans
    ] + [f"the account of {lineage} ({kind}) has spent more than its ceiling"
         for lineage, kind in overspent]  # fmt: skip
