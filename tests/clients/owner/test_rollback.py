"""A ledger that was put back is refused once a server shows a receipt of the node."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedsink.clients.answers.central import central_charge
from fedsink.clients.app import client_app
from fedsink.clients.node import Node, close_nodes, open_node
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.gate import LedgerGate
from fedsink.clients.owner.ledger.charge import Budget
from fedsink.clients.owner.ledger.ledger import Ledger
from fedsink.clients.owner.policy_file import read_policy
from fedsink.clients.owner.replies import ReplyStore
from fedsink.clients.owner.rollback import Receipts, refuse_rollback
from fedsink.errors import LedgerError, RolledBackError
from fedsink.privacy import BatchClip, JointSchedule, PrivacyPlan
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.failure_codes import MALFORMED, ROLLED_BACK
from fedsink.protocol.packing import digest
from fedsink.protocol.signing import MOST_RECEIPTS, node_receipt, show_receipts

from ...support.asking import gradient

Make = Callable[..., GradientRequest]
PLAN = PrivacyPlan(0.2, 2.0, 30, BatchClip(0.5), JointSchedule(), 1e-6)
BUDGETS = {"add-remove": Budget(1e6, 1e-3)}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def ledger(state: Path) -> Ledger:
    return Ledger(state / "ledger.sqlite", durable=False)


def copied(ledger: Ledger, state: Path) -> tuple[bytes, Ledger]:
    """The file of a ledger that is closed, and the ledger opened again."""
    ledger.close()
    content = (state / "ledger.sqlite").read_bytes()
    return content, Ledger(state / "ledger.sqlite", durable=False)


def put_back(ledger: Ledger, state: Path, content: bytes) -> Ledger:
    ledger.close()
    (state / "ledger.sqlite").write_bytes(content)
    return Ledger(state / "ledger.sqlite", durable=False)


def node_of(policy: Path) -> Node:
    close_nodes()
    return open_node(NodeSettings.from_policy(read_policy(policy)), 0)


def answer(node: Node, request: GradientRequest) -> None:
    gradient(node, request, digest("train.dp_sinkhorn", request.to_record()))


def ask_who(policy: Path, shown: list[str] | None = None, **wrong: object) -> Message:
    """The identity of a node, as a server asks for it."""
    settings = NodeSettings.from_policy(read_policy(policy))
    content = RecordDict()
    if shown is not None:
        show_receipts(content, shown)
    for name, value in wrong.items():
        content[name] = ConfigRecord({name: value})
    context = Context(1, 1, {"partition-id": 0, "num-partitions": 1}, RecordDict(), {})
    message = Message(content, dst_node_id=1, message_type="query.identity")
    return client_app(settings)(message, context)


def receipt_of(reply: Message) -> str:
    given = node_receipt(reply.content)
    assert given is not None
    return given.receipt


def test_every_state_of_the_ledger_has_a_receipt_that_later_ones_hold(
    state: Path, ledger: Ledger
) -> None:
    receipts = Receipts(state, "ward")
    given = [receipts.give(ledger)]
    for number in range(4):
        ledger.bind("ward", bytes([number]) * 32)
        given.append(receipts.give(ledger))
        receipts.check(ledger, given)
    assert len(set(given)) == 5
    assert {len(receipt) for receipt in given} == {80}
    assert Receipts(state, "ward").name == receipts.name


def test_a_ledger_without_the_fact_of_a_receipt_is_refused_until_it_is_restored(
    state: Path, ledger: Ledger
) -> None:
    receipts = Receipts(state, "ward")
    ledger.bind("ward", b"a" * 32)
    old, ledger = copied(ledger, state)
    ledger.bind("ward", b"b" * 32)
    receipt = receipts.give(ledger)
    latest, ledger = copied(ledger, state)

    behind = put_back(ledger, state, old)
    receipts.check(behind)  # no server has shown the receipt yet
    for _ in range(2):
        with pytest.raises(RolledBackError, match="lacks facts of which this node has given"):
            receipts.check(behind, [receipt])
        with pytest.raises(RolledBackError):  # and from now on for everybody
            Receipts(state, "ward").check(behind)
    for path in state.glob("ahead-*"):
        path.unlink()
    behind.bind("ward", b"c" * 32)  # as many facts, and others: it was used before it was shown
    with pytest.raises(RolledBackError):
        receipts.check(behind, [receipt])
    receipts.check(put_back(behind, state, latest))
    assert not list(state.glob("ahead-*"))


def _name(receipt: str) -> str:
    return hashlib.sha256(bytes.fromhex(receipt)).hexdigest()


def test_every_receipt_that_is_ahead_must_be_held(state: Path, ledger: Ledger) -> None:
    receipts, copies, given = Receipts(state, "ward"), [], []
    # Until the newest receipt is not the first that is read: their files are named by hashes.
    while len(given) < 3 or min(given[1:], key=_name) == given[-1]:
        ledger.bind("ward", bytes([len(given)]) * 32)
        given.append(receipts.give(ledger))
        copy, ledger = copied(ledger, state)
        copies.append(copy)
    for copy in copies:
        ledger = put_back(ledger, state, copy)
        if copy is copies[-1]:
            receipts.check(ledger)
            continue
        for shown in (given[1:], given[1].upper(), []):  # the older one first, and never again
            with pytest.raises(RolledBackError):
                receipts.check(ledger, [shown] if isinstance(shown, str) else shown)
    assert not list(state.glob("ahead-*"))


def test_what_is_no_receipt_of_this_node_changes_nothing(
    state: Path, ledger: Ledger, tmp_path: Path
) -> None:
    """Otherwise any server could lock a node for ever."""
    receipts = Receipts(state, "ward")
    ledger.bind("ward", b"a" * 32)
    given = receipts.give(ledger)
    (tmp_path / "other").mkdir()
    other = Receipts(tmp_path / "other", "ward").give(ledger)
    flipped = [
        given[:place] + ("0" if given[place] != "0" else "1") + given[place + 1 :]
        for place in range(len(given))
    ]
    spellings = [given.upper(), given.capitalize(), given[:2] + " " + given[2:], f"{given}\n"]
    texts = ["", "no hex", given[:-2], given + "00", "é" * 80]
    receipts.check(ledger, [other, *flipped, *spellings, *texts])
    assert not list(state.glob("ahead-*"))


def test_a_receipt_that_is_kept_and_damaged_counts_until_the_owner_removes_it(
    state: Path, ledger: Ledger
) -> None:
    """Else whoever damages it makes a node forget that its ledger is behind."""
    receipts = Receipts(state, "ward")
    given = receipts.give(ledger)
    kept = state / "ahead-0123456789abcdef.receipt"
    for damaged in ("", given[:-1], "0" * 80, "\0" * 80):
        kept.write_text(damaged)
        for _ in range(2):
            with pytest.raises(RolledBackError, match=r"remove .*ahead-\w+\.receipt, if that is"):
                receipts.check(ledger)
    kept.unlink()
    receipts.check(ledger)


def test_a_receipt_tells_nothing_of_the_ledger(state: Path, ledger: Ledger, tmp_path: Path) -> None:
    """The receipt hides number and content of the facts: the same ledger under another key."""
    (tmp_path / "other").mkdir()
    receipts, others = Receipts(state, "ward"), Receipts(tmp_path / "other", "ward")
    assert receipts.name != others.name
    given = [bytes.fromhex(each.give(ledger)) for each in (receipts, others)]
    for start in range(0, 40, 8):
        assert given[0][start : start + 8] != given[1][start : start + 8]


def test_a_node_gives_receipts_and_refuses_everything_when_it_was_put_back(
    policy_file: Callable[..., Path], make_request: Make, tmp_path: Path
) -> None:
    """The whole folder with replies and key is put back: no look at the folder can tell."""
    path = policy_file()
    state = path.parent / "state"
    answer(node_of(path), replace(make_request(), run="one"))
    close_nodes()
    shutil.copytree(state, tmp_path / "backup")
    answer(node_of(path), replace(make_request(), run="two"))
    receipt = receipt_of(ask_who(path, ["of another node", "00" * 40]))
    close_nodes()
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "backup", state)

    assert receipt_of(ask_who(path)) != receipt  # it cannot know
    reply = ask_who(path, ["of another node", receipt])
    assert (reply.error.code, reply.error.reason) == (ROLLED_BACK, None)
    with pytest.raises(RolledBackError):
        answer(node_of(path), replace(make_request(), run="three"))


@pytest.mark.parametrize(
    "receipts", [5, "text", [1, 2], [b"a"], ["x" * 129], ["x"] * (MOST_RECEIPTS + 1)]
)
def test_receipts_that_are_no_short_texts_are_malformed(
    policy_file: Callable[..., Path], receipts: object
) -> None:
    assert ask_who(policy_file(), receipts=receipts).error.code == MALFORMED


def test_an_empty_ledger_beside_critics_that_have_learned_is_refused(
    policy_file: Callable[..., Path], make_request: Make
) -> None:
    path = policy_file()
    learned = path.parent / "state" / "states" / "some run"
    learned.mkdir(parents=True, mode=0o700)
    (learned / "3.state").write_bytes(b"weights")
    with pytest.raises(LedgerError, match="The ledger is empty beside states"):
        answer(node_of(path), make_request())
    (learned / "3.state").unlink()
    answer(node_of(path), make_request())


def test_a_simulated_client_gives_no_receipt(secret: NodeSettings) -> None:
    assert Node(secret, 0).receipt([]) is None


def test_a_ledger_knows_every_reply_beside_it(tmp_path: Path) -> None:
    store = ReplyStore(tmp_path / "replies")
    ledger = Ledger(tmp_path / "ledger.sqlite", durable=False)
    refuse_rollback(ledger, store)  # neither has anything yet
    gate = LedgerGate(ledger, "ward", BUDGETS, store)
    for number in range(2):
        asked: Any = SimpleNamespace(
            run="run", name="dp_sinkhorn", operator=None, rounds=[(1 + number, None)]
        )
        digest = bytes([number]) * 32
        admitted = gate.admit(asked, central_charge(PLAN), digest, lambda: b"c" * 32)
        assert admitted.keep is not None
        admitted.keep({str(1 + number): torch.zeros(3)})
        refuse_rollback(ledger, store)
    empty = Ledger(tmp_path / "empty.sqlite", durable=False)
    with pytest.raises(LedgerError, match="does not know every reply that is stored beside it"):
        refuse_rollback(empty, store)
    for number in range(8):  # wherever the folder lists it
        store.put(bytes([number]) * 32, {"1": torch.zeros(3)})
        with pytest.raises(LedgerError, match="does not know every reply"):
            refuse_rollback(ledger, store)
        (tmp_path / "replies" / f"{bytes([number]).hex() * 32}.reply").unlink()
    refuse_rollback(ledger, store)
