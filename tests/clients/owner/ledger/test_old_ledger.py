"""A ledger of version 3 is carried over with every charge, and never read as an empty one.

`ledger-3.sql` says how the ledger was made, by the code of its time.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedsink.clients.answers.central import central_charge
from fedsink.clients.answers.privatize_once import local_charge
from fedsink.clients.owner.ledger import database as module
from fedsink.clients.owner.ledger.account_report import AccountReport, refusals, report
from fedsink.clients.owner.ledger.charge import Budget, Charge, Use
from fedsink.clients.owner.ledger.database import Database, problems
from fedsink.clients.owner.ledger.ledger import Ledger
from fedsink.clients.owner.rollback import Receipts
from fedsink.commands.ledger import run as command
from fedsink.data.maps import PointBall
from fedsink.errors import BudgetError, LedgerError, RolledBackError, RunTakenError
from fedsink.privacy import BatchClip, ClassSchedule, JointSchedule, PrivacyPlan, RecordClip
from fedsink.protocol.privatize_once import LocalPlan

SQL = (Path(__file__).parent / "ledger-3.sql").read_text()
SAID = [line[3:].split() for line in SQL.splitlines() if line.startswith(("-- acc", "-- rec"))]
SPENT = {
    (said[1], said[2]): (float(said[3]), float(said[4])) for said in SAID if said[0] == "account"
}
"""ε and δ that the code of its time reported as spent, for each account."""
RECEIPTS = [said[1] for said in SAID if said[0] == "receipt"]
PLAN = PrivacyPlan(0.25, 2.0, 12, RecordClip(0.5), ClassSchedule(3), 1e-6)
CLIENT = PrivacyPlan(1.0, 4.0, 12, BatchClip(0.5), JointSchedule(), 1e-6, adjacency="client")
LOCAL = LocalPlan("laplace", PointBall("l1", 1.0, 4), 3.0, 0.0, 1.0, 3)
WIDE = Budget(1e3, 0.1)


@pytest.fixture
def old(path: Path) -> Path:
    """The file of a ledger of version 3."""
    path.parent.mkdir(mode=0o700)
    write(path)
    return path


def write(path: Path, *changes: str) -> None:
    path.unlink(missing_ok=True)
    path.touch(0o600)
    connection = sqlite3.connect(path)
    connection.executescript("\n".join([SQL, *changes]))
    connection.close()


def accounts(path: Path) -> dict[tuple[str, str], AccountReport]:
    database = Database(path, writable=False)
    assert problems(database) == []
    found = {(each.lineage, each.adjacency): each for each in report(database)}
    database.close()
    return found


def spent(path: Path) -> dict[tuple[str, str], tuple[float, float]]:
    found = {}
    for key, each in accounts(path).items():
        assert each.spent_epsilon is not None
        assert each.spent_delta is not None
        found[key] = each.spent_epsilon, each.spent_delta
    return found


def free(charge: Charge) -> Charge:
    """A charge that must not be priced."""

    def priced() -> float:
        raise AssertionError("it was priced")

    return replace(charge, epsilon=priced)


def contents(path: Path) -> dict[str, bytes]:
    """The content that each lineage had."""
    connection = sqlite3.connect(path)
    found = dict(connection.execute("SELECT lineage, fingerprint FROM contents").fetchall())
    connection.close()
    return found


def digests(path: Path, run: str) -> list[bytes]:
    """The digests of a run's claims, by round."""
    connection = sqlite3.connect(path)
    found = connection.execute(
        "SELECT digest FROM claims JOIN runs ON run = runs.id WHERE name=? ORDER BY round", (run,)
    ).fetchall()
    connection.close()
    return [digest for (digest,) in found]


@pytest.mark.medium
def test_every_charge_is_carried_over(old: Path) -> None:
    assert set(SPENT) == {
        ("ward", "add-remove"), ("ward", "replace-one"), ("ward", "client"),
        ("clinic", "add-remove"),
    }  # fmt: skip
    before = spent(old)  # as `fedsink ledger` reads it, which changes nothing
    ledger = Ledger(old)
    ledger.close()
    assert spent(old) == before
    for account, (epsilon, delta) in SPENT.items():
        assert before[account] == ((8.0, 1e-5) if account[0] == "clinic" else (epsilon, delta))
        assert before[account][0] >= epsilon > 0.0
    whole, shared = accounts(old)["ward", "add-remove"].runs
    assert (whole.run, whole.delta) == ("whole", 1e-6)
    assert whole.epsilon == pytest.approx(PLAN.epsilon(), rel=1e-9)  # of another machine
    assert (whole.rounds, whole.claimed, whole.day) == (12, 4, "2024-10-04")
    assert (shared.run, shared.plan["share"]) == ("shared", 2)
    [parts] = accounts(old)["ward", "client"].runs
    assert (parts.rounds, parts.claimed, parts.delta) == (8, 5, 2e-6)
    each, filtered = accounts(old)["clinic", "add-remove"].runs
    assert (each.run, each.epsilon, each.claimed) == ("free", None, 4)
    assert (filtered.run, filtered.method, len(filtered.plan["plans"])) == ("", "rdp-filter", 2)


def test_a_run_goes_on_without_another_charge(old: Path) -> None:
    known, claimed, before = contents(old), digests(old, "whole"), spent(old)
    ledger = Ledger(old)
    held = ledger.reserve("ward", "whole", free(central_charge(PLAN)), Budget(1e-3, 0.0))
    uses = [Use(t, t % 3, digest) for t, digest in enumerate(claimed, 1)]
    claims = ledger.claim(held, known["ward"], uses)
    assert [tuple(claim) for claim in claims] == [(False, True)] * 3 + [(False, False)]
    # Of the plan's four uses of a class, the second class has had two.
    ledger.claim(held, known["ward"], [Use(t, 1, bytes([t])) for t in (5, 6)])
    with pytest.raises(BudgetError, match="charged for 4 uses of a record"):
        ledger.claim(held, known["ward"], [Use(7, 1, b"7")])
    ledger.reserve("ward", "upload", free(local_charge(LOCAL)), Budget(1e-3, 0.0))
    ledger.close()
    assert spent(old) == before


def test_a_run_that_paid_in_part_is_charged_whole_on_top_when_it_goes_on(old: Path) -> None:
    charge, before = central_charge(CLIENT), spent(old)["ward", "client"]
    known = contents(old)["ward"]
    ledger = Ledger(old)
    with pytest.raises(BudgetError, match="are left"):
        ledger.reserve("ward", "parts", charge, Budget(before[0] + 0.9 * CLIENT.epsilon(), 0.1))
    assert spent(old)["ward", "client"] == before
    held = ledger.reserve("ward", "parts", charge, WIDE)
    assert (held.rounds, held.uses) == (12, 12)
    assert ledger.reserve("ward", "parts", free(charge), WIDE) == held  # once
    assert ledger.claim(held, known, [Use(9, None, b"9")])[0].new
    ledger.close()
    epsilon, delta = spent(old)["ward", "client"]
    assert epsilon == pytest.approx(before[0] + CLIENT.epsilon(), rel=1e-12)
    assert delta == pytest.approx(before[1] + 1e-6, rel=1e-12)


@pytest.mark.medium
def test_a_run_under_a_filter_is_charged_whole_on_top_when_it_goes_on(old: Path) -> None:
    last = replace(PLAN, noise_multiplier=3.0)
    ledger = Ledger(old)
    with pytest.raises(BudgetError, match="ε = 0, δ = 0 are left"):
        ledger.reserve("clinic", "free", central_charge(last), Budget(8.0, 1e-5))
    with pytest.raises(RunTakenError, match="reserved for another plan"):
        ledger.reserve("clinic", "free", central_charge(PLAN), WIDE)
    ledger.reserve("clinic", "free", central_charge(last), WIDE)
    ledger.close()
    epsilon, delta = spent(old)["clinic", "add-remove"]
    assert epsilon == pytest.approx(8.0 + last.epsilon(), rel=1e-12)
    assert delta == pytest.approx(1e-5 + 1e-6, rel=1e-12)


def test_a_filter_is_charged_the_largest_ceiling_that_it_had(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    account = "(SELECT id FROM accounts WHERE lineage='clinic')"
    lowered = f"INSERT INTO ceilings VALUES (1000, {account}, 5.0, 1e-6, x'00');"
    write(path, lowered)
    assert spent(path)["clinic", "add-remove"] == (8.0, 1e-5)
    unused = "DELETE FROM claims WHERE run=(SELECT id FROM runs WHERE name='free');"
    write(path, "DELETE FROM releases;", unused)
    assert spent(path)["clinic", "add-remove"] == (0.0, 0.0)


def test_receipts_of_before_hold_and_find_the_ledger_of_before_put_back(old: Path) -> None:
    key = old.with_name("receipt.key")
    key.write_text(json.dumps({"run": "ward", "secret": "07" * 32}) + "\n")
    key.chmod(0o600)
    receipts, ledger = Receipts(old.parent, "ward"), Ledger(old)
    assert len(set(RECEIPTS)) == len(RECEIPTS) > 3
    receipts.check(ledger, RECEIPTS)
    ledger.bind("ward", b"more".ljust(32))
    shown = receipts.give(ledger)
    receipts.check(ledger, [*RECEIPTS, shown])
    ledger.close()
    for path in old.parent.glob("ledger.sqlite-*"):
        path.unlink()
    write(old)
    with pytest.raises(RolledBackError):
        receipts.check(Ledger(old), [shown])


def test_an_owner_reads_it_and_changes_nothing(
    old: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = old.read_bytes()
    monkeypatch.setattr("fedsink.clients.owner.ledger.ledger.time.time", lambda: 20_000 * 86_400.0)
    for action in ("show", "check", "export"):
        assert command([action, f"file={old}"]) == 0
    out = capsys.readouterr().out
    assert "5 of 8" in out
    assert "Refused today (UTC): Budget 2, RunTaken 1." in out
    assert old.read_bytes() == before
    Ledger(old).close()
    assert refusals(Database(old, writable=False)) == {"BudgetError": 2, "RunTakenError": 1}


def test_half_a_carrying_over_is_none(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, whole = spent(old), module._CARRIED_OVER.split(";")
    for place in range(len(whole) + 1):
        broken = [*whole[:place], "SELECT * FROM missing", *whole[place:]]
        monkeypatch.setattr(module, "_CARRIED_OVER", ";".join(broken))
        with pytest.raises(LedgerError, match="no such table: missing"):
            Ledger(old)
        monkeypatch.undo()
        assert spent(old) == before
    Ledger(old).close()
    assert spent(old) == before


def _open(barrier: Any, path: Path) -> None:
    barrier.wait()
    Ledger(path).close()
    os._exit(0)


@pytest.mark.medium
def test_processes_may_carry_it_over_at_once(
    old: Path, in_processes: Callable[..., list[int | None]]
) -> None:
    before = spent(old)
    assert in_processes(_open, [(old,)] * 4) == [0] * 4
    assert spent(old) == before


@pytest.mark.parametrize("version", [0, 2, 5])
def test_an_unknown_version_is_refused_and_left_as_it_is(path: Path, version: int) -> None:
    """And nobody is told to begin another ledger, which would have a whole budget."""
    path.parent.mkdir(mode=0o700)
    write(path, f"PRAGMA user_version={version};")
    before = spent_text(path)
    opened: list[Callable[[Path], object]] = [Ledger, lambda path: Database(path, writable=False)]
    for each in opened:
        with pytest.raises(LedgerError, match=rf"is of format {version}, .*restore it") as refused:
            each(path)
        assert "another file" not in str(refused.value)
    assert spent_text(path) == before


def spent_text(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    dump = list(connection.iterdump())
    connection.close()
    return dump
