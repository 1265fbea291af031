"""Identity of a node: its number, the protocol it speaks, and a receipt for its ledger.

A server asks for the identity before anything else. To a server a receipt is a text without
meaning: it keeps the receipts of all nodes, and shows all of them to every node that it asks. A
node knows its own receipts by a key that never leaves it, and so finds out that its ledger was put
back (`fedsink.clients.rollback`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from fedsink.errors import ProtocolVersionError
from fedsink.protocol.packing import PROTOCOL_VERSION

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict

LONGEST = 128  # characters of a name or a receipt
MOST_RECEIPTS = 10_000  # that a node looks at
_IDENTITY, _SHOWN, _GIVEN = "identity", "receipts", "owner"


def identity_query(node: int) -> Message:
    """Returns the question for a node's identity."""
    from flwr.app import Message, RecordDict

    return Message(RecordDict(), dst_node_id=node, message_type=f"query.{_IDENTITY}")


def identity_record(client: int) -> RecordDict:
    """Returns a node's answer."""
    from flwr.app import ConfigRecord, RecordDict

    stated = ConfigRecord({"client": client, "protocol": PROTOCOL_VERSION})
    return RecordDict({_IDENTITY: stated})


def stated_client(record: RecordDict) -> int:
    """Returns the client's number in an answer of a node that speaks this version."""
    stated: Mapping[str, object] = record.config_records.get(_IDENTITY, {})
    version, client = stated.get("protocol"), stated.get("client")
    if version != PROTOCOL_VERSION:
        raise ProtocolVersionError(version, PROTOCOL_VERSION)
    if isinstance(client, bool) or not isinstance(client, int) or client < 0:
        raise ValueError(f"{str(client)[:40]!r} is no client's number.")
    return client


class Given(NamedTuple):
    """Name of a node under a policy, and a receipt for its ledger."""

    name: str
    receipt: str


def show_receipts(record: RecordDict, receipts: Iterable[str]) -> None:
    """Adds the receipts that a server keeps to its question for a node's identity."""
    from flwr.app import ConfigRecord

    record[_SHOWN] = ConfigRecord({"receipts": list(receipts)})


def shown_receipts(record: RecordDict) -> list[str]:
    """Returns the receipts in a question: a short list of short texts, or a ValueError."""
    values: Mapping[str, object] = record.config_records.get(_SHOWN, {})
    shown = values.get("receipts", [])
    if (
        not isinstance(shown, list)
        or len(shown) > MOST_RECEIPTS
        or not all(isinstance(text, str) and len(text) <= LONGEST for text in shown)
    ):
        raise ValueError(f"A server shows at most {MOST_RECEIPTS} receipts, each a short text.")
    return [str(text) for text in shown]


def give(record: RecordDict, given: Given) -> None:
    """Adds a node's name and receipt to its answer."""
    from flwr.app import ConfigRecord

    record[_GIVEN] = ConfigRecord(dict(given._asdict()))


def given_by(record: RecordDict) -> Given | None:
    """Returns the name and the receipt in a node's answer; None where either is unusable."""
    values: Mapping[str, object] = record.config_records.get(_GIVEN, {})
    given = Given(str(values.get("name", "")), str(values.get("receipt", "")))
    return given if all(0 < len(text) <= LONGEST for text in given) else None
