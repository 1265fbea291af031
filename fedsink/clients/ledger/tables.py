"""The tables of a ledger: facts that are only ever added, each sealed with the one before it."""

from __future__ import annotations

import hashlib

VERSION = 3
ORIGIN = b""
"""What the first fact is sealed with."""

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


def sealed(previous: bytes, table: str, *row: Value) -> bytes:
    """SHA-256 of a row, and of all facts before it by the seal of the last one.

    Args:
        previous: that seal; `ORIGIN` where there is none.
        table: the row's.
        row: built-in values of the types that the columns have.
    """
    return hashlib.sha256(previous + repr((table, *row)).encode("utf-8", "replace")).digest()
