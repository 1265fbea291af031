"""A contract with Flower's internals: if one of these fails, a new Flower moved something."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedsink.simulation.identity import SERVER_NODE, become, empty_run, set_message_id


@pytest.fixture(autouse=True)
def _identity() -> Iterator[None]:
    names = ("run_id", "task_id", "node_id")
    before = {name: getattr(TaskIdentity, name) for name in names}
    yield
    for name, value in before.items():
        setattr(TaskIdentity, name, value)


def test_a_message_exists_only_for_a_process_that_has_become_a_node() -> None:
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = None
    with pytest.raises(Exception, match=r".+"):
        Message(RecordDict(), dst_node_id=5, message_type="query")
    become(3, SERVER_NODE)
    message = Message(RecordDict(), dst_node_id=5, message_type="query")
    assert (message.metadata.run_id, message.metadata.src_node_id) == (3, SERVER_NODE)


def test_a_message_takes_the_id_it_is_given_and_a_reply_names_it() -> None:
    become(1, SERVER_NODE)
    message = Message(RecordDict(), dst_node_id=5, message_type="query")
    set_message_id(message, "41")
    assert message.metadata.message_id == "41"
    reply = Message(RecordDict(), reply_to=message)
    assert reply.metadata.reply_to_message_id == "41"
    assert (reply.metadata.src_node_id, reply.metadata.dst_node_id) == (5, SERVER_NODE)


def test_an_empty_run_has_its_number() -> None:
    assert empty_run(12).run_id == 12
