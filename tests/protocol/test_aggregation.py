"""Tests of `fedsink.protocol.aggregation`: trips as they travel."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict

from fedsink.protocol.aggregation import (
    Trip,
    content_ahead,
    content_of,
    has_trip,
    put_trip,
    reply_with,
    trip_ahead,
    trip_bytes,
    trip_of,
)
from fedsink.protocol.packing import digest, pack
from fedsink.secagg.parameters import Parameters
from fedsink.secagg.refusals import WeakThresholdError

SUM = Parameters("run", "message", (0, 1, 2, 3), bits=32, length=8, minimum=3)


def changed(**fields: Any) -> RecordDict:
    stated = json.dumps({**SUM.to_dict(), **fields})
    return RecordDict({"aggregation": ConfigRecord({"parameters": stated, "content": b""})})


def test_a_trip_is_read_as_it_was_put() -> None:
    record = put_trip(pack({"a": 1}, {}), Trip(SUM, b"forwarded"))
    assert has_trip(record)
    assert trip_of(record, 4) == (SUM, b"forwarded")
    assert content_of(reply_with(b"answer")) == b"answer"


def test_a_trip_of_the_next_sum_travels_with_it() -> None:
    following = replace(SUM, message="next")
    record = put_trip(RecordDict(), Trip(SUM, b"forwarded"), Trip(following, b"roster"))
    assert trip_of(record, 4) == (SUM, b"forwarded")
    assert trip_ahead(record, 4) == (following, b"roster")
    assert trip_ahead(put_trip(RecordDict(), Trip(SUM)), 4) is None
    assert content_ahead(reply_with(b"answer", b"keys")) == b"keys"
    assert content_ahead(reply_with(b"answer", 1022)) == 1022
    with pytest.raises(ValueError, match="nothing is said to the next"):
        content_ahead(reply_with(b"answer"))


def test_signed_bytes_tell_every_trip_from_every_other() -> None:
    following = replace(SUM, message="next")
    trips = [
        put_trip(RecordDict(), Trip(SUM, content), ahead)
        for content in (b"", b"a", b"ab")
        for ahead in (None, Trip(SUM), Trip(following), Trip(following, b"a"))
    ]
    assert len({trip_bytes(record) for record in trips}) == len(trips)
    assert trip_bytes(RecordDict()) == b""
    names = "parameters", "content", "next_parameters", "next"
    divided = [("ab", b""), ("a", b"b"), ("a", b"", "b", b""), ("a", b"", "", b"b"), ("", b"ab")]
    said = [dict(zip(names, parts, strict=False)) for parts in divided]
    signed = {trip_bytes(RecordDict({"aggregation": ConfigRecord(parts)})) for parts in said}
    assert len(signed) == len(divided)


@pytest.mark.parametrize("fields", [{"next": 3}, {"next": "text"}, {"next_parameters": "[" * 9}])
def test_a_malformed_trip_of_the_next_sum_is_a_value_error(fields: dict[str, Any]) -> None:
    record = put_trip(RecordDict(), Trip(SUM), Trip(SUM))
    said = {**record.config_records["aggregation"], **fields}
    with pytest.raises(ValueError, match="Malformed trip"):
        trip_ahead(RecordDict({"aggregation": ConfigRecord(said)}), 4)


def test_a_requests_digest_does_not_change_by_its_trip() -> None:
    plain, with_trip = pack({"a": 1}, {}), put_trip(pack({"a": 1}, {}), Trip(SUM, b"forwarded"))
    assert not has_trip(plain)
    assert digest("train.x", with_trip) == digest("train.x", plain)


def test_a_sum_of_more_clients_than_there_are_is_not_parsed() -> None:
    """Choosing neighbours for very many clients takes minutes."""
    assert trip_of(changed(), 4)[0] == SUM
    with pytest.raises(ValueError, match="Malformed trip"):
        trip_of(changed(), 3)


def test_numbers_that_protect_nobody_keep_their_own_refusal() -> None:
    with pytest.raises(WeakThresholdError):
        trip_of(changed(threshold=1), 4)


@pytest.mark.parametrize(
    "record",
    [
        RecordDict(),
        RecordDict({"aggregation": ConfigRecord({"parameters": "{}", "content": b""})}),
        RecordDict({"aggregation": ConfigRecord({"parameters": 3, "content": b""})}),
        RecordDict({"aggregation": ConfigRecord({"parameters": "[" * 9000, "content": b""})}),
        RecordDict({"aggregation": ConfigRecord({"content": b""})}),
        changed(clients=3),
        changed(bits="32"),
        changed(more=1),
    ],
)
def test_a_malformed_trip_is_a_value_error(record: RecordDict) -> None:
    with pytest.raises(ValueError, match=r"Malformed trip|no parameters|bits"):
        trip_of(record, 4)


@pytest.mark.parametrize("content", ["text", 3, [1]])
def test_an_answer_without_bytes_is_a_value_error(content: Any) -> None:
    with pytest.raises(ValueError, match="Malformed answer"):
        content_of(RecordDict({"aggregation": ConfigRecord({"content": content})}))
    with pytest.raises(ValueError, match="Malformed answer"):
        content_of(RecordDict())
