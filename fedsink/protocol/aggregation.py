"""Messages of secure aggregation between a server and nodes: five trips for one request.

A trip holds the public numbers of the sum and bytes of `fedsink.secagg`. Four trips are queries;
the third goes with the request itself, whose digest names the sum and does not change by it. An
operator's signature covers `trip_bytes` beside the request's digest.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fedsink.secagg.parameters import Parameters
from fedsink.secagg.refusals import AggregationError

if TYPE_CHECKING:
    from flwr.app import RecordDict

KEYS, SHARES, SURVIVORS, UNMASK = TRIPS = (
    "aggregation_keys",
    "aggregation_shares",
    "aggregation_survivors",
    "aggregation_unmask",
)
"""Queries: a message's type is ``query.NAME``."""

_RECORD = "aggregation"
_LONGEST = 1 << 20  # characters of the public numbers: ten thousand clients are some sixty thousand


def put_trip(record: RecordDict, parameters: Parameters, content: bytes = b"") -> RecordDict:
    """Adds a trip to a message, and returns the message.

    Args:
        record: content of the message.
        parameters: of the sum.
        content: what the server forwards.
    """
    from flwr.app import ConfigRecord

    stated = json.dumps(parameters.to_dict(), sort_keys=True)
    record[_RECORD] = ConfigRecord({"parameters": stated, "content": content})
    return record


def has_trip(record: RecordDict) -> bool:
    """Tells whether a message belongs to secure aggregation."""
    return _RECORD in record


def trip_bytes(record: RecordDict) -> bytes:
    """Returns all that a trip says, for signatures; empty where the message holds no trip."""
    if not has_trip(record):
        return b""
    text, content = _said(record)
    said = text.encode()
    return len(said).to_bytes(8, "big") + said + content


def trip_of(record: RecordDict, most: int) -> tuple[Parameters, bytes]:
    """Returns the public numbers and the forwarded bytes of a trip.

    Args:
        record: content of the message.
        most: number of clients that there are: a sum names no more.

    Raises:
        AggregationError: such numbers protect nobody.
        ValueError: the message holds no trip.
    """
    try:
        text, content = _said(record)
        if len(text) > _LONGEST:
            raise ValueError
        values = json.loads(text)
        if len(values["clients"]) > most:
            raise ValueError
        return Parameters.from_dict(values), content
    except AggregationError:
        raise
    except Exception as error:  # a hostile record makes parsers raise whatever they like
        raise ValueError(f"Malformed trip: {type(error).__name__}.") from error


def _said(record: RecordDict) -> tuple[str, bytes]:
    stated = record.config_records[_RECORD]
    text, content = stated["parameters"], stated["content"]
    if not isinstance(text, str) or not isinstance(content, bytes):
        raise ValueError("Malformed trip.")
    return text, content


def reply_with(content: bytes) -> RecordDict:
    """Returns a node's answer to a trip."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({_RECORD: ConfigRecord({"content": content})})


def content_of(reply: RecordDict) -> bytes:
    """Returns the bytes of a node's answer; raises ValueError where there are none."""
    try:
        content = reply.config_records[_RECORD]["content"]
    except Exception as error:  # a hostile record makes parsers raise whatever they like
        raise ValueError(f"Malformed answer: {type(error).__name__}.") from error
    if not isinstance(content, bytes):
        raise ValueError("Malformed answer: its content is no bytes.")
    return content
