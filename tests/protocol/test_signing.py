"""Keys, requests that operators sign, and what a node signs of a run."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from flwr.app import ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedsink.errors import (
    BadSignatureError,
    ConfigError,
    ProtocolVersionError,
    UnknownOperatorError,
    UnsignedRequestError,
)
from fedsink.protocol.aggregation import Trip, put_trip
from fedsink.protocol.packing import PROTOCOL_VERSION, digest, pack
from fedsink.protocol.signing import (
    LONGEST_STATEMENT,
    ChargeStatement,
    NodeIdentityKey,
    StatedCharge,
    ask_statement,
    asked_run,
    give_statement,
    given_statement,
    identity_record,
    is_signed,
    read_key,
    read_keys,
    shown_key,
    sign,
    signer,
    stated_client,
)
from fedsink.secagg.parameters import Parameters

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))
PUBLIC = {"lab": KEY.public_key().public_bytes_raw()}
KIND, NODE = "train.dp_sinkhorn", "a1"


def request(rows: float = 0.0, **fields: Any) -> RecordDict:
    return pack({"run": "r", "round": 1} | fields, {"rows": torch.full((2, 3), rows)})


def signed(key: Ed25519PrivateKey = KEY, **fields: Any) -> RecordDict:
    record = request(**fields)
    sign(record, KIND, NODE, key)
    return record


def test_a_signed_request_names_its_operator_and_is_the_same_request() -> None:
    record = signed()
    assert signer(record, KIND, NODE, PUBLIC) == "lab"
    assert digest(KIND, record) == digest(KIND, request())
    sign(record, KIND, "b2", KEY)  # replaces the first signature
    assert signer(record, KIND, "b2", PUBLIC) == "lab"


def test_who_has_not_signed_or_is_not_known_is_refused() -> None:
    with pytest.raises(UnsignedRequestError, match="nobody has signed this request"):
        signer(request(), KIND, NODE, PUBLIC)
    with pytest.raises(UnknownOperatorError, match="is none of the policy's lab"):
        signer(signed(OTHER), KIND, NODE, PUBLIC)


@pytest.mark.parametrize(
    ("other", "kind", "node"),
    [
        ({}, KIND, "b2"), ({}, "train.parameter_gradient", NODE), ({"round": 2}, KIND, NODE),
        ({"run": "s"}, KIND, NODE), ({"rows": 2.0**-20}, KIND, NODE),
    ],
)  # fmt: skip
def test_a_signature_is_for_one_request_to_one_node(
    other: dict[str, Any], kind: str, node: str
) -> None:
    record = request(**other)
    record["operator"] = signed()["operator"]
    with pytest.raises(BadSignatureError, match="signature of lab is not for this request"):
        signer(record, kind, node, PUBLIC)


def test_a_signature_covers_request_and_trip_of_a_masked_answer() -> None:
    trips = [Trip(Parameters("r", name, (0, 1, 2), 32, 6, 3), b"shares") for name in ("m", "n")]

    def masked(trip: Trip = trips[0], **said: Any) -> RecordDict:
        return put_trip(request(**said), trip)

    record = masked()
    sign(record, KIND, NODE, KEY)
    assert signer(record, KIND, NODE, PUBLIC) == "lab"
    for changed in (masked(rows=2.0**-20), masked(round=2), masked(trips[1]), request()):
        changed["operator"] = record["operator"]
        with pytest.raises(BadSignatureError):
            signer(changed, KIND, NODE, PUBLIC)


@pytest.mark.parametrize("length", [0, 1, 4, 8, 16, 31])
def test_a_key_is_known_by_all_of_its_bytes(length: int) -> None:
    """A key that begins or ends alike is found in no time."""
    own = OTHER.public_key().public_bytes_raw()
    for known in (own[:length] + bytes(32 - length), bytes(32 - length) + own[32 - length :]):
        with pytest.raises(UnknownOperatorError, match="is none of the policy's lab"):
            signer(signed(OTHER), KIND, NODE, {"lab": known})


@pytest.mark.parametrize(
    ("values", "error"),
    [
        *(({"key": PUBLIC["lab"], "signature": signature}, BadSignatureError)
          for signature in (b"", b"\0" * 64, bytes(63), b"x" * 1000)),
        *((values, UnsignedRequestError)
          for values in ({}, {"key": "text", "signature": "text"}, {"key": b"x"})),
    ],
)  # fmt: skip
def test_hostile_signatures_are_bad_and_half_a_signature_is_none(
    values: dict[str, Any], error: type[Exception]
) -> None:
    record = signed()
    record["operator"] = ConfigRecord(values)
    with pytest.raises(error):
        signer(record, KIND, NODE, PUBLIC)


def test_a_signature_over_nothing_is_malformed() -> None:
    record = RecordDict({"operator": signed()["operator"]})
    with pytest.raises(ValueError, match="Malformed message: KeyError"):
        signer(record, KIND, NODE, PUBLIC)


def test_keys_are_read_as_they_are_shown() -> None:
    assert read_key(shown_key(PUBLIC["lab"])) == PUBLIC["lab"]
    for text in ("", "ed25519:", "ed25519:AAAA", shown_key(PUBLIC["lab"])[8:], "ed25519:?" * 9):
        with pytest.raises(ConfigError, match="is no public key"):
            read_key(text)


OCTIC = bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05")
P = 2**255 - 19
HEIGHTS = [0, 1, P - 1, P, P + 1, int.from_bytes(OCTIC, "little")]
WEAK = [
    (height % 2**255 + sign * 2**255).to_bytes(32, "little")
    for height in [*HEIGHTS, P - HEIGHTS[-1]]
    for sign in (0, 1)
]


@pytest.mark.parametrize("key", WEAK, ids=bytes.hex)
def test_keys_that_verify_what_nobody_signed_are_refused(key: bytes) -> None:
    with pytest.raises(ConfigError, match="is a weak key: anybody can sign for it"):
        read_key(shown_key(key))


def test_a_signature_of_zeros_is_good_for_no_weak_key() -> None:
    passed = 0
    for round in range(60):
        record = request(round=round)
        record["operator"] = ConfigRecord({"key": bytes(32), "signature": bytes(64)})
        with pytest.raises(BadSignatureError):
            signer(record, KIND, NODE, {"lab": bytes(32)})
        with contextlib.suppress(InvalidSignature):  # the library takes one in four by chance
            Ed25519PublicKey.from_public_bytes(bytes(32)).verify(bytes(64), digest(KIND, record))
            passed += 1
    assert passed


def test_no_key_that_is_made_is_weak() -> None:
    for seed in range(1, 200):
        key = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
        assert read_key(shown_key(key.public_key().public_bytes_raw()))


def test_files_of_keys_are_read_strictly(tmp_path: Path) -> None:
    path = tmp_path / "peers.toml"
    one, two = (shown_key(key.public_key().public_bytes_raw()) for key in (KEY, OTHER))
    lines = f'a = "{one}"\n"ward 2" = "{two}"\n'
    for text, table in ((lines, None), (f"[keys]\n{lines}", "keys")):
        path.write_text(text)
        assert read_keys("peers", path, table) == {read_key(one): "a", read_key(two): "ward 2"}
    for text, words in (
        ("[keys]", r"must be a table \[keys\] of lines"), ("[other]\na = 1", "must be a table"),
        ("keys = [1]", "must be a table"), (lines, "must be a table"), ("{", "is no TOML"),
        ('[keys]\na = "x"', "peers, a: 'x' is no public key"),
        (f'[keys]\na = "{one}"\nb = "{one}"', "peers: a and b have one key"),
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(ConfigError, match=words):
            read_keys("peers", path, "keys")
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is no TOML"):
        read_keys("peers", path)
    with pytest.raises(ConfigError, match="peers cannot be read: No such file"):
        read_keys("peers", tmp_path / "none.toml")


# A node's own key: made once, readable by its owner only, and for one purpose at a time

FILE = NodeIdentityKey.FILE_NAME


def test_the_file_has_mode_0600_and_an_existing_one_is_never_replaced(tmp_path: Path) -> None:
    first = NodeIdentityKey.at(tmp_path / "state")
    path = tmp_path / "state" / FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    assert NodeIdentityKey.at(tmp_path / "state").public == first.public
    assert path.read_bytes() == before
    assert NodeIdentityKey.at(tmp_path / "other").public != first.public
    assert read_key(first.shown) == first.public


def test_a_signature_for_one_purpose_verifies_for_no_other() -> None:
    private = Ed25519PrivateKey.from_private_bytes(bytes(32))
    key = NodeIdentityKey(private)
    signature = key.sign("a", b"content")
    assert is_signed(key.public, "a", b"content", signature)
    for purpose, content in (("b", b"content"), ("a", b"other"), ("a\0con", b"tent")):
        assert not is_signed(key.public, purpose, content, signature)
    of_operator = private.sign(b"\0".join([b"fedsink request", b"a", b"content"]))
    assert not is_signed(key.public, "a", b"content", of_operator)
    other = NodeIdentityKey(Ed25519PrivateKey.from_private_bytes(bytes([1] * 32)))
    assert not is_signed(other.public, "a", b"content", signature)
    for hostile in (b"", bytes(64), signature[:-1], signature + b"\0"):
        assert not is_signed(key.public, "a", b"content", hostile)
    assert not is_signed(b"no key", "a", b"content", signature)


def test_a_key_that_others_can_read_or_that_is_none_is_refused(tmp_path: Path) -> None:
    NodeIdentityKey.at(tmp_path)
    os.chmod(tmp_path / FILE, 0o644)
    with pytest.raises(ConfigError, match="has mode 0644, so others can read it"):
        NodeIdentityKey.at(tmp_path)
    os.chmod(tmp_path / FILE, 0o600)
    (tmp_path / FILE).write_bytes(b"no key")
    with pytest.raises(ConfigError, match="holds no unencrypted ed25519 key"):
        NodeIdentityKey.at(tmp_path)


# What a node signs of a run, as it travels and as a stranger reads it

IDENTITY = NodeIdentityKey(Ed25519PrivateKey.from_private_bytes(bytes(32)))
CHARGE = StatedCharge("add-remove", {"rate": 0.1, "clip": {"bound": 2.0}}, 4.5, 1e-5, 20)
SAID = ChargeStatement("run", 1, 3, "secret", "masked", "2026-11-27", (CHARGE,))


def test_a_statement_is_read_as_it_was_signed_also_from_a_file() -> None:
    signed = json.loads(json.dumps(SAID.signed(IDENTITY), indent=2))
    assert ChargeStatement.verified(signed) == (SAID, IDENTITY.shown)


def _leaves(values: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(values, dict | list):
        items = values.items() if isinstance(values, dict) else enumerate(values)
        return [leaf for key, value in items for leaf in _leaves(value, (*path, key))]
    return [path]


def test_no_part_of_a_statement_can_be_changed_without_the_key() -> None:
    signed = SAID.signed(IDENTITY)
    paths = _leaves(signed["statement"])
    assert len(paths) == 12
    for path in paths:
        changed = copy.deepcopy(signed)
        place = changed["statement"]
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = "x" if isinstance(place[path[-1]], str) else place[path[-1]] + 1
        with pytest.raises(BadSignatureError):
            ChargeStatement.verified(changed)
    other = NodeIdentityKey(Ed25519PrivateKey.from_private_bytes(bytes([1] * 32)))
    with pytest.raises(BadSignatureError):
        ChargeStatement.verified({**signed, "key": other.shown})


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@pytest.mark.medium
@given(_JSON, st.sampled_from(["statement", "key", "signature", "charges", "run", "client", ""]))
def test_hostile_values_are_a_clear_error(value: Any, where: str) -> None:
    signed = SAID.signed(IDENTITY)
    if where in signed:
        signed[where] = value
    elif where:
        signed["statement"][where] = value
    else:
        signed = value
    try:
        ChargeStatement.verified(signed)
    except (ValueError, BadSignatureError):
        pass
    else:
        assert signed == SAID.signed(IDENTITY)


def test_another_format_and_a_weak_key_are_refused_in_a_sentence() -> None:
    """The first format said neither how noise was drawn nor whether replies were masked."""
    signed = SAID.signed(IDENTITY)
    old = {name: value for name, value in signed.items() if name != "format"}
    with pytest.raises(ValueError, match=r"it is no fedsink charge statement 2, .* fedsink ledger"):
        ChargeStatement.verified(old)
    with pytest.raises(ValueError, match="its key is no key of a node"):
        ChargeStatement.verified({**signed, "key": shown_key(bytes([1, *bytes(31)]))})


def test_a_question_names_a_run_and_an_answer_holds_the_statement() -> None:
    question, answer = RecordDict(), RecordDict()
    assert asked_run(question) is None
    ask_statement(question, "run")
    assert asked_run(question) == "run"
    assert given_statement(answer) is None
    give_statement(answer, SAID.signed(IDENTITY))
    assert given_statement(answer) == SAID.signed(IDENTITY)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "[" * 50_000, json.dumps({**SAID.signed(IDENTITY), "signature": "AA=="}),
     json.dumps(ChargeStatement("x" * LONGEST_STATEMENT, 0, 1, "", "", "", ()).signed(IDENTITY))],
    ids=["empty", "torn", "list", "deep", "forged", "long"],
)  # fmt: skip
def test_a_server_keeps_only_valid_statements_that_are_not_long(text: str) -> None:
    answer = RecordDict({"statement": ConfigRecord({"signed": text})})
    assert given_statement(answer) is None


# A node's client number, and the protocol that the node speaks


def identity(**stated: Any) -> RecordDict:
    return RecordDict({"identity": ConfigRecord(stated)})


def test_a_node_says_its_number_and_version_and_nothing_else() -> None:
    said = identity_record(7)
    assert dict(said.config_records["identity"]) == {"client": 7, "protocol": PROTOCOL_VERSION}
    assert len(said) == 1
    assert stated_client(said) == 7


@pytest.mark.parametrize(
    "other",
    [RecordDict(), identity(client=1), identity(client=1, protocol=2), identity(protocol="3")],
)
def test_another_version_is_refused(other: RecordDict) -> None:
    with pytest.raises(ProtocolVersionError, match="install one version of fedsink on both"):
        stated_client(other)


@pytest.mark.parametrize("client", [-1, True, "1", 1.0, [1], b"1"])
def test_a_number_that_is_none_is_refused(client: Any) -> None:
    with pytest.raises(ValueError, match="is no client's number"):
        stated_client(identity(client=client, protocol=PROTOCOL_VERSION))
    with pytest.raises(ValueError, match="is no client's number"):
        stated_client(identity(protocol=PROTOCOL_VERSION))
