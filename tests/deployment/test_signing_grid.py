"""Additions of a server for the owners of nodes: receipts with questions, signed requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Message, RecordDict

from fedsink.deployment.node_grid import NodeGrid, Patience
from fedsink.deployment.signing_grid import SigningGrid
from fedsink.errors import BadSignatureError, UnsignedRequestError
from fedsink.protocol.packing import pack
from fedsink.protocol.signing import (
    NodeReceipt,
    give,
    identity_query,
    identity_record,
    shown_receipts,
    signer,
)
from fedsink.simulation.grid import SimulationGrid

KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
KNOWN = {"lab": KEY.public_key().public_bytes_raw()}


class Link(SimulationGrid):
    """Nodes 101 and 102; the second gives nothing unless it is named.

    Attributes:
        names: those that nodes give, each with a receipt.
        seen: messages that nodes were sent.
    """

    def __init__(self, names: Mapping[int, str] | None = None) -> None:
        super().__init__(2)
        self.names = {101: "a1"} if names is None else names
        self.seen: list[tuple[int, str, RecordDict]] = []

    def get_node_ids(self) -> list[int]:
        return [101, 102]

    def execute(self, messages: Sequence[Message]) -> list[Message]:
        replies = []
        for message in messages:
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            self.seen.append((node, kind, message.content))
            record = RecordDict()
            if kind == "query.identity":
                record = identity_record(node - 101)
                if node in self.names:
                    give(record, NodeReceipt(self.names[node], f"receipt {len(self.seen)}"))
            replies.append(Message(record, reply_to=message))
        return replies

    def keep(self, round: int) -> None:
        raise NotImplementedError


def test_receipts_are_kept_and_shown_again_by_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "receipts.json"
    link = Link()
    grid = NodeGrid(SigningGrid(link, path, None), 2, 2, Patience(wait=1.0, poll=0.01))
    assert grid.roster() == {0: 101, 1: 102}
    first = json.loads(path.read_text())
    assert list(first) == ["a1"]
    assert [shown_receipts(content) for _, _, content in link.seen] == [[], []]

    owners = SigningGrid(link, path, None)
    list(owners.pull_messages(owners.push_messages([identity_query(102)])))
    assert shown_receipts(link.seen[-1][2]) == list(first["a1"].values())


def test_the_receipts_of_other_nodes_and_runs_stay(tmp_path: Path) -> None:
    path = tmp_path / "receipts.json"
    path.write_text('{"c3": "of another run"}')  # by a version that knew names alone
    link = Link({101: "a1", 102: "b2"})
    owners = SigningGrid(link, path, None)
    for node, kept in ((101, {"a1", "c3"}), (102, {"a1", "b2", "c3"}), (101, {"a1", "b2", "c3"})):
        list(owners.pull_messages(owners.push_messages([identity_query(node)])))
        assert set(json.loads(path.read_text())) == kept
    assert sorted(shown_receipts(link.seen[-1][2])) == ["of another run", "receipt 1", "receipt 2"]


def test_the_last_receipts_are_asked_for_at_the_end(tmp_path: Path) -> None:
    path, link = tmp_path / "receipts.json", Link()
    owners = SigningGrid(link, path, None)
    assert owners.collect("run") == []  # no node has said who it is
    assert link.seen == []
    NodeGrid(owners, 2, 2, Patience(wait=1.0, poll=0.01)).roster()
    before = json.loads(path.read_text())
    assert owners.collect("run") == []  # this one signs nothing
    assert json.loads(path.read_text()) != before
    assert [node for node, _, _ in link.seen] == [101, 102, 101]


@pytest.mark.parametrize("content", ["", "[]", "null", "{"])
def test_damaged_receipts_are_lost_and_not_fatal(tmp_path: Path, content: str) -> None:
    path, link = tmp_path / "receipts.json", Link()
    path.write_text(content)
    NodeGrid(SigningGrid(link, path, None), 2, 2, Patience(wait=1.0, poll=0.01)).roster()
    assert list(json.loads(path.read_text())) == ["a1"]


def test_requests_are_signed_for_each_node_and_shared_content_stays(tmp_path: Path) -> None:
    link = Link()
    owners = SigningGrid(link, tmp_path / "receipts.json", KEY)
    NodeGrid(owners, 2, 2, Patience(wait=1.0, poll=0.01)).roster()
    content = pack({"run": "r"}, {})
    messages = [Message(content, dst_node_id=n, message_type="train.x") for n in (101, 102)]
    for _ in range(2):  # a message that is sent again is signed again
        list(owners.pull_messages(owners.push_messages(messages)))
        [(_, kind, signed), (_, _, other)] = link.seen[-2:]
        assert signer(signed, kind, "a1", KNOWN) == "lab"
        with pytest.raises(UnsignedRequestError):  # its node has given no name
            signer(other, kind, "a1", KNOWN)
    assert sorted(content) == ["arrays", "fields"]


def test_each_node_gets_a_signature_of_its_own(tmp_path: Path) -> None:
    names = {101: "a1", 102: "b2"}
    link = Link(names)
    owners = SigningGrid(link, tmp_path / "receipts.json", KEY)
    NodeGrid(owners, 2, 2, Patience(wait=1.0, poll=0.01)).roster()
    content = pack({"run": "r"}, {})
    messages = [Message(content, dst_node_id=n, message_type="train.x") for n in names]
    list(owners.pull_messages(owners.push_messages(messages)))
    for node, kind, signed in link.seen[-2:]:
        assert signer(signed, kind, names[node], KNOWN) == "lab"
        [other] = set(names.values()) - {names[node]}
        with pytest.raises(BadSignatureError):
            signer(signed, kind, other, KNOWN)


def test_no_node_takes_the_name_of_another(tmp_path: Path) -> None:
    """Neither its receipt nor the requests that are signed for it, while it is connected."""
    path, link = tmp_path / "receipts.json", Link()
    connected = [101, 102]
    link.get_node_ids = lambda: connected  # type: ignore[method-assign]
    owners = SigningGrid(link, path, KEY)

    def signed_for(node: int) -> bool:
        message = Message(pack({"run": "r"}, {}), dst_node_id=node, message_type="train.x")
        list(owners.pull_messages(owners.push_messages([message])))
        try:
            return signer(link.seen[-1][2], "train.x", "a1", KNOWN) == "lab"
        except UnsignedRequestError:
            return False

    def asked(*nodes: int) -> None:
        questions = [identity_query(node) for node in nodes]
        list(owners.pull_messages(owners.push_messages(questions)))

    asked(101)
    link.names[102] = "a1"
    asked(102)
    assert json.loads(path.read_text()) == {"a1": {"101": "receipt 1", "102": "receipt 2"}}
    assert (signed_for(101), signed_for(102)) == (True, False)
    owners = SigningGrid(link, path, KEY)  # another process, where the stranger comes first
    asked(102, 101)
    assert (signed_for(101), signed_for(102)) == (True, False)
    assert json.loads(path.read_text())["a1"].keys() == {"101", "102"}
    connected.remove(101)  # a node without a key has another id when it starts again
    assert signed_for(102)
    connected.append(101)
    assert (signed_for(101), signed_for(102)) == (True, False)


def test_a_node_that_gives_ever_new_names_fills_no_file(tmp_path: Path) -> None:
    path, link = tmp_path / "receipts.json", Link()
    owners = SigningGrid(link, path, None)
    list(owners.pull_messages(owners.push_messages([identity_query(101)])))
    for number in range(20):
        link.names[102] = f"b{number}"
        list(owners.pull_messages(owners.push_messages([identity_query(102)])))
    kept = json.loads(path.read_text())
    assert kept.keys() == {"a1", "b16", "b17", "b18", "b19"}
    assert len(shown_receipts(link.seen[-1][2])) == 5
