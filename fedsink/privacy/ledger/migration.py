"""Ledgers of earlier versions, turned into facts with seals."""

from __future__ import annotations

from sqlite3 import Connection, DatabaseError
from typing import TYPE_CHECKING

from fedsink.privacy.ledger.tables import TABLES

if TYPE_CHECKING:
    from fedsink.privacy.ledger.database import Database

EARLIER = (1, 2)
_OLD = ("accounts", "contents", "runs", "reservations", "claims", "counts")


def create(connection: Connection) -> None:
    """The tables of an empty ledger."""
    for statement in TABLES.split(";"):
        connection.execute(statement)
    connection.execute("INSERT INTO head VALUES (0, x'')")


def migrate(database: Database) -> None:
    """Write a ledger of version 1 or 2 anew, inside a transaction: every charge stays.

    Prices are left out, because they can be computed again.

    Raises:
        DatabaseError: the file is damaged.
    """
    connection = database.connection
    if connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
        raise DatabaseError("the file is damaged, and it was not rewritten")
    accounts, contents, runs, reservations, claims, counts = (
        connection.execute(f"SELECT * FROM {table}").fetchall() for table in _OLD
    )
    for table in (*reversed(_OLD), "prices"):
        connection.execute(f"DROP TABLE IF EXISTS {table}")
    create(connection)
    append, at = database.append, dict[tuple[str, int | None], int]()
    for id, lineage, adjacency, admission, alpha, epsilon, delta in accounts:
        at["account", id] = append("accounts", lineage, adjacency, admission, alpha)
        append("ceilings", at["account", id], epsilon, delta)
    for content in contents:
        append("contents", *content)
    for id, account, name, fingerprint in runs:
        at["run", id] = append("runs", at["account", account], name, None, None)
        if fingerprint is not None:
            append("sources", at["run", id], fingerprint)
    for id, run, *plan in reservations:
        at["reservation", id] = append("reservations", at["run", run], *plan, None, None, plan[3])
    for run, round, reservation, label, digest, released in claims:
        append("claims", at["run", run], round, at["reservation", reservation], label, digest)
        if released:
            append("releases", at["run", run], round)
    for reservation, label, uses in counts:
        place = at["reservation", reservation], label, uses
        connection.execute("INSERT INTO counts VALUES (?, ?, ?)", place)
