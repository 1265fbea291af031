from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from hypothesis import given
from hypothesis import strategies as st

from fedsink.errors import ProtocolVersionError
from fedsink.protocol.failure_codes import OTHER_VERSION, failure_code
from fedsink.protocol.packing import PROTOCOL_VERSION, digest, pack, packed, unpack

TYPE = "train.dp_sinkhorn"
STATED = json.dumps({"protocol": PROTOCOL_VERSION})
DTYPES = [torch.float32, torch.float64, torch.int64, torch.bool]


def record_of(text: str, arrays: dict[str, Array]) -> RecordDict:
    return RecordDict({"fields": ConfigRecord({"json": text}), "arrays": ArrayRecord(arrays)})


def stored(array: np.ndarray, **changes: Any) -> Array:
    parts: dict[str, Any] = {
        "dtype": str(array.dtype), "shape": array.shape, "stype": "fedsink.raw",
        "data": array.tobytes(),
    }  # fmt: skip
    return Array(**{**parts, **changes})


def over_the_wire(record: RecordDict) -> RecordDict:
    return recorddict_from_proto(recorddict_to_proto(record))


@given(
    shape=st.lists(st.integers(0, 3), max_size=3),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_unpack_inverts_pack_to_the_last_bit(
    shape: list[int], dtype: torch.dtype, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    array = torch.randn(shape, generator=random).to(dtype)
    fields = {"text": "ε", "none": None, "number": 0.1, "list": [1, {"a": True}]}
    read, arrays = unpack(over_the_wire(pack(fields, {"x": array, "empty": torch.zeros(0, 4)})))
    assert read == fields
    assert arrays["x"].dtype == dtype
    assert torch.equal(arrays["x"], array)
    assert arrays["x"].shape == array.shape
    assert arrays["empty"].shape == (0, 4)


def test_a_column_of_a_transposed_tensor_is_packed_as_it_reads() -> None:
    array = torch.arange(6.0).reshape(2, 3).T[1:]
    assert torch.equal(unpack(pack({}, {"x": array}))[1]["x"], array)


class Bomb:
    """Unpickling it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_is_never_executed(tmp_path: Path) -> None:
    victim = tmp_path / "executed"
    as_object = io.BytesIO()
    np.save(as_object, np.array([Bomb(victim)], dtype=object), allow_pickle=True)
    for data in (as_object.getvalue(), pickle.dumps(Bomb(victim))):
        record = record_of("{}", {"x": stored(np.zeros(1), data=data)})
        with pytest.raises(ValueError, match="Malformed message"):
            unpack(record)
    assert not victim.exists()
    pickle.loads(pickle.dumps(Bomb(victim)))  # the bomb does go off where it is unpickled
    assert victim.exists()


ZEROS = np.zeros(3, dtype=np.float32)


def zipped() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, x=ZEROS)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "array",
    [
        *(stored(ZEROS, data=data) for data in (
            b"", b"garbage", zipped(), b"PK\x03\x04 no archive", ZEROS.tobytes()[:-1],
            ZEROS.tobytes() + b"\0")),
        stored(ZEROS, dtype="float64"), stored(ZEROS, shape=(4,)), stored(ZEROS, shape=(-3,)),
        stored(ZEROS, stype="pickle", data=pickle.dumps(1)), stored(np.array(["text"])),
        Array(ZEROS),
    ],
)  # fmt: skip
def test_an_array_that_is_not_what_it_says_is_malformed(array: Array) -> None:
    with pytest.raises(ValueError, match=r"^Malformed message: \w+\.$"):
        unpack(record_of(STATED, {"x": array}))


@pytest.mark.parametrize("version", [None, 4, 6, "5", [5], {"5": 5}])
def test_another_version_is_refused_by_name(version: Any) -> None:
    text = json.dumps({} if version is None else {"protocol": version})
    with pytest.raises(ProtocolVersionError, match="this one 5: install one version of fedsink"):
        unpack(record_of(text, {}))
    assert failure_code(ProtocolVersionError(version, 5), 0) == OTHER_VERSION


def test_the_version_is_stated_and_is_no_field() -> None:
    record = pack({"round": 1}, {})
    text = str(record.config_records["fields"]["json"])
    assert json.loads(text) == {"round": 1, "protocol": PROTOCOL_VERSION}
    assert unpack(record)[0] == {"round": 1}


@pytest.mark.parametrize("opening", ["[", '{"a": ', '[{"a": '])
@pytest.mark.parametrize("depth", [*range(12, 20), 31, 32, *range(900, 1000, 10)])
def test_fields_are_not_so_deep_that_a_look_at_them_reaches_pythons_limit(
    opening: str, depth: int
) -> None:
    """Fields parsed near that limit would fail later, wherever they are shown or written."""
    levels = depth * len(opening.replace('"a": ', ""))
    closing = {"[": "]", '{"a": ': "}", '[{"a": ': "}]"}[opening]
    record = record_of(f'{STATED[:-1]}, "x": {opening * depth}0{closing * depth}}}', {})
    if levels <= 30:
        assert list(unpack(record)[0]) == ["x"]
    elif levels >= 32:
        with pytest.raises(ValueError, match=r"^Malformed message: (Value|Recursion)Error\.$"):
            unpack(record)


@pytest.mark.parametrize(
    "record",
    [
        RecordDict(), RecordDict({"fields": ConfigRecord({"json": "{}"})}),
        RecordDict({"arrays": ArrayRecord({})}),
        RecordDict({"fields": ConfigRecord({"text": "{}"}), "arrays": ArrayRecord({})}),
        *(record_of(text, {}) for text in (
            "", "{", "[1]", "3", "null", '"fields"', "[" * 100_000)),
    ],
)  # fmt: skip
def test_a_record_that_lacks_a_part_or_holds_no_object_is_malformed(record: RecordDict) -> None:
    with pytest.raises(ValueError, match=r"^Malformed message: "):
        unpack(record)


def test_a_fields_digest_is_the_same_on_both_sides_of_the_wire(
    make_request: Callable[..., Any],
) -> None:
    record = make_request().to_record()
    assert (
        digest(TYPE, over_the_wire(record))
        == digest(TYPE, record)
        == digest(TYPE, make_request().to_record())
    )


@given(
    shapes=st.lists(st.lists(st.integers(0, 3), max_size=3), max_size=3),
    dtype=st.sampled_from(DTYPES),
)
def test_what_is_packed_has_the_digest_of_its_record(
    shapes: list[list[int]], dtype: torch.dtype
) -> None:
    """A client's noise is therefore the same whether or not its request has travelled."""
    arrays = {f"x{n}": torch.arange(81)[:size].to(dtype) for n, size in enumerate(map(sum, shapes))}
    arrays |= {f"y{n}": torch.ones(shape).to(dtype) for n, shape in enumerate(shapes)}
    asked = packed({"run": "ü", "rounds": [3]}, arrays)
    assert digest(TYPE, asked) == digest(TYPE, asked.record())
    assert digest(TYPE, asked) == digest(TYPE, over_the_wire(asked.record()))


@given(name=st.sampled_from(["x", "y"]), data=st.data())
def test_any_changed_bit_of_an_array_makes_another_digest(name: str, data: st.DataObject) -> None:
    """Pitfall 14: a replayed round with one changed bit in its images must get other noise."""
    arrays = {"x": torch.arange(6.0), "y": torch.arange(3)}
    before = digest(TYPE, pack({"a": 1}, arrays))
    raw = arrays[name].numpy().view(np.uint8)
    bit = data.draw(st.integers(0, 8 * raw.size - 1))
    raw[bit // 8] ^= 1 << bit % 8
    assert digest(TYPE, pack({"a": 1}, arrays)) != before


@given(data=st.data())
def test_any_changed_field_makes_another_digest(data: st.DataObject) -> None:
    """Pitfall 14: a reply is found again by its whole request."""
    fields = {"round": 3, "lam": 0.1, "view": {"shape": [2]}, "label": None}
    text = json.dumps(fields, sort_keys=True)
    place = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.characters(codec="ascii").filter(lambda c: c != text[place]))
    changed = text[:place] + letter + text[place + 1 :]
    assert digest(TYPE, record_of(changed, {})) != digest(TYPE, record_of(text, {}))


def test_digest_tells_message_types_apart() -> None:
    """The same content sent as two types of message asks for two functions of the data."""
    record = pack({"a": 1}, {"x": torch.zeros(4)})
    types = ("train.dp_sinkhorn", "train.parameter_gradient", "train.privatize_once", "")
    assert len({digest(message_type, record) for message_type in types}) == len(types)


def test_digest_tells_types_shapes_and_names_apart() -> None:
    x = torch.zeros(4, dtype=torch.int64)
    arrays = [
        {"x": x}, {"y": x}, {"x": x.reshape(2, 2)}, {"x": x.double()}, {"x": x, "y": x},
        {"x": torch.zeros(8, dtype=torch.int32)}, {},
    ]  # fmt: skip
    assert len({digest(TYPE, pack({}, each)) for each in arrays}) == len(arrays)
    assert digest(TYPE, pack({}, {"x": x, "y": x})) == digest(TYPE, pack({}, {"y": x, "x": x}))


def test_no_choice_of_names_and_types_makes_two_records_read_alike() -> None:
    """Pitfall 14: a server that finds two requests of one digest gets the same noise twice."""
    one = stored(ZEROS, dtype="a", data=b"1|b|c|(3,)|2")
    pairs = [
        # A separator inside the data, against a second array.
        (
            {"a": stored(ZEROS, data=b"1|b|float32|(3,)|2")},
            {"a": stored(ZEROS, data=b"1"), "b": stored(ZEROS, data=b"2")},
        ),
        # The border between name and type moved, without and with a separator inside.
        ({"x": stored(ZEROS, dtype="ab")}, {"xa": stored(ZEROS, dtype="b")}),
        ({"x": stored(ZEROS, dtype="a|b")}, {"x|a": stored(ZEROS, dtype="b")}),
        ({"a": one}, {"a": stored(ZEROS, dtype="a", data=b"1"), "b": stored(ZEROS, dtype="c")}),
    ]
    for left, right in pairs:
        assert digest(TYPE, record_of("{}", left)) != digest(TYPE, record_of("{}", right))
    assert digest(TYPE, record_of("{}|x", {})) != digest(
        TYPE, record_of("{}", {"x": stored(ZEROS)})
    )
