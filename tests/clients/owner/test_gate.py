"""The only way out of a node: identity of requests, and answers that need no ledger.

A client whose ledger is elsewhere answers the requests admitted there, with the same bytes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import RecordDict

from fedsink.clients.answers.central import central_charge
from fedsink.clients.answers.dp_sinkhorn import DPSinkhornAnswer
from fedsink.clients.node import Node, close_nodes, grant
from fedsink.clients.node_cohort import NodeCohort
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.gate import LedgerGate, reservation_name
from fedsink.clients.owner.ledger.charge import Budget, Round
from fedsink.clients.owner.ledger.ledger import Ledger
from fedsink.clients.owner.replies import ReplyStore
from fedsink.errors import PrivacyError, ReleaseRefusedError, RunTakenError
from fedsink.privacy import BatchClip, JointSchedule, PrivacyPlan, SecretKey
from fedsink.privacy.integer_gaussian import IntegerGaussian
from fedsink.protocol.dp_sinkhorn import Objective
from fedsink.protocol.exchange import Content
from fedsink.protocol.failure_codes import REFUSED

from ...support.requests import GRID, gradient_request, pack_requests, plan_of
from ...support.tiny import CLASSES, tiny_clients, with_secret_key

OBJECTIVE = Objective(lam=0.5, classes=CLASSES)
PLAN = PrivacyPlan(0.2, 2.0, 30, BatchClip(0.5), JointSchedule(), 1e-6)
BUDGETS = {"add-remove": Budget(1e6, 1e-3)}
Digests = Callable[..., list[bytes]]


def answer_of(run: str, *rounds: Round) -> Any:
    """All that a gate looks at of an answer to a message with these uses."""
    return SimpleNamespace(run=run, name="dp_sinkhorn", operator=None, rounds=rounds)


@pytest.fixture
def digests(tmp_path: Path) -> Digests:
    """The digests that the noise of a message is drawn under, each time with a new ledger."""
    ledgers: list[Ledger] = []

    def ask(run: str = "run", digest: bytes = b"d" * 32, content: bytes = b"c" * 32) -> list[bytes]:
        ledgers.append(Ledger(tmp_path / f"{len(ledgers)}.sqlite", durable=False))
        gate = LedgerGate(ledgers[-1], "ward", BUDGETS, None)
        answer = answer_of(run, (1, None), (2, None))
        return list(gate.admit(answer, central_charge(PLAN), digest, lambda: content).digests)

    return ask


def test_the_same_request_is_the_same_also_with_another_ledger(digests: Digests) -> None:
    assert digests() == digests()
    assert len(set(digests())) == 2  # one for each use


@pytest.mark.parametrize(
    "other", [{"content": b"C" * 32}, {"run": "another"}, {"digest": b"D" * 32}]
)
def test_other_data_another_run_or_another_message_is_another_request(
    digests: Digests, other: dict[str, Any]
) -> None:
    """Pitfall 14: the difference of two answers under one noise is exact."""
    assert set(digests()).isdisjoint(digests(**other))


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
            central_charge(PLAN, IntegerGaussian(PLAN, 2, GRID, 8)),
            None,
        )
    ]
    assert len(set(names)) == len(names)
    assert reservation_name("run", central_charge(PLAN), b"c" * 32) == names[0]


def test_what_a_gate_remembers_is_for_one_run_account_and_plan(tmp_path: Path) -> None:
    """A run whose plan was admitted does not get another one in the same process."""
    ledger = Ledger(tmp_path / "ledger.sqlite", durable=False)
    gate = LedgerGate(ledger, "ward", BUDGETS | {"replace-one": BUDGETS["add-remove"]}, None)

    def ask(run: str, round: int, plan: PrivacyPlan = PLAN) -> None:
        answer = answer_of(run, (round, None))
        gate.admit(answer, central_charge(plan), b"d" * 32, lambda: b"c" * 32)

    for run in ("one", "two"):
        ask(run, 1)
        for other in (
            replace(PLAN, noise_multiplier=0.1),
            replace(PLAN, rounds=31),
            replace(PLAN, adjacency="replace-one"),
        ):
            with pytest.raises(RunTakenError):
                ask(run, 2, other)
        ask(run, 2)
        assert [said.rounds for said in ledger.charged("ward", run)[0]] == [2]


def test_two_answers_to_one_request_leave_as_the_one_that_was_stored(tmp_path: Path) -> None:
    """Two processes noise it at a time: both noises together would be half as wide."""
    ledger = Ledger(tmp_path / "ledger.sqlite", durable=False)
    store, charge = ReplyStore(tmp_path / "replies"), central_charge(PLAN)
    both = [
        LedgerGate(ledger, "ward", BUDGETS, store).admit(
            answer_of("run", (1, None)), charge, b"d" * 32, lambda: b"c" * 32
        )
        for _ in range(2)
    ]
    for number, one in enumerate(both):
        assert one.keep is not None
        left = one.keep({"1": torch.full((3,), float(number))})
        assert left["1"].tolist() == [0.0, 0.0, 0.0]


def message(round: int = 1, run: str = "run") -> RecordDict:
    """A request for one use."""
    return pack_requests([gradient_request(plan_of(), OBJECTIVE, round=round, run=run)])


def admitted(settings: NodeSettings, record: RecordDict, clients: list[int]) -> list[bytes]:
    """The passes for one message to some clients, each by itself."""
    answer = DPSinkhornAnswer.read(record, None)
    return [
        digest
        for client in clients
        for digest in Node(settings, client).admit(answer, answer.digest(record)).digests
    ]


def answer(settings: NodeSettings, client: int, record: RecordDict) -> RecordDict:
    return Node(settings, client).answer("train.dp_sinkhorn", record)


@pytest.fixture
def here(tmp_path: Path) -> NodeSettings:
    """Clients with a key file and a ledger."""
    return with_secret_key(tiny_clients(), tmp_path)


@pytest.fixture
def there(here: NodeSettings) -> NodeSettings:
    """Returns these clients in another process, on another machine."""
    assert here.key_file is not None
    return replace(here, lent=SecretKey.load(here.key_file), key_file=None, ledger=None)


def test_what_was_charged_is_answered_with_the_bytes_that_the_ledgers_node_would_answer(
    here: NodeSettings, there: NodeSettings
) -> None:
    passes = admitted(here, message(), [0, 1, 2])
    assert len(passes) == 3
    grant(passes)
    for client in range(3):
        assert answer(there, client, message()) == answer(here, client, message())


def test_nothing_is_answered_without_a_pass(here: NodeSettings, there: NodeSettings) -> None:
    for record, clients in ((message(), []), (message(), [0, 2]), (message(2), [1]),
                            (message(1, "other"), [1])):  # fmt: skip
        grant(admitted(here, message(), clients) if clients else ())
        with pytest.raises(ReleaseRefusedError, match=r"No charge of the run .* was committed"):
            answer(there, 1, record)


def test_every_use_of_a_message_needs_its_pass(here: NodeSettings, there: NodeSettings) -> None:
    both = pack_requests([gradient_request(plan_of(), OBJECTIVE, round=t) for t in (1, 2)])
    passes = admitted(here, both, [0])
    assert len(passes) == 2
    for some in ([], passes[:1], passes[1:]):
        grant(some)
        with pytest.raises(ReleaseRefusedError):
            answer(there, 0, both)
    grant(passes)
    assert answer(there, 0, both) == answer(here, 0, both)


def test_a_pass_is_good_until_the_next_ones(here: NodeSettings, there: NodeSettings) -> None:
    grant(admitted(here, message(), [0]))
    assert answer(there, 0, message()) == answer(there, 0, message())
    grant(())
    with pytest.raises(ReleaseRefusedError):
        answer(there, 0, message())


def test_other_records_than_those_that_were_charged_are_not_answered_about(
    here: NodeSettings, there: NodeSettings
) -> None:
    grant(admitted(here, message(), [0]))
    with pytest.raises(ReleaseRefusedError):
        answer(replace(there, partition_seed=1), 0, message())


def test_a_cohort_is_admitted_and_charged_at_once(
    here: NodeSettings, there: NodeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, content = "train.dp_sinkhorn", Content(None, message)
    lent, own = NodeCohort(there), NodeCohort(here)

    def refuse(*arguments: Any, **more: Any) -> None:
        raise AssertionError("something is computed")

    with monkeypatch.context() as patch:
        patch.setattr(DPSinkhornAnswer, "compute_each", refuse)
        passes = own.admit(kind, content, range(3))
        assert own.admit(kind, content, range(3)) == passes
        [(_, answers)] = lent.answers(kind, [content], [range(3)])
        assert (answers.failures, len(answers.replies)) == ({0: REFUSED}, 0)  # without a pass
    assert len(passes) == 1
    grant(passes)
    [(_, far)], [(_, near)] = (c.answers(kind, [content], [range(3)]) for c in (lent, own))
    assert list(far.clients) == [0, 1, 2]
    assert torch.equal(far.replies, near.replies)
    [(_, answers)] = lent.answers(kind, [Content(None, lambda: message(2))], [range(3)])
    assert answers.failures == {0: REFUSED}
    assert here.ledger is not None
    close_nodes()
    with sqlite3.connect(here.ledger) as database:
        claims = "SELECT count(*), count(DISTINCT digest) FROM claims"
        assert database.execute(claims).fetchone() == (1, 1)


def test_what_is_refused_gets_no_pass(here: NodeSettings) -> None:
    cohort, other = NodeCohort(here), gradient_request(plan_of(), OBJECTIVE, run="run", rows=5)
    content = Content.received(pack_requests([other]))
    assert cohort.admit("train.dp_sinkhorn", Content(None, message), [0])
    assert cohort.admit("train.dp_sinkhorn", content, [0]) == []  # the round is taken
    assert cohort.admit("train.nothing", Content(None, message), [0]) == []


@pytest.mark.parametrize("more", ["seed", "key_file", "ledger", "noise"])
def test_a_lent_key_stands_alone(there: NodeSettings, more: str, tmp_path: Path) -> None:
    value = {"seed": 1, "noise": "secure"}.get(more, tmp_path)
    with pytest.raises(PrivacyError, match="A lent key replaces a key file and a ledger"):
        replace(there, **{more: value})


def test_the_key_is_not_shown(there: NodeSettings) -> None:
    assert there.lent is not None
    assert there.lent.secret.hex() not in repr(there)
    assert repr(there.lent.secret) not in repr(there)
