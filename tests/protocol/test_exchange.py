from __future__ import annotations

import pytest
import torch
from flwr.app import RecordDict

from fedsink.flower_internals import become
from fedsink.protocol.exchange import Broadcast, Content, Exchange, Nodes, Reduction, connected
from fedsink.protocol.packing import digest, packed


@pytest.fixture
def exchange() -> Exchange:
    become(1, 1)
    even, odd = RecordDict(), RecordDict()
    return Exchange(
        "train.dp_sinkhorn",
        "7",
        [
            Broadcast(Content(list, lambda: even), {0: 1000, 2: 1002}, (1,)),
            Broadcast(Content(list, lambda: odd), {1: 1001}, (1,)),
        ],
    )


def test_it_is_the_messages_in_client_order(exchange: Exchange) -> None:
    messages = list(exchange)
    assert [m.metadata.dst_node_id for m in messages] == [1000, 1001, 1002]
    assert {m.metadata.message_type for m in messages} == {"train.dp_sinkhorn"}
    assert {m.metadata.group_id for m in messages} == {"7"}
    assert messages[0].content is messages[2].content is exchange.broadcasts[0].content.record
    assert messages[1].content is exchange.broadcasts[1].content.record


def test_it_is_a_sequence(exchange: Exchange) -> None:
    assert len(exchange) == 3
    assert exchange[1].metadata.dst_node_id == 1001
    assert [m.metadata.dst_node_id for m in exchange[1:]] == [1001, 1002]
    assert not Exchange("train.dp_sinkhorn", "1", [])


def test_sums_are_no_messages() -> None:
    with pytest.raises(TypeError, match="were added up"):
        list(Reduction([], {}))


def test_a_content_becomes_flowers_record_only_where_it_travels() -> None:
    said = packed({"round": 3}, {"x": torch.ones(2)})
    content = Content(None, lambda: said)
    assert content.payload is said
    assert digest("train.x", content.record) == digest("train.x", said)
    record = RecordDict()
    given = Content(None, lambda: record)
    assert given.payload is given.record is record


@pytest.mark.parametrize("clients", [range(10), range(0, 10, 3), range(2, 10, 3), range(4, 5)])
@pytest.mark.parametrize("known", [0, 1, 5, 10, 12])
def test_connected_virtual_clients_are_those_of_a_dict_of_them(clients: range, known: int) -> None:
    virtual, listed = Nodes(range(known), 1000), {k: 1000 + k for k in range(known)}
    found, expected = connected(virtual, clients), connected(listed, clients)
    assert dict(found) == dict(expected)
    assert len(found) == len(expected)
    assert [*Broadcast(Content.later(), found, (1,)).clients] == [*expected]
    assert all((k in found) == (k in expected) for k in range(-2, 14))
    with pytest.raises(KeyError):
        found[13]
