"""Reading a message raises the errors of a malformed message and no others, whatever it holds."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fedsink_papers.parameter_gradient.request import ParameterReply, architecture_of
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedsink.clients.answers.registry import find_answer
from fedsink.clients.owner.policy import Policy
from fedsink.clients.owner.policy_file import read_policy
from fedsink.errors import ReleaseRefusedError
from fedsink.models import build
from fedsink.protocol.packing import PROTOCOL_VERSION
from fedsink.protocol.privatize_once import PrivatizeReply, asked_mechanism
from fedsink.protocol.requests import pack_replies, unpack_replies
from fedsink.protocol.signing import (
    NodeReceipt,
    give,
    identity_record,
    node_receipt,
    shown_receipts,
    signer,
    stated_client,
)

from ...adversary.honest import (
    CRITIC,
    GRADIENT,
    IDENTITY,
    PARAMETERS,
    PRIVATIZE,
    SHAPES,
    Honest,
    Sent,
    fields_of,
    with_fields,
)
from ...adversary.messages import places_in

IMAGE = SHAPES["images"]
HONEST = Honest(IMAGE)
READERS = [GRADIENT, PARAMETERS, PRIVATIZE, CRITIC]
MISSING = "missing"
DEPTHS = [2, 20, 31, *range(880, 1000, 20), 10_000]  # Python's limit is near 1,000
HOSTILE = [
    MISSING, "null", "true", "false", "0", "-1", "1", "2", "1" + "0" * 25, "1" + "0" * 400,
    "9" * 5000, "0.5", "-0.5", "5e-324", "1e308", "1e400", "NaN", "Infinity", "-Infinity", '""',
    '"x"', '"1"', r'"\ud800"', r'"\u0000"', f'"{"a" * 300}"', "[]", "[null]", "[[]]", "[[1, 2]]",
    "[{}]", '[["name", "pixel"], ["shape", [1, 4, 4]]]', "[1, 4, 4]", "[NaN, 4, 4]", "[-1, -1, -1]",
    "[1000000000]", "[true]", '["4"]', "{}", '{"": 0}', '{"name": null}', '{"name": []}',
    '{"name": {}}', '{"name": "x"}', *(f'"{word}"' for word in ("dct", "conv", "gaussian", "row")),
    *("[" * depth + "]" * depth for depth in DEPTHS),
    *('{"name": ' * depth + "1" + "}" * depth for depth in DEPTHS),
]  # fmt: skip
"""JSON of every type, as text; integers and nesting up to beyond what Python reads."""


def altered(content: RecordDict, way: tuple[str, ...], value: str) -> RecordDict:
    """Returns this message with one value of its fields replaced by JSON text, or left out."""
    fields = fields_of(content)
    inner = fields
    for key in way[:-1]:
        inner = inner[key]
    if value == MISSING:
        del inner[way[-1]]
    else:
        inner[way[-1]] = "@here@"
    return with_fields(content, json.dumps(fields).replace('"@here@"', value))


def variants() -> Iterator[Sent]:
    """Messages of every type, with every schedule, clip, plan, view, map and generator."""
    yield from (sent for sent in HONEST.messages() if sent[0] != IDENTITY)
    gradient, critic = HONEST.gradient().to_record(), HONEST.critic().to_record()
    upload, schedule, shape = HONEST.upload().to_record(), ("plan", "schedule"), list(IMAGE)

    def put(content: RecordDict, *changes: tuple[tuple[str, ...], Any]) -> RecordDict:
        for way, value in changes:
            content = altered(content, way, json.dumps(value))
        return content

    for described in (
        {"name": "turn", "classes": 1, "turns": 1},
        {"name": "pick", "classes": 1, "clients": 1, "seed": 0},
    ):
        yield GRADIENT, put(gradient, (schedule, described))
    unprotected = {
        "unprotected": True, "rate": 1.0, "rounds": 5, "kind": "batch", "capacity": 5,
        "schedule": {"name": "joint", "classes": 1}, "nominal_records": 64,
    }  # fmt: skip
    yield GRADIENT, put(gradient, (("plan",), unprotected))
    dct = {"name": "dct", "shape": shape, "radius": 9.0, "frequency_weight": 1.0, "dc": True}
    yield GRADIENT, put(gradient, (("view",), dct))
    row = ("plan", "clip"), {"name": "row", "bound": 0.5, "rows": 10}
    yield CRITIC, put(critic, row, (("critics", "training", "critics"), 1))
    yield CRITIC, put(critic, (("critics", "kind"), "convolution"))
    laplace: list[dict[str, Any]] = [
        {"name": "pixel_range", "norm": "l1"},
        {"name": "dct_direction", "block": 2, "norm": "l1", "background": 0.2},
    ]
    gaussian: list[dict[str, Any]] = [
        {"name": "l2_ball", "radius": 2.0},
        {"name": "non_negative_direction", "pool": 2, "block": 2},
        {"name": "pooled_power", "block": 2, "power": 2.0, "norm": "l2", "black": 0, "white": 1},
    ]
    for options in laplace:
        yield PRIVATIZE, put(upload, (("plan", "map"), {**options, "shape": shape}))
    for options in gaussian:
        yield (
            PRIVATIZE,
            put(
                upload,
                (("plan", "mechanism"), "gaussian"),
                (("plan", "delta"), 1e-5),
                (("plan", "map"), {**options, "shape": shape}),
            ),
        )
    small: dict[str, dict[str, Any]] = {
        "conv": {"hidden": 4, "maps": [2, 2]},
        "dct_mlp": {"hidden": [4]},
        "biggan": {"width": 4, "blocks": 1, "label_embedding": 4},
    }
    for name, options in small.items():
        generator = build(name, IMAGE, 3, **options)
        request = replace(
            HONEST.parameters(),
            architecture=architecture_of(generator),
            weights=torch.zeros(sum(array.numel() for array in generator.parameters())),
            latents=torch.zeros(6, generator.latent_dim),
        )
        yield PARAMETERS, request.to_record()


def alterations(kind: str) -> Iterator[RecordDict]:
    """Messages of one type with any one value of their fields replaced."""
    seen = set()
    for sent, content in variants():
        if sent != kind:
            continue
        fields = fields_of(content)
        # What is a `GradientRequest` in a message with weights is read as one.
        ways = [w for w in places_in(fields) if kind != PARAMETERS or w[0] == "architecture"]
        for way in ways:
            around: Any = fields
            for key in way[:-1]:
                around = around[key]
            # Once for each option of each thing that has a name, be it in several messages.
            place = way, around.get("name") if isinstance(around, dict) else None
            if place not in seen:
                seen.add(place)
                yield from (altered(content, way, value) for value in HOSTILE)


@pytest.fixture
def owner(policy_file: Callable[..., Path]) -> Policy:
    """A policy that allows every type of message."""
    return read_policy(
        policy_file(
            mechanisms=[
                "clipped-gaussian", "laplace", "gaussian", "randomized-response", "critic",
                "parameter_gradient",
            ],
            data={"shape": list(IMAGE)},
            allow={
                "maximum_critics": 4, "maximum_critic_width": 8, "maximum_critic_steps": 8,
            },
        )
    )  # fmt: skip


def understood(policy: Policy | None, kind: str, content: RecordDict) -> bool:
    """Tells whether every check before the first look at the data accepts a message."""
    try:
        answer = find_answer(kind, policy).read(content, policy)
        answer.digest(content)
        if policy is not None:
            answer.check_policy(policy)
        answer.check_turn(0, 2)
        answer.check_data(OWNED)
        if answer.protected:
            answer.charge(trusted=False)
    except (ValueError, ReleaseRefusedError):
        return False
    return True


class OWNED:
    """The public description of the node's data, as far as it is compared."""

    shape, classes, nominal_records = IMAGE, ("a", "b", "c"), 64


@pytest.mark.parametrize("kind", READERS)
def test_every_variant_is_understood(kind: str, owner: Policy) -> None:
    """The alterations below therefore begin with valid messages."""
    sent = [content for one, content in variants() if one == kind]
    assert all(understood(None, kind, content) for content in sent)
    assert any(understood(owner, kind, content) for content in sent)


@pytest.mark.medium
@pytest.mark.parametrize("kind", READERS)
def test_no_json_in_any_place_is_more_than_malformed(kind: str) -> None:
    outcomes = [understood(None, kind, content) for content in alterations(kind)]
    assert len(outcomes) > 1000
    assert 0 < sum(outcomes) < len(outcomes) / 4


ARRAYS: list[dict[str, Any]] = [
    *({"dtype": dtype} for dtype in
      ("float32", "float64", "int64", "bool", "float16", "object", "")),
    *({"shape": shape} for shape in (
        (), (0,), (1,), (-1,), (96,), (6, 16), (16, 6), (1, 6, 16), (1, 96), (2, 48), (1, 1, 6, 16),
        (0, 16), (1, 0, 16), (1, 6, 0), (2**62, 0), (0, 2**63), (2**31, 2),
    )),
    {"stype": ""}, {"stype": "numpy.ndarray"}, {"data": b""}, {"data": b"1"}, {"data": bytes(384)},
]  # fmt: skip


def reshaped(array: Array, shape: tuple[int, ...], dtype: str) -> Array:
    """An array of zeros with a true description, or with an impossible one."""
    sizes = {"float32": 4, "float64": 8, "int64": 8, "bool": 1}
    size = min(abs(math.prod(shape)), 10_000) * sizes.get(dtype, 4)
    return Array(dtype, shape, array.stype, bytes(size))


@pytest.mark.medium
@pytest.mark.parametrize("kind", [GRADIENT, PARAMETERS, CRITIC])
def test_no_array_is_more_than_malformed(kind: str) -> None:
    sent = next(content for one, content in variants() if one == kind)
    arrays, outcomes = dict(sent.array_records["arrays"]), []
    for name, array in arrays.items():
        parts = {"dtype": array.dtype, "shape": tuple(array.shape), "stype": array.stype}
        others: list[Array | None] = [None]
        for change in ARRAYS:
            others.append(Array(**{**parts, "data": array.data, **change}))
            if change.keys() & {"shape", "dtype"}:
                others.append(reshaped(array, parts["shape"], change.get("dtype", array.dtype)))
                others.append(reshaped(array, change.get("shape", parts["shape"]), array.dtype))
        for other in others:
            changed = {**arrays, name: other}
            kept = ArrayRecord({key: value for key, value in changed.items() if value is not None})
            record = RecordDict({"fields": sent.config_records["fields"], "arrays": kept})
            outcomes.append(understood(None, kind, record))
    assert 0 < sum(outcomes) < len(outcomes) / 2


PLAIN: list[Any] = [5, -1, 1.5, math.nan, True, "", "x", b"", b"{}", [], [1], ["x"], [b"x"], [True]]
"""Every type of a value in a `ConfigRecord`."""


@pytest.mark.parametrize("kind", READERS)
def test_no_record_without_its_parts_is_more_than_malformed(kind: str, owner: Policy) -> None:
    sent = next(content for one, content in variants() if one == kind)
    whole = {"fields": sent.config_records["fields"], "arrays": sent.array_records["arrays"]}
    others = [ConfigRecord(), ArrayRecord(), MetricRecord({"json": 1})]
    for name in whole:
        lacking = RecordDict({key: part for key, part in whole.items() if key != name})
        assert not understood(owner, kind, lacking)
        for other in others:
            assert (
                not understood(owner, kind, RecordDict({**whole, name: other})) or name == "arrays"
            )
    for value in PLAIN:
        record = RecordDict({**whole, "fields": ConfigRecord({"json": value})})
        assert not understood(owner, kind, record)


@pytest.mark.parametrize("part", ["key", "signature"])
def test_no_signature_is_more_than_refused(part: str) -> None:
    known = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()
    for value in [*PLAIN, bytes(31), bytes(32), bytes(64), bytes(10_000)]:
        record = HONEST.critic().to_record()
        record["operator"] = ConfigRecord({"key": known, "signature": bytes(64), part: value})
        with pytest.raises(ReleaseRefusedError):
            signer(record, CRITIC, "node", {"lab": known})
    for other in (ArrayRecord(), MetricRecord({"key": 1})):
        record["operator"] = other
        with pytest.raises(ReleaseRefusedError):
            signer(record, CRITIC, "node", {"lab": known})


def test_no_question_who_a_node_is_is_more_than_malformed() -> None:
    for value in PLAIN:
        record = RecordDict({"receipts": ConfigRecord({"receipts": value})})
        if value in ([], ["x"]):
            assert shown_receipts(record) == value
        else:
            with pytest.raises(ValueError, match="each a short text"):
                shown_receipts(record)
    assert shown_receipts(RecordDict({"receipts": ArrayRecord()})) == []


REPLIES: dict[str, tuple[RecordDict, Callable[[RecordDict], Any]]] = {
    "gradients": (pack_replies([torch.zeros(6, 4)]), unpack_replies),
    "weights": (ParameterReply(torch.zeros(6)).to_record(), ParameterReply.from_record),
    "chunk": (
        PrivatizeReply(torch.zeros(6, 4), torch.zeros(6).long(), 1).to_record(),
        PrivatizeReply.from_record,
    ),
}


@pytest.mark.parametrize("kind", REPLIES)
def test_a_node_cannot_send_a_reply_that_is_more_than_malformed(kind: str) -> None:
    reply, read = REPLIES[kind]
    fields, arrays = fields_of(reply), dict(reply.array_records["arrays"])
    records = [with_fields(reply, text) for text in HOSTILE]
    records += [altered(reply, (name,), text) for name in fields for text in HOSTILE]
    for name, array in arrays.items():
        for change in ARRAYS:
            parts = {"dtype": array.dtype, "shape": tuple(array.shape), "stype": array.stype}
            other = Array(**{**parts, "data": array.data, **change})
            sound = reshaped(array, change.get("shape", array.shape), change.get("dtype", "int64"))
            for one in (other, sound):
                kept = ArrayRecord({**arrays, name: one})
                records.append(
                    RecordDict({"fields": reply.config_records["fields"], "arrays": kept})
                )
    read(reply)
    for record in records:
        with contextlib.suppress(ValueError):
            read(record)


@pytest.mark.parametrize("part", ["client", "protocol"])
def test_a_node_cannot_say_who_it_is_so_that_more_than_a_refusal_comes_of_it(part: str) -> None:
    for value in PLAIN:
        record = identity_record(3)
        record["identity"] = ConfigRecord({**record.config_records["identity"], part: value})
        if value == {"client": 5, "protocol": PROTOCOL_VERSION}[part]:
            assert stated_client(record) == (5 if part == "client" else 3)
        else:
            with pytest.raises(ValueError, match=r"."):
                stated_client(record)
    for name in NodeReceipt._fields:
        for value in PLAIN:
            give(record, NodeReceipt("name", "receipt"))
            record["owner"] = ConfigRecord({**record.config_records["owner"], name: value})
            assert node_receipt(record) is None or all(
                isinstance(one, str) for one in node_receipt(record)
            )
    with pytest.raises(ValueError, match=r"."):
        stated_client(RecordDict({"identity": ArrayRecord(), "owner": ArrayRecord()}))


@pytest.mark.parametrize("text", HOSTILE)
def test_the_name_of_a_mechanism_is_a_text_or_malformed(text: str) -> None:
    """The name is read before the policy decides whether the node may look anything up."""
    for way in (("plan",), ("plan", "mechanism")):
        try:
            name = asked_mechanism(altered(HONEST.upload().to_record(), way, text))
        except ValueError:
            continue
        assert isinstance(name, str)
