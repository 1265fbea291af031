"""The one way out of a node: what makes two requests one, and which ledger belongs to replies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedsink.clients.central import central_charge
from fedsink.clients.ledger.budget import Budget
from fedsink.clients.ledger.ledger import Ledger
from fedsink.clients.releases import Releases, refuse_rollback, reservation_name
from fedsink.clients.replies import ReplyStore
from fedsink.errors import LedgerError
from fedsink.privacy import BatchClip, JointSchedule, PrivacyPlan

PLAN = PrivacyPlan(0.2, 2.0, 30, BatchClip(0.5), JointSchedule(), 1e-6)
BUDGETS = {"add-remove": Budget(1e6, 1e-3)}
Digests = Callable[..., list[bytes]]


@pytest.fixture
def digests(tmp_path: Path) -> Digests:
    """The digests that the noise of a message is drawn under, each time with a new ledger."""
    ledgers: list[Ledger] = []

    def ask(run: str = "run", digest: bytes = b"d" * 32, content: bytes = b"c" * 32) -> list[bytes]:
        ledgers.append(Ledger(tmp_path / f"{len(ledgers)}.sqlite", durable=False))
        releases = Releases(ledgers[-1], "ward", BUDGETS, None)
        places = [(1, None), (2, None)]
        return releases.admit(run, central_charge(PLAN), places, digest, lambda: content).digests

    return ask


def test_the_same_request_is_the_same_also_with_another_ledger(digests: Digests) -> None:
    assert digests() == digests()
    assert len(set(digests())) == 2  # one for each use


def test_the_same_request_on_changed_data_is_another_request(digests: Digests) -> None:
    """Pitfall 14: the difference of two answers under one noise is exact."""
    assert set(digests()).isdisjoint(digests(content=b"C" * 32))


def test_the_same_plan_in_another_run_is_another_request(digests: Digests) -> None:
    assert set(digests()).isdisjoint(digests(run="another"))


def test_another_account_or_plan_is_another_reservation() -> None:
    charge = central_charge(PLAN)
    names = [
        reservation_name(run, of, content)
        for run in ("run", "another")
        for content in (b"c" * 32, b"C" * 32)
        for of in (
            charge,
            replace(charge, adjacency="client"),
            central_charge(replace(PLAN, rounds=31)),
            central_charge(PLAN, 2),
            None,
        )
    ]
    assert len(set(names)) == len(names)
    assert reservation_name("run", central_charge(PLAN), b"c" * 32) == names[0]


def test_another_request_is_another_request(digests: Digests) -> None:
    assert set(digests()).isdisjoint(digests(digest=b"D" * 32))


def test_a_ledger_knows_every_reply_beside_it(tmp_path: Path) -> None:
    store = ReplyStore(tmp_path / "replies")
    ledger = Ledger(tmp_path / "ledger.sqlite", durable=False)
    refuse_rollback(ledger, store)  # neither has anything yet
    releases = Releases(ledger, "ward", BUDGETS, store)
    for number in range(2):
        places, digest = [(1 + number, None)], bytes([number]) * 32
        admitted = releases.admit("run", central_charge(PLAN), places, digest, lambda: b"c" * 32)
        admitted.release({str(1 + number): torch.zeros(3)})
        refuse_rollback(ledger, store)
    empty = Ledger(tmp_path / "empty.sqlite", durable=False)
    with pytest.raises(LedgerError, match="does not know every reply that is stored beside it"):
        refuse_rollback(empty, store)
    store.put(b"?" * 32, {"1": torch.zeros(3)})
    with pytest.raises(LedgerError, match="does not know every reply"):
        refuse_rollback(ledger, store)
