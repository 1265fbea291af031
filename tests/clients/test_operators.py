"""A node whose policy names operators answers only their requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Context, Message, RecordDict
from flwr.common.serde import recorddict_to_proto

from fedsink.clients.answers import registry as answers
from fedsink.clients.app import client_app
from fedsink.clients.node import close_nodes
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.ledger.account_report import refusals, report
from fedsink.clients.owner.ledger.database import Database
from fedsink.clients.owner.policy_file import read_policy
from fedsink.data.partition import Iid
from fedsink.errors import ConfigError
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.failure_codes import BAD_SIGNATURE, REFUSED, UNKNOWN_OPERATOR, UNSIGNED
from fedsink.protocol.signing import node_receipt, shown_key, sign

Make = Callable[..., GradientRequest]
KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))
OPERATORS = {"lab": shown_key(KEY.public_key().public_bytes_raw())}
KIND = "train.dp_sinkhorn"


def ask(policy: Path, content: RecordDict, kind: str = KIND) -> Message:
    close_nodes()
    context = Context(1, 1, {"partition-id": 0, "num-partitions": 1}, RecordDict(), {})
    app = client_app(NodeSettings.from_policy(read_policy(policy)))
    return app(Message(content, dst_node_id=1, message_type=kind), context)


def name_of(policy: Path) -> str:
    given = node_receipt(ask(policy, RecordDict(), "query.identity").content)
    assert given is not None
    return given.name


def signed(request: GradientRequest, node: str, key: Ed25519PrivateKey = KEY) -> RecordDict:
    record = request.to_record()
    sign(record, KIND, node, key)
    return record


def claims(policy: Path) -> int:
    database = Database(policy.parent / "state" / "ledger.sqlite", writable=False)
    return int(database.rows("SELECT COUNT(*) FROM claims")[0][0])


def content_of(reply: Message) -> bytes:
    content: bytes = recorddict_to_proto(reply.content).SerializeToString(deterministic=True)
    return content


def test_a_named_operator_is_answered_and_a_replay_gets_the_same_bytes(
    policy_file: Callable[..., Path], make_request: Make
) -> None:
    path = policy_file(operators=OPERATORS)
    record = signed(make_request(), name_of(path))
    first = ask(path, record)
    assert not first.has_error()
    assert content_of(ask(path, record)) == content_of(first)
    assert claims(path) == 1


def test_anybody_else_is_refused_by_a_code_before_anything_is_read(
    policy_file: Callable[..., Path], make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = policy_file(operators=OPERATORS)
    node, request = name_of(path), make_request()

    def read(message_type: str, policy: object) -> object:
        raise AssertionError("it was read")

    monkeypatch.setattr("fedsink.clients.node.find_answer", read)
    assert answers.find_answer is not read
    moved = RecordDict(dict(replace(request, round=2).to_record()))
    moved["operator"] = signed(request, node)["operator"]
    for content, code in (
        (request.to_record(), UNSIGNED),
        (signed(request, node, OTHER), UNKNOWN_OPERATOR),
        (signed(request, "of another node"), BAD_SIGNATURE),
        (moved, BAD_SIGNATURE),
    ):
        reply = ask(path, content)
        assert (reply.error.code, reply.error.reason) == (code, None)
    assert ask(path, signed(request, node), "train.parameter_gradient").error.code == BAD_SIGNATURE
    assert claims(path) == 0


def test_the_ledger_says_who_asked_and_what_was_refused(
    policy_file: Callable[..., Path], make_request: Make
) -> None:
    path = policy_file(operators=OPERATORS, epsilon=1.5 * make_request().plan.epsilon())
    node = name_of(path)
    ask(path, make_request().to_record())
    assert not ask(path, signed(replace(make_request(), run="one"), node)).has_error()
    for _ in range(2):
        reply = ask(path, signed(replace(make_request(), run="two"), node))
        assert reply.error.code == REFUSED
    database = Database(path.parent / "state" / "ledger.sqlite", writable=False)
    [account] = report(database)
    [run] = account.runs
    assert (run.run, run.operator, run.method) == ("one", "lab", "dp_sinkhorn")
    assert run.day is not None
    assert refusals(database) == {"BudgetError": 2, "UnsignedRequestError": 1}


def test_without_operators_whoever_asks_is_answered(
    policy_file: Callable[..., Path], make_request: Make
) -> None:
    path = policy_file()
    assert not ask(path, make_request().to_record()).has_error()
    assert not ask(path, signed(replace(make_request(), round=2), "any", OTHER)).has_error()


def test_a_simulation_has_no_operator(policy_file: Callable[..., Path]) -> None:
    policy = read_policy(policy_file(operators=OPERATORS))
    with pytest.raises(ConfigError, match="a simulation's requests are unsigned"):
        NodeSettings.from_policy(policy, clients=3, partition=Iid())


@pytest.mark.parametrize(
    ("operators", "why"),
    [({"lab": "ed25519:AAAA"}, "lab: 'ed25519:AAAA' is no public key"), ({}, "at least one")],
)
def test_a_policy_with_a_key_that_is_none_is_refused(
    policy_file: Callable[..., Path], operators: dict[str, str], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        read_policy(policy_file(operators=operators))
