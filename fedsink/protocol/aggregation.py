"""Messages of secure aggregation between a server and nodes: five trips for one request.

A trip holds the public numbers of the sum and bytes of `fedsink.secagg`. Four trips are queries;
the third goes with the request itself, whose digest does not change by it. Two trips of the *next*
sum travel with trips of this one (`AHEAD`), so that a request costs three messages, not five. An
operator's signature covers `trip_bytes` beside the request's digest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from fedsink.secagg.parameters import Parameters
from fedsink.secagg.refusals import AggregationError
from fedsink.values import read_json

if TYPE_CHECKING:
    from flwr.app import RecordDict

KEYS = "aggregation_keys"
SHARES = "aggregation_shares"
SURVIVORS = "aggregation_survivors"
UNMASK = "aggregation_unmask"
TRIPS = (KEYS, SHARES, SURVIVORS, UNMASK)
"""Queries: a message's type is ``query.NAME``."""

MASKED = "masked"
"""The trip that goes with the request."""

AHEAD = {MASKED: KEYS, SURVIVORS: SHARES}
"""Trip of this sum → trip of the next sum that may travel with it."""

_RECORD = "aggregation"
_PARAMETERS, _CONTENT = "parameters", "content"
_NEXT_PARAMETERS, _NEXT, _REFUSED = "next_parameters", "next", "next_refused"
_LONGEST = 1 << 20  # characters of the public numbers: ten thousand clients are some sixty thousand


class Trip(NamedTuple):
    """A trip of one sum: its public numbers, and what the server forwards."""

    parameters: Parameters
    content: bytes = b""


def sum_name(message_type: str, round: int) -> str:
    """Returns the name of a request's sum within its run; `round` is the first it asks for."""
    return f"{message_type} {round}"


def put_trip(record: RecordDict, trip: Trip, ahead: Trip | None = None) -> RecordDict:
    """Adds a trip of this sum, and of the next one (`AHEAD`), to a message; returns the message."""
    from flwr.app import ConfigRecord

    values: dict[str, Any] = {_PARAMETERS: _text(trip.parameters), _CONTENT: trip.content}
    if ahead is not None:
        values |= {_NEXT_PARAMETERS: _text(ahead.parameters), _NEXT: ahead.content}
    record[_RECORD] = ConfigRecord(values)
    return record


@lru_cache(maxsize=8)
def _text(parameters: Parameters) -> str:
    return json.dumps(parameters.to_dict(), sort_keys=True)


def has_trip(record: RecordDict) -> bool:
    """Tells whether a message belongs to secure aggregation."""
    return _RECORD in record


def trip_bytes(record: RecordDict) -> bytes:
    """Returns all that a trip says, for signatures; empty where the message holds no trip."""
    if not has_trip(record):
        return b""
    trips = [_part(record, _PARAMETERS, _CONTENT)]
    if _NEXT_PARAMETERS in record.config_records[_RECORD]:
        trips.append(_part(record, _NEXT_PARAMETERS, _NEXT))
    parts = (part for text, content in trips for part in (text.encode(), content))
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def trip_of(record: RecordDict, most: int) -> Trip:
    """Returns the trip of this sum that a message holds, over at most `most` clients.

    Numbers that protect nobody are an AggregationError, no trip is a ValueError.
    """
    return _trip(record, most, _PARAMETERS, _CONTENT)


def trip_ahead(record: RecordDict, most: int) -> Trip | None:
    """Returns the trip of the next sum, if the message holds one; raises like `trip_of`."""
    if _NEXT_PARAMETERS not in record.config_records[_RECORD]:
        return None
    return _trip(record, most, _NEXT_PARAMETERS, _NEXT)


def _trip(record: RecordDict, most: int, parameters: str, content: str) -> Trip:
    try:
        text, forwarded = _part(record, parameters, content)
        if len(text) > _LONGEST:
            raise ValueError
        values = read_json(text)
        if len(values["clients"]) > most:
            raise ValueError
        return Trip(Parameters.from_dict(values), forwarded)
    except AggregationError:
        raise
    except Exception as error:  # a hostile record makes parsers raise whatever they like
        raise ValueError(f"Malformed trip: {type(error).__name__}.") from error


def _part(record: RecordDict, parameters: str, content: str) -> tuple[str, bytes]:
    values = record.config_records[_RECORD]
    text, forwarded = values[parameters], values[content]
    if not isinstance(text, str) or not isinstance(forwarded, bytes):
        raise ValueError("Malformed trip.")
    return text, forwarded


def reply_with(content: bytes, ahead: bytes | int | None = None) -> RecordDict:
    """Returns a node's answer to a trip, and to the next sum's: its content or a refusal's code."""
    from flwr.app import ConfigRecord, RecordDict

    values: dict[str, Any] = {_CONTENT: content}
    if ahead is not None:
        values[_REFUSED if isinstance(ahead, int) else _NEXT] = ahead
    return RecordDict({_RECORD: ConfigRecord(values)})


def content_of(reply: RecordDict) -> bytes:
    """Returns the bytes of a node's answer; raises ValueError where there are none."""
    try:
        content = reply.config_records[_RECORD][_CONTENT]
    except Exception as error:  # a hostile record makes parsers raise whatever they like
        raise ValueError(f"Malformed answer: {type(error).__name__}.") from error
    if not isinstance(content, bytes):
        raise ValueError("Malformed answer: its content is no bytes.")
    return content


def content_ahead(reply: RecordDict) -> bytes | int:
    """Returns the answer to the next sum's trip, or the code of its refusal, or a ValueError."""
    values: Mapping[str, Any] = reply.config_records.get(_RECORD, {})
    code, content = values.get(_REFUSED), values.get(_NEXT)
    if isinstance(code, int):
        return code
    if not isinstance(content, bytes):
        raise ValueError("Malformed answer: nothing is said to the next sum's trip.")
    return content
