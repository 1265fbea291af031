"""Nodes whose policies name an operator, and requests of everybody else who reaches the nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord, RecordDict

from fedsink.protocol.failure_codes import BAD_SIGNATURE, MALFORMED, UNKNOWN_OPERATOR, UNSIGNED
from fedsink.protocol.signing import (
    LONGEST,
    MOST_RECEIPTS,
    node_receipt,
    show_receipts,
    shown_key,
    sign,
)

from .honest import GRADIENT, IDENTITY, KINDS, SHAPES, Honest, with_fields
from .messages import DEEP
from .oracles import measured
from .siege import MEGABYTES, SECONDS, Siege

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))
PUBLIC = KEY.public_key().public_bytes_raw()
HONEST = Honest(SHAPES["points"])


@pytest.fixture
def siege(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Siege:
    """Nodes that have verified a signature, so that their libraries are warm."""
    besieged = Siege(tmp_path, monkeypatch, operators={"lab": shown_key(PUBLIC)})
    for node in besieged.nodes:
        content = HONEST.gradient().to_record()
        given = node_receipt(node.ask(IDENTITY, RecordDict()).content)
        assert given is not None
        sign(content, GRADIENT, given.name, KEY)
        assert not node.ask(GRADIENT, content).has_error()
    besieged.begin()
    return besieged


def signed_for(node: str, kind: str, content: RecordDict, key: Ed25519PrivateKey) -> RecordDict:
    content = RecordDict(dict(content))
    sign(content, kind, node, key)
    return content


@pytest.mark.medium
def test_nobody_else_is_answered_whatever_is_sent(siege: Siege) -> None:
    for kind, content in HONEST.messages():
        if kind == IDENTITY:
            continue
        assert siege.send(kind, content).error.code == UNSIGNED
        strange = signed_for("any", kind, content, OTHER)
        assert siege.send(kind, strange).error.code == UNKNOWN_OPERATOR
        elsewhere = signed_for("of another node", kind, content, KEY)
        assert siege.send(kind, elsewhere).error.code == BAD_SIGNATURE
        for other in set(KINDS) - {IDENTITY, kind}:
            assert siege.send(other, elsewhere).error.code == BAD_SIGNATURE
        deep = RecordDict({**with_fields(content, DEEP), "operator": elsewhere["operator"]})
        assert siege.send(kind, deep).error.code == BAD_SIGNATURE


@pytest.mark.parametrize(
    ("operator", "code"),
    [
        ({}, UNSIGNED),
        ({"key": "text", "signature": b""}, UNSIGNED),
        ({"key": [b"x"], "signature": [b"x"]}, UNSIGNED),
        ({"key": b"", "signature": b""}, UNKNOWN_OPERATOR),
        ({"key": b"\0" * 32, "signature": b"\0" * 64}, UNKNOWN_OPERATOR),
        ({"key": b"x" * 10**6, "signature": b"x" * 10**6}, UNKNOWN_OPERATOR),
        ({"key": PUBLIC, "signature": b"x" * 10**6}, BAD_SIGNATURE),
        ({"key": PUBLIC, "signature": b"\xff" * 64}, BAD_SIGNATURE),
        ({"key": PUBLIC, "signature": b""}, BAD_SIGNATURE),
    ],
)
def test_hostile_signatures(siege: Siege, operator: dict[str, Any], code: int) -> None:
    for content in (HONEST.gradient().to_record(), with_fields(HONEST.gradient().to_record(), "{")):
        content["operator"] = ConfigRecord(operator)
        assert siege.send(GRADIENT, content).error.code == code


def test_a_signature_beside_no_request_is_malformed(siege: Siege) -> None:
    signed = signed_for("any", GRADIENT, HONEST.gradient().to_record(), KEY)
    content = RecordDict({"operator": signed["operator"]})
    assert siege.send(GRADIENT, content).error.code == MALFORMED


def test_receipts_that_a_server_makes_up_cost_little_and_lock_nobody(siege: Siege) -> None:
    """At most `SECONDS` of processor time for as many as a node looks at."""
    content = RecordDict()
    show_receipts(content, [f"{n:080x}" for n in range(MOST_RECEIPTS - 2)] + ["é" * LONGEST, ""])
    for node in siege.nodes:
        with measured() as cost:
            assert not node.ask(IDENTITY, content).has_error()
        assert cost.seconds <= SECONDS
        assert cost.megabytes <= MEGABYTES
    for receipts in (["x"] * (MOST_RECEIPTS + 1), ["x" * (LONGEST + 1)], [1], "text"):
        content["receipts"] = ConfigRecord({"receipts": receipts})
        assert siege.send(IDENTITY, content).error.code == MALFORMED
