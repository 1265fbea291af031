from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsink.clients.owner.ledger.charge import Budget, Charge, Use
from fedsink.clients.owner.ledger.database import Database
from fedsink.clients.owner.ledger.ledger import Ledger
from fedsink.errors import LedgerError

Make = Callable[..., Charge]
BUDGET = Budget(10.0, 1e-5)
TODAY = b"today".ljust(32)


def test_the_file_and_its_log_are_the_owners_alone(path: Path, make_charge: Make) -> None:
    ledger = Ledger(path)
    ledger.reserve("ward", "r1", make_charge(), Budget(10.0, 1e-5))
    modes = {f.name: stat.S_IMODE(f.stat().st_mode) for f in path.parent.iterdir()}
    assert modes == dict.fromkeys(
        ("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"), 0o600
    )
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


def test_a_seal_is_of_the_kind_the_values_and_all_facts_before(tmp_path: Path) -> None:
    heads = []
    facts: list[tuple[Any, ...]] = [
        (kind, *values)
        for kind in ("claim", "release")
        for values in ((1, 2), (1, 3), (1, 2.0), (1, "2"), (1, None), (12,))
    ]
    for number, fact in enumerate(facts):
        database = Database(tmp_path / f"{number}.sqlite")
        assert database.head() == (0, b"")
        for _ in range(2):  # the same fact again has another seal
            database.seal(*fact)
            heads.append(database.head())
        database.close()
    assert [number for number, _ in heads] == [1, 2] * 12
    assert len({seal for _, seal in heads}) == 24


def test_somebody_elses_database_is_refused_and_left_as_it_is(path: Path) -> None:
    path.parent.mkdir()
    path.touch(0o600)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE accounts (money REAL)")
    with pytest.raises(LedgerError, match="is of format 0, and"):
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
    ledger = Ledger(path)
    held = ledger.reserve("ward", "r1", make_charge(rounds=100_000, uses=100_000), BUDGET)
    ledger.bind("ward", b"today")
    ledger._database.connection.execute(limit)
    uses = [Use(round, None, b"x" * 32) for round in range(1, 2000)]
    with pytest.raises(LedgerError, match=rf"{reason}.*nothing is released without it"):
        ledger.claim(held, b"today", uses)
    again = Ledger(path)
    assert again.claim(held, b"today", uses[:1])[0].new  # nothing of it was kept
