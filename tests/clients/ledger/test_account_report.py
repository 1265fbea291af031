"""Figures behind `show`, `check` and `export`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from fedsink.clients.central import central_charge
from fedsink.clients.ledger.account_report import AccountReport, export, report
from fedsink.clients.ledger.budget import Budget
from fedsink.clients.ledger.charge import Charge, Use, event_from_json
from fedsink.clients.ledger.check import problems
from fedsink.clients.ledger.database import Database
from fedsink.clients.ledger.ledger import Ledger
from fedsink.clients.privatize_once import local_charge
from fedsink.data.maps import PointBall
from fedsink.errors import LedgerError
from fedsink.privacy import ClassSchedule, PrivacyPlan, RecordClip, epsilon
from fedsink.protocol.privatize_once import LocalPlan

Make = Callable[..., Charge]
PLAN = PrivacyPlan(0.2, 2.0, 30, RecordClip(1.0), ClassSchedule(3), 1e-6)
LOCAL = LocalPlan("laplace", PointBall("l1", 1.0, 4), 3.0, 0.0, 1.0, 3)
SECRET = b"the fingerprint of the ward".ljust(32)


@pytest.fixture
def used(path: Path) -> Path:
    """A ledger with a central run that has answered seven rounds, a local one, and a filter."""
    ledger = Ledger(path, durable=False)
    ledger.bind("ward", SECRET)
    held = ledger.reserve("ward", "central", central_charge(PLAN), Budget(10.0, 1e-5))
    ledger.claim(held, SECRET, [Use(t, t % 3, b"digest!" * 4) for t in range(1, 8)])
    ledger.note_released(held, [2, 3])
    held = ledger.reserve("ward", "local", local_charge(LOCAL), Budget(35.0, 0.0))
    ledger.claim(held, SECRET, [Use(1, None, b"digest!" * 4)])
    ledger.bind("clinic", b"clinic")
    budget = Budget(10.0, 1e-5, "rdp-filter", 8.0)
    held = ledger.reserve("clinic", "free", central_charge(PLAN), budget)
    ledger.claim(held, b"clinic", [Use(t, t % 3, b"digest!" * 4) for t in range(1, 5)])
    ledger.close()
    return path


@pytest.mark.medium
def test_a_report_says_what_is_charged_and_what_was_used(used: Path) -> None:
    central, local, free = report(Database(used, writable=False))
    assert (central.lineage, central.adjacency, central.admission) == (
        "ward",
        "add-remove",
        "reserve",
    )
    assert (central.epsilon, central.delta) == (10.0, 1e-5)
    assert central.spent_epsilon == PLAN.epsilon()
    assert central.spent_delta == 1e-6
    [run] = central.runs
    assert (run.claimed, run.rounds, run.uses) == (7, 30, 3)
    assert PLAN.epsilon_after(7) <= run.epsilon_so_far < PLAN.epsilon()

    assert (local.adjacency, local.spent_epsilon, local.spent_delta) == ("replace-one", 4.0, 0.0)
    assert local.runs[0].epsilon_so_far == 4.0

    assert (free.admission, free.order) == ("rdp-filter", 8.0)
    budget = Budget(10.0, 1e-5, "rdp-filter", 8.0)
    assert free.spent_epsilon == pytest.approx(budget.epsilon_of(2 * budget.cost(PLAN.event.event)))
    assert free.runs[0].epsilon is None


def test_an_export_holds_events_and_nothing_of_the_records(used: Path) -> None:
    text = json.dumps(export(Database(used, writable=False)))
    accounts = json.loads(text)["accounts"]
    [run] = accounts[0]["runs"]
    event = event_from_json(json.dumps(run["event"]))
    assert event == PLAN.event
    assert epsilon(event, run["delta"]) == run["epsilon"] == PLAN.epsilon()
    assert run["plan"]["rounds"] == 30
    for private in (SECRET, b"digest!"):
        assert private.hex()[:14] not in text
        assert private.decode().strip() not in text
    assert "fingerprint" not in text
    assert "digest" not in text


def test_an_export_is_of_one_moment(used: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node answers while its owner exports."""

    def meanwhile(database: Database) -> list[AccountReport]:
        found = report(database)
        node = Ledger(used, durable=False)
        node.reserve("ward", "next", central_charge(PLAN), Budget(20.0, 1e-4))
        node.close()
        return found

    monkeypatch.setattr("fedsink.clients.ledger.account_report.report", meanwhile)
    assert len(export(Database(used, writable=False))["accounts"][0]["runs"]) == 1
    monkeypatch.undo()
    assert len(export(Database(used, writable=False))["accounts"][0]["runs"]) == 2


def test_a_sound_ledger_has_no_problems(used: Path, tmp_path: Path) -> None:
    assert problems(Database(used, writable=False)) == []
    assert problems(Database(tmp_path / "new.sqlite")) == []


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("UPDATE ceilings SET epsilon=1.0", "ward (add-remove) has spent more than its ceiling"),
        ("UPDATE ceilings SET delta=0.0 WHERE number=3", "has spent more than its ceiling"),
        (
            "UPDATE ceilings SET epsilon=1.22"
            " WHERE account=(SELECT id FROM accounts WHERE alpha=8)",
            "has spent more than its ceiling",
        ),
        ("UPDATE reservations SET rho=rho/2 WHERE rho > 0", "has spent more than its ceiling"),
        (
            "UPDATE reservations SET uses=2 WHERE run=CENTRAL",
            "used a class more often than its 2 times",
        ),
        ("UPDATE reservations SET rounds=5 WHERE run=CENTRAL", "claim outside its plan's rounds"),
        ("UPDATE reservations SET reserved=5 WHERE run=CENTRAL", "claim outside its plan's rounds"),
        ("UPDATE claims SET round=0 WHERE round=7", "claim outside its plan's rounds"),
        (
            "UPDATE claims SET run=(SELECT id FROM runs WHERE name='local') WHERE round=7",
            "claim outside its plan's rounds",
        ),
        (
            "UPDATE reservations SET event='{}' WHERE run=CENTRAL",
            "an event in the ledger is damaged",
        ),
        ("UPDATE counts SET uses=1", "counts that are not those of its claims"),
        ("DELETE FROM counts", "counts that are not those of its claims"),
        ("DELETE FROM claims WHERE round=2", "counts that are not those of its claims"),
        ("DELETE FROM reservations", "a row of claims refers to a row of reservations"),
        ("DELETE FROM accounts", "a row of runs refers to a row of accounts"),
        ("DELETE FROM sources", "claims and no content they were computed from"),
        (
            "UPDATE sources SET fingerprint=x'636c696e6963' WHERE run=CENTRAL",
            "central was computed from another lineage's content",
        ),
        (
            "UPDATE reservations SET run=CENTRAL"
            " WHERE run=(SELECT id FROM runs WHERE name='local')",
            "the run central has more than one plan",
        ),
        ("UPDATE claims SET digest=x'00' WHERE round=3", ", of claims, is not what was written"),
        ("UPDATE ceilings SET epsilon=11", ", of ceilings, is not what was written"),
        ("UPDATE accounts SET lineage='ward-2' WHERE alpha=8", ", of accounts, is not what was"),
        ("UPDATE head SET number=3", "the last facts are missing"),
        ("DELETE FROM releases", "are missing"),
        ("UPDATE prices SET epsilon=epsilon/2", "the price of a plan is not what was written"),
    ],
)
def test_a_ledger_that_was_tampered_with_is_found(used: Path, damage: str, problem: str) -> None:
    with sqlite3.connect(used) as connection:
        connection.execute(damage.replace("CENTRAL", "(SELECT id FROM runs WHERE name='central')"))
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
