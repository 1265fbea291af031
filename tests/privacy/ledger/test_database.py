from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fedsink.errors import BudgetError, LedgerError, ReleaseRefusedError
from fedsink.privacy.ledger import (
    Budget,
    Charge,
    Database,
    Ledger,
    Use,
    event_to_json,
    problems,
    report,
)

Make = Callable[..., Charge]
BUDGET = Budget(10.0, 1e-5)
TODAY = b"today".ljust(32)


def test_the_file_and_its_log_are_the_owners_alone(path: Path, make_charge: Make) -> None:
    ledger = Ledger(path)
    ledger.reserve("ward", "r1", make_charge(), Budget(10.0, 1e-5))
    modes = {f.name: stat.S_IMODE(f.stat().st_mode) for f in path.parent.iterdir()}
    assert modes == {
        "ledger.sqlite": 0o600,
        "ledger.sqlite-wal": 0o600,
        "ledger.sqlite-shm": 0o600,
    }
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_file_that_others_can_reach_is_refused(path: Path, mode: int) -> None:
    Ledger(path).close()
    os.chmod(path, mode)
    with pytest.raises(LedgerError, match=f"has mode {mode:04o}, so others can read or change it"):
        Ledger(path)


@pytest.mark.parametrize(("durable", "level"), [(True, 2), (False, 0)])
def test_a_real_nodes_commits_survive_a_power_cut(path: Path, durable: bool, level: int) -> None:
    database = Database(path, durable=durable)
    assert database.rows("PRAGMA synchronous") == [(level,)]
    assert database.rows("PRAGMA journal_mode") == [("wal",)]
    assert database.rows("PRAGMA foreign_keys") == [(1,)]


def test_an_unknown_version_is_refused(path: Path) -> None:
    Ledger(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=4")
    with pytest.raises(LedgerError, match=r"no ledger of version 3 \(it says 4\)"):
        Ledger(path)


def test_somebody_elses_database_is_refused_and_left_as_it_is(path: Path) -> None:
    path.parent.mkdir()
    path.touch(0o600)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE accounts (money REAL)")
    with pytest.raises(LedgerError, match=r"no ledger of version 3 \(it says 0\)"):
        Ledger(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("accounts",)]


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.touch(0o600)
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(
        LedgerError, match=r"cannot be used \(file is not a database\), and nothing"
    ):
        Ledger(path)


def test_a_folder_that_cannot_be_made_is_refused(path: Path) -> None:
    path.parent.touch()
    with pytest.raises(LedgerError, match="cannot be used"):
        Ledger(path)


def test_reading_makes_no_file(path: Path) -> None:
    with pytest.raises(LedgerError, match="No such file"):
        Database(path, writable=False)
    assert not path.parent.exists()


@pytest.mark.parametrize(
    ("limit", "reason"),
    [("PRAGMA query_only=ON", "readonly"), ("PRAGMA max_page_count=1", "disk is full")],
)
def test_a_full_disk_or_a_read_only_file_admits_nothing(
    path: Path, make_charge: Make, limit: str, reason: str
) -> None:
    """The charge is committed, or there is an error; there is no release without it."""
    budget = Budget(10.0, 1e-5)
    ledger = Ledger(path)
    held = ledger.reserve("ward", "r1", make_charge(rounds=100_000, uses=100_000), budget)
    ledger.bind("ward", b"today")
    ledger._database.connection.execute(limit)
    uses = [Use(round, None, b"x" * 32) for round in range(1, 2000)]
    with pytest.raises(LedgerError, match=rf"{reason}.*nothing is released without it"):
        ledger.claim(held, b"today", uses)
    again = Ledger(path)
    assert again.claim(held, b"today", uses[:1])[0].new  # nothing of it was kept


OLD_TABLES = """
CREATE TABLE accounts (
    id INTEGER PRIMARY KEY, lineage TEXT NOT NULL, adjacency TEXT NOT NULL,
    admission TEXT NOT NULL, alpha REAL, epsilon REAL, delta REAL,
    UNIQUE (lineage, adjacency));
CREATE TABLE contents (fingerprint BLOB PRIMARY KEY, lineage TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, account INTEGER NOT NULL REFERENCES accounts, name TEXT NOT NULL,
    fingerprint BLOB REFERENCES contents,
    UNIQUE (account, name));
CREATE TABLE reservations (
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs, plan TEXT NOT NULL,
    event TEXT NOT NULL, use TEXT, rounds INTEGER NOT NULL, uses INTEGER NOT NULL,
    epsilon REAL, delta REAL NOT NULL, rho REAL,
    UNIQUE (run, plan));
CREATE TABLE claims (
    run INTEGER NOT NULL REFERENCES runs, round INTEGER NOT NULL,
    reservation INTEGER NOT NULL REFERENCES reservations, label INTEGER NOT NULL,
    digest BLOB NOT NULL, released INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run, round)) WITHOUT ROWID;
CREATE TABLE counts (
    reservation INTEGER NOT NULL REFERENCES reservations, label INTEGER NOT NULL,
    uses INTEGER NOT NULL,
    PRIMARY KEY (reservation, label)) WITHOUT ROWID;
"""
"""As versions 1 and 2 of the ledger had them; 2 kept prices as well."""
OLD_PRICES = """
CREATE TABLE prices (id INTEGER PRIMARY KEY, plan BLOB UNIQUE, epsilon REAL NOT NULL);
INSERT INTO prices VALUES (1, x'00', 6.0);
"""


def of_version(version: int, path: Path, make_charge: Make) -> None:
    """A ledger of an earlier version: ε = 6 of 10 is charged, and two rounds, one released."""
    charge = make_charge(6.0)
    path.parent.mkdir(mode=0o700)
    path.touch(0o600)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(OLD_TABLES + OLD_PRICES * (version - 1))
        connection.execute(
            "INSERT INTO accounts VALUES (1, 'ward', 'add-remove', 'reserve', NULL, 10, 1e-5)"
        )
        connection.execute("INSERT INTO contents VALUES (?, 'ward')", (TODAY,))
        connection.execute("INSERT INTO runs VALUES (1, 1, 'r1', ?)", (TODAY,))
        event, use = event_to_json(charge.event), event_to_json(charge.use)
        connection.execute(
            "INSERT INTO reservations VALUES (1, 1, ?, ?, ?, 10, 10, 6, 1e-6, NULL)",
            (charge.plan_json, event, use),
        )
        connection.execute("INSERT INTO claims VALUES (1, 1, 1, -1, x'01', 1)")
        connection.execute("INSERT INTO claims VALUES (1, 2, 1, -1, x'02', 0)")
        connection.execute("INSERT INTO counts VALUES (1, -1, 2)")
        connection.execute(f"PRAGMA user_version={version}")


@pytest.mark.parametrize("version", [1, 2])
def test_an_earlier_ledger_goes_on_with_its_charges(
    path: Path, make_charge: Make, version: int
) -> None:
    of_version(version, path, make_charge)
    ledger = Ledger(path, durable=False)
    assert ledger._database.rows("PRAGMA user_version") == [(3,)]
    held = ledger.reserve("ward", "r1", make_charge(6.0), BUDGET)  # found, not charged again
    uses = [Use(1, None, b"\1"), Use(2, None, b"\2")]
    assert ledger.claim(held, TODAY, uses) == [(False, True), (False, False)]
    with pytest.raises(ReleaseRefusedError, match="already answered another request in round 2"):
        ledger.claim(held, TODAY, [Use(2, None, b"another")])
    with pytest.raises(BudgetError, match="ε = 4, "):
        ledger.reserve("ward", "r2", make_charge(5.0), BUDGET)
    ledger.close()
    Ledger(path, durable=False).close()


@pytest.mark.parametrize("version", [1, 2])
def test_an_earlier_ledger_is_read_as_it_is(path: Path, make_charge: Make, version: int) -> None:
    of_version(version, path, make_charge)
    before = path.read_bytes()
    database = Database(path, writable=False)
    [account] = report(database)
    assert (account.spent_epsilon, account.epsilon, problems(database)) == (6.0, 10.0, [])
    database.close()
    assert path.read_bytes() == before


def test_a_damaged_ledger_is_not_migrated(path: Path, make_charge: Make) -> None:
    """An index that hides a row would hide its charge from whoever copies by it."""
    of_version(2, path, make_charge)
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name='sqlite_autoindex_accounts_1'"
        [(page,)] = connection.execute(query)
    content = bytearray(path.read_bytes())
    content[page * 4096 - 12] ^= 1
    path.write_bytes(content)
    for writable in (True, False):
        with pytest.raises(LedgerError, match="the file is damaged, and it was not rewritten"):
            Database(path, writable=writable)
    assert path.read_bytes()[4096:] == content[4096:]


def test_two_processes_migrate_a_ledger_once(
    path: Path, make_charge: Make, in_processes: Callable[..., list[int | None]]
) -> None:
    of_version(2, path, make_charge)

    def opened(barrier: Any) -> None:
        barrier.wait()
        Ledger(path, durable=False).close()

    assert in_processes(opened, [()] * 4) == [0] * 4
