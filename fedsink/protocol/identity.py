"""Which client a node is, and which protocol it speaks: asked before anything else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedsink.errors import ProtocolVersionError
from fedsink.protocol.records import PROTOCOL_VERSION

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict

_IDENTITY = "identity"


def identity_query(node: int) -> Message:
    """The question to a node."""
    from flwr.app import Message, RecordDict

    return Message(RecordDict(), dst_node_id=node, message_type=f"query.{_IDENTITY}")


def identity_record(client: int) -> RecordDict:
    """A node's answer.

    Args:
        client: its number.
    """
    from flwr.app import ConfigRecord, RecordDict

    stated = ConfigRecord({"client": client, "protocol": PROTOCOL_VERSION})
    return RecordDict({_IDENTITY: stated})


def stated_client(record: RecordDict) -> int:
    """The client's number in a node's answer.

    Raises:
        ProtocolVersionError: the node speaks another version.
        ValueError: the answer is none.
    """
    stated: Mapping[str, object] = record.config_records.get(_IDENTITY, {})
    version, client = stated.get("protocol"), stated.get("client")
    if version != PROTOCOL_VERSION:
        raise ProtocolVersionError(version, PROTOCOL_VERSION)
    if isinstance(client, bool) or not isinstance(client, int) or client < 0:
        raise ValueError(f"{str(client)[:40]!r} is no client's number.")
    return client
