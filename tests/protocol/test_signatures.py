from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord, RecordDict

from fedsink.errors import (
    BadSignatureError,
    ConfigError,
    UnknownOperatorError,
    UnsignedRequestError,
)
from fedsink.protocol.aggregation import Trip, put_trip
from fedsink.protocol.packing import digest, pack
from fedsink.protocol.signatures import read_key, read_keys, shown_key, sign, signer
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
    "change",
    [
        lambda record: (record, KIND, "b2"),  # another node
        lambda record: (record, "train.parameter_gradient", NODE),
        lambda record: (
            RecordDict({**request(round=2), "operator": record["operator"]}),
            KIND,
            NODE,
        ),
        lambda record: (
            RecordDict({**request(run="s"), "operator": record["operator"]}),
            KIND,
            NODE,
        ),
        lambda record: (
            RecordDict({**request(rows=2.0**-20), "operator": record["operator"]}),
            KIND,
            NODE,
        ),
    ],
)
def test_a_signature_is_for_one_request_to_one_node(change: Callable[..., Any]) -> None:
    with pytest.raises(BadSignatureError, match="signature of lab is not for this request"):
        signer(*change(signed()), PUBLIC)


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


@pytest.mark.parametrize("signature", [b"", b"\0" * 64, bytes(63), b"x" * 1000])
def test_hostile_signatures_are_bad(signature: bytes) -> None:
    record = signed()
    record["operator"] = ConfigRecord({"key": PUBLIC["lab"], "signature": signature})
    with pytest.raises(BadSignatureError):
        signer(record, KIND, NODE, PUBLIC)


@pytest.mark.parametrize("values", [{}, {"key": "text", "signature": "text"}, {"key": b"x"}])
def test_half_a_signature_is_none(values: dict[str, Any]) -> None:
    record = request()
    record["operator"] = ConfigRecord(values)
    with pytest.raises(UnsignedRequestError):
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


def test_a_signature_of_zeros_verifies_for_a_weak_key() -> None:
    weak = {"lab": bytes(32)}
    passed = 0
    for round in range(60):  # one in four by chance
        record = request(round=round)
        record["operator"] = ConfigRecord({"key": bytes(32), "signature": bytes(64)})
        with contextlib.suppress(BadSignatureError):
            passed += signer(record, KIND, NODE, weak) == "lab"
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
