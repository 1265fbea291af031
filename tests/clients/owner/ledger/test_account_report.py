"""Figures behind `show`, `check` and `export`."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from fedsink.clients.answers.central import central_charge
from fedsink.clients.answers.privatize_once import local_charge
from fedsink.clients.owner.ledger.account_report import export, report
from fedsink.clients.owner.ledger.charge import Budget, Use
from fedsink.clients.owner.ledger.database import Database, problems
from fedsink.clients.owner.ledger.ledger import Ledger
from fedsink.data.maps import PointBall
from fedsink.errors import LedgerError
from fedsink.privacy import ClassSchedule, PrivacyPlan, RecordClip, epsilon
from fedsink.protocol.privatize_once import LocalPlan

PLAN = PrivacyPlan(0.2, 2.0, 30, RecordClip(1.0), ClassSchedule(3), 1e-6)
LOCAL = LocalPlan("laplace", PointBall("l1", 1.0, 4), 3.0, 0.0, 1.0, 3)
SECRET = b"the fingerprint of the ward".ljust(32)


@pytest.fixture
def used(path: Path) -> Path:
    """A ledger with a central run that has answered seven rounds, and a local one."""
    ledger = Ledger(path, durable=False)
    ledger.bind("ward", SECRET)
    held = ledger.reserve("ward", "central", central_charge(PLAN), Budget(10.0, 1e-5))
    ledger.claim(held, SECRET, [Use(t, t % 3, b"digest!" * 4) for t in range(1, 8)])
    ledger.note_released(held, [2, 3])
    held = ledger.reserve("ward", "local", local_charge(LOCAL), Budget(35.0, 0.0), "lab", "upload")
    ledger.claim(held, SECRET, [Use(1, None, b"digest!" * 4)])
    ledger.close()
    return path


def test_a_report_says_what_is_charged_and_what_was_used(used: Path) -> None:
    central, local = report(Database(used, writable=False))
    assert (central.lineage, central.adjacency) == ("ward", "add-remove")
    assert (central.epsilon, central.delta) == (10.0, 1e-5)
    assert (central.spent_epsilon, central.spent_delta) == (PLAN.epsilon(), 1e-6)
    [run] = central.runs
    assert (run.run, run.claimed, run.rounds, run.epsilon) == ("central", 7, 30, PLAN.epsilon())
    assert (run.operator, run.method) == (None, None)

    assert (local.adjacency, local.spent_epsilon, local.spent_delta) == ("replace-one", 4.0, 0.0)
    assert (local.runs[0].operator, local.runs[0].method) == ("lab", "upload")


def test_an_export_holds_events_and_nothing_of_the_records(used: Path) -> None:
    text = json.dumps(export(Database(used, writable=False)))
    accounts = json.loads(text)["accounts"]
    [run] = accounts[0]["runs"]
    use = PoissonSampledDpEvent(0.2, GaussianDpEvent(2.0))
    assert run["event"] == {
        "class": "SelfComposedDpEvent",
        "count": 10,
        "event": {
            "class": "PoissonSampledDpEvent",
            "sampling_probability": 0.2,
            "event": {"class": "GaussianDpEvent", "noise_multiplier": 2.0},
        },
    }
    event = SelfComposedDpEvent(use, 10)
    assert epsilon(event, run["delta"]) == run["epsilon"] == PLAN.epsilon()
    assert run["plan"]["rounds"] == 30
    for private in (SECRET, b"digest!"):
        assert private.hex()[:14] not in text
        assert private.decode().strip() not in text
    assert "fingerprint" not in text
    assert "digest" not in text


def test_a_report_is_of_one_moment(used: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node answers while its owner exports."""
    rows = Database.rows

    def meanwhile(database: Database, query: str, *values: object) -> list[tuple[object, ...]]:
        found = rows(database, query, *values)
        if "FROM accounts ORDER" in query:
            node = Ledger(used, durable=False)
            node.reserve("ward", "next", central_charge(PLAN), Budget(20.0, 1e-4))
            node.close()
        return found

    database = Database(used, writable=False)
    monkeypatch.setattr(Database, "rows", meanwhile)
    assert len(report(database)[0].runs) == 1
    monkeypatch.undo()
    assert len(report(database)[0].runs) == 2


def test_a_sound_ledger_has_no_problems(used: Path, tmp_path: Path) -> None:
    assert problems(Database(used, writable=False)) == []
    assert problems(Database(tmp_path / "new.sqlite")) == []


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("UPDATE accounts SET epsilon=1.0", "ward (add-remove) has spent more than its ceiling"),
        ("UPDATE accounts SET delta=0.0 WHERE delta > 0", "has spent more than its ceiling"),
        ("UPDATE runs SET epsilon=36.0", "ward (replace-one) has spent more than its ceiling"),
        ("DELETE FROM runs", "a row of claims refers to a row of runs"),
        ("DELETE FROM accounts", "a row of runs refers to a row of accounts"),
        ("DELETE FROM contents", "a row of runs refers to a row of contents"),
    ],
)
def test_a_ledger_that_breaks_its_own_rules_is_found(used: Path, damage: str, problem: str) -> None:
    with sqlite3.connect(used) as connection:
        connection.execute(damage)
    found = problems(Database(used, writable=False))
    assert any(problem in sentence for sentence in found), found
    with pytest.raises(LedgerError, match=r"is damaged .* nothing is released without it"):
        Ledger(used)


def test_a_damaged_file_is_found(used: Path) -> None:
    with sqlite3.connect(used) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [(page,)] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name='claims'")
        [(size,)] = connection.execute("PRAGMA page_size")
    content = bytearray(used.read_bytes())
    content[(page - 1) * size + 8 : (page - 1) * size + 200] = b"\xff" * 192
    used.write_bytes(content)
    found = problems(Database(used, writable=False))
    assert any("the file is damaged" in sentence for sentence in found), found
