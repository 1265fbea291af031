"""A node's client number, and the protocol that the node speaks."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict

from fedsink.errors import ProtocolVersionError
from fedsink.protocol.node_identity import identity_record, stated_client
from fedsink.protocol.packing import PROTOCOL_VERSION


def record(**stated: Any) -> RecordDict:
    return RecordDict({"identity": ConfigRecord(stated)})


def test_a_node_says_its_number_and_version_and_nothing_else() -> None:
    said = identity_record(7)
    assert dict(said.config_records["identity"]) == {"client": 7, "protocol": PROTOCOL_VERSION}
    assert len(said) == 1
    assert stated_client(said) == 7


@pytest.mark.parametrize(
    "other", [RecordDict(), record(client=1), record(client=1, protocol=2), record(protocol="3")]
)
def test_another_version_is_refused(other: RecordDict) -> None:
    with pytest.raises(ProtocolVersionError, match="install one version of fedsink on both"):
        stated_client(other)


@pytest.mark.parametrize("client", [-1, True, "1", 1.0, [1], b"1"])
def test_a_number_that_is_none_is_refused(client: Any) -> None:
    with pytest.raises(ValueError, match="is no client's number"):
        stated_client(record(client=client, protocol=PROTOCOL_VERSION))
    with pytest.raises(ValueError, match="is no client's number"):
        stated_client(record(protocol=PROTOCOL_VERSION))
