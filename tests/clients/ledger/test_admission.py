"""The price of a plan is computed once, and not at all where the plan is out of reach."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsink.clients.ledger.budget import Budget
from fedsink.clients.ledger.charge import Charge
from fedsink.clients.ledger.database import Database
from fedsink.clients.ledger.ledger import Ledger
from fedsink.errors import BudgetError

Make = Callable[..., Charge]
TEN = Budget(10.0, 1e-5)


class Priced:
    """ε that counts how often it was computed."""

    def __init__(self, epsilon: float) -> None:
        self._epsilon = epsilon
        self.times = 0

    def __call__(self) -> float:
        self.times += 1
        return self._epsilon


def prices(path: Path) -> list[float]:
    database = Database(path, writable=False)
    rows = database.rows("SELECT epsilon FROM prices ORDER BY id")
    database.close()
    return [row[0] for row in rows]


def test_a_refused_plan_is_priced_once(ledger: Ledger, path: Path, make_charge: Make) -> None:
    epsilon = Priced(12.0)
    for run in ("r1", "r2", "r3"):
        charge = make_charge(epsilon=12.0, plan={"dear": 1})
        object.__setattr__(charge, "epsilon", epsilon)
        with pytest.raises(BudgetError, match="costs ε = 12"):
            ledger.reserve("ward", run, charge, TEN)
    assert epsilon.times == 1
    assert prices(path) == [12.0]
    ledger.reserve("ward", "r4", make_charge(10.0), TEN)  # the refusals have charged nothing


def test_a_price_is_remembered_by_other_processes(
    path: Path, make_charge: Make, in_processes: Callable[..., list[int | None]]
) -> None:
    first = Ledger(path, durable=False)
    with pytest.raises(BudgetError):
        first.reserve("ward", "r1", make_charge(12.0), TEN)
    first.close()

    def ask(barrier: Any) -> None:
        barrier.wait()
        epsilon = Priced(12.0)
        charge = make_charge(12.0)
        object.__setattr__(charge, "epsilon", epsilon)
        try:
            Ledger(path, durable=False).reserve("ward", "r2", charge, TEN)
        except BudgetError:
            os._exit(epsilon.times)
        os._exit(99)

    assert in_processes(ask, [()]) == [0]


def test_another_plan_has_a_price_of_its_own(ledger: Ledger, path: Path, make_charge: Make) -> None:
    for changes in ({}, {"plan": {"other": 1}}, {"adjacency": "client"}):
        with pytest.raises(BudgetError):
            ledger.reserve("ward", "r1", make_charge(**{"epsilon": 12.0, **changes}), TEN)
    assert prices(path) == [12.0] * 3


@pytest.mark.parametrize(
    ("name", "other"), [("PRICING", -1), ("__version__", "0"), ("version", lambda package: "0")]
)
def test_a_price_of_another_accounting_is_not_read(
    monkeypatch: pytest.MonkeyPatch, make_charge: Make, name: str, other: object
) -> None:
    """An ε that was too small would be charged for ever after its correction."""
    now = make_charge().price_key
    assert make_charge().price_key == now
    monkeypatch.setattr(f"fedsink.clients.ledger.charge.{name}", other)
    assert make_charge().price_key != now


def test_a_price_that_was_changed_is_computed_again(
    ledger: Ledger, path: Path, make_charge: Make
) -> None:
    with pytest.raises(BudgetError):
        ledger.reserve("ward", "r1", make_charge(12.0), TEN)
    with ledger._database.transaction() as connection:
        connection.execute("UPDATE prices SET epsilon=1.0")
    with pytest.raises(BudgetError, match="costs ε = 12,"):
        ledger.reserve("ward", "r1", make_charge(12.0), TEN)
    assert prices(path) == [12.0]


def test_no_more_than_some_thousand_prices_are_kept(
    ledger: Ledger, path: Path, make_charge: Make
) -> None:
    """Otherwise a server would fill the disk with invented plans."""
    with ledger._database.transaction() as connection:
        connection.executemany(
            "INSERT INTO prices (plan, epsilon, seal) VALUES (?, 1.0, x'')",
            [(number.to_bytes(4, "big"),) for number in range(5000)],
        )
    for number in range(3):
        with pytest.raises(BudgetError):
            ledger.reserve("ward", "r", make_charge(12.0, plan={"number": number}), TEN)
    kept = prices(path)
    assert len(kept) == 4096
    assert kept[-3:] == [12.0] * 3


def test_a_plan_that_is_roughly_far_too_dear_is_refused_unpriced(
    ledger: Ledger, path: Path, make_charge: Make
) -> None:
    seen = []

    def rough(ceiling: float) -> float | None:
        seen.append(ceiling)
        return 40.0 if ceiling < 4.5 else None

    epsilon = Priced(5.0)
    ledger.reserve("ward", "r0", make_charge(6.0), TEN)  # leaves 4
    charge = make_charge(5.0, plan={"far": 1}, rough_epsilon=rough)
    object.__setattr__(charge, "epsilon", epsilon)
    with pytest.raises(BudgetError, match=r"costs about ε = 40, .* budget ε = 4, .* are left"):
        ledger.reserve("ward", "r1", charge, TEN)
    assert (seen, epsilon.times) == ([4.0], 0)
    assert prices(path) == [6.0]
    ledger.reserve("ward", "r1", charge, Budget(20.0, 1e-5))  # the owner has raised it
    assert epsilon.times == 1


def test_a_ledger_without_a_ceiling_prices_nothing(
    ledger: Ledger, path: Path, make_charge: Make
) -> None:
    epsilon = Priced(5.0)
    charge = make_charge(5.0)
    object.__setattr__(charge, "epsilon", epsilon)
    ledger.reserve("ward", "r1", charge, None)
    assert epsilon.times == 0
    assert prices(path) == []
