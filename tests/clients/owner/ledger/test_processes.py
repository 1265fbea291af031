"""Crashes, restarts and races, with real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsink.clients.owner.ledger.charge import Budget, Charge, Use
from fedsink.clients.owner.ledger.ledger import Ledger
from fedsink.errors import BudgetError, ReleaseRefusedError

Make = Callable[..., Charge]
Together = Callable[..., list[int | None]]
BUDGET = Budget(10.0, 1e-5)
TODAY = b"today".ljust(32)


def _killed_after(step: str) -> Callable[..., None]:
    def run(barrier: Any, path: Path, charge: Charge) -> None:
        ledger = Ledger(path)
        held = ledger.reserve("ward", "r1", charge, BUDGET)
        if step == "reserve":
            os.kill(os.getpid(), signal.SIGKILL)
        ledger.bind("ward", TODAY)
        ledger.claim(held, TODAY, [Use(1, None, b"a")])
        if step == "claim":
            os.kill(os.getpid(), signal.SIGKILL)
        ledger.note_released(held, [1])
        os.kill(os.getpid(), signal.SIGKILL)

    return run


@pytest.mark.parametrize("step", ["reserve", "claim", "released"])
def test_charges_survive_the_end_of_the_process_however_it_ends(
    path: Path, make_charge: Make, in_processes: Together, step: str
) -> None:
    """Pitfall 12: a crash overcounts, never undercounts."""
    assert in_processes(_killed_after(step), [(path, make_charge(7.0))]) == [-signal.SIGKILL]
    ledger = Ledger(path)
    with pytest.raises(BudgetError):
        ledger.reserve("ward", "r2", make_charge(3.5), BUDGET)
    held = ledger.reserve("ward", "r1", make_charge(7.0), BUDGET)
    ledger.bind("ward", TODAY)
    if step != "reserve":
        with pytest.raises(ReleaseRefusedError):
            ledger.claim(held, TODAY, [Use(1, None, b"b")])
    [claim] = ledger.claim(held, TODAY, [Use(1, None, b"a")])
    assert (claim.new, claim.released) == (step == "reserve", step == "released")


def _killed_inside(barrier: Any, path: Path, charge: Charge) -> None:
    ledger = Ledger(path)
    held = ledger.reserve("ward", "r1", charge, BUDGET)
    ledger.bind("ward", TODAY)
    with ledger._database.transaction():
        ledger._claim(held, Use(1, None, b"half"))
        os.kill(os.getpid(), signal.SIGKILL)


def test_half_a_decision_is_no_decision(
    path: Path, make_charge: Make, in_processes: Together
) -> None:
    assert in_processes(_killed_inside, [(path, make_charge())]) == [-signal.SIGKILL]
    ledger = Ledger(path)
    held = ledger.reserve("ward", "r1", make_charge(), BUDGET)
    assert ledger.claim(held, TODAY, [Use(1, None, b"whole")])[0].new


def _reserve(barrier: Any, path: Path, run: str, charge: Charge) -> None:
    barrier.wait()
    try:
        Ledger(path).reserve("ward", run, charge, BUDGET)
    except BudgetError:
        os._exit(3)
    os._exit(0)


@pytest.mark.medium
def test_two_processes_at_once_cannot_overspend(
    path: Path, make_charge: Make, in_processes: Together
) -> None:
    """Eight want 3 of 10, in a file that no process has opened before: three get it."""
    wanted = [(path, f"r{n}", make_charge(3.0)) for n in range(8)]
    codes = in_processes(_reserve, wanted)
    assert sorted(map(str, codes)) == ["0"] * 3 + ["3"] * 5


def _claim_all(barrier: Any, path: Path, charge: Charge, me: bytes, won: Path) -> None:
    ledger = Ledger(path, durable=False)
    held = ledger.reserve("ward", "r1", charge, BUDGET)
    ledger.bind("ward", TODAY)
    barrier.wait()
    mine = []
    for round in range(1, 201):
        try:
            ledger.claim(held, TODAY, [Use(round, None, me)])
            mine.append(round)
        except BudgetError:
            break
        except ReleaseRefusedError:
            pass
    won.write_text(" ".join(map(str, mine)))


def test_of_processes_that_claim_at_once_one_wins_each_place(
    path: Path, tmp_path: Path, make_charge: Make, in_processes: Together
) -> None:
    """Together the processes get at most the uses that were charged."""
    charge = make_charge(rounds=200, uses=150)
    files = [tmp_path / name for name in ("a", "b", "c")]
    codes = in_processes(_claim_all, [(path, charge, f.name.encode(), f) for f in files])
    assert codes == [0, 0, 0]
    won = [round for file in files for round in map(int, file.read_text().split())]
    assert len(won) == len(set(won)) == 150


def _open_many(barrier: Any, path: Path, charge: Charge) -> None:
    barrier.wait()
    for number in range(40):
        Ledger(path.with_name(f"{number}.sqlite"), durable=False).close()


@pytest.mark.medium
def test_processes_may_open_a_new_ledger_at_once(
    path: Path, make_charge: Make, in_processes: Together
) -> None:
    """Cohorts start together: turning a new file to write-ahead logging is where they collide."""
    assert in_processes(_open_many, [(path, make_charge())] * 3) == [0, 0, 0]
