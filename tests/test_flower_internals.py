"""Flower's internals are as fedsink uses them: the tests name any change of a new Flower."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    PullObjectRequest,
    PullObjectResponse,
)
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from fedsink import flower_internals
from fedsink.flower_internals import (
    ATTRIBUTES,
    CALLS,
    FIELDS,
    SERVER_NODE,
    CompleteReplies,
    ForwardingGrid,
    become,
    complete_replies,
    empty_run,
    set_message_id,
    told_by_superlink,
)
from fedsink.simulation.grid import SimulationGrid

PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}


def found(name: str) -> Any:
    """Object that MODULE:NAME names."""
    module, _, words = name.partition(":")
    try:
        thing: Any = importlib.import_module(module)
        for word in words.split("."):
            thing = getattr(thing, word)
    except (ImportError, AttributeError) as error:
        pytest.fail(f"Flower has no {name} any more: {error}.")
    return thing


@pytest.mark.parametrize("name", CALLS)
def test_what_is_called_takes_what_it_is_given(name):
    taken = inspect.signature(found(name)).parameters
    given = CALLS[name]
    told = f"Flower has changed {name}: it takes {list(taken)}, and is given {list(given)}."
    assert set(given) <= set(taken), told
    fixed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = {p.name for p in taken.values() if p.default is p.empty and p.kind not in fixed}
    assert required <= set(given), told
    assert [parameter for parameter in taken if parameter in given] == list(given), told


@pytest.mark.parametrize("name", FIELDS)
def test_messages_of_the_protocol_have_their_fields(name):
    fields = set(found(name).DESCRIPTOR.fields_by_name)
    assert set(FIELDS[name]) <= fields, f"Flower has changed {name}: it has {sorted(fields)}."


def _instances() -> dict[str, Any]:
    """Instances that have the attributes a class does not show."""
    become(1, SERVER_NODE)
    return {
        "flwr.app:Metadata": Message(RecordDict(), dst_node_id=5, message_type="query").metadata,
        "flwr.superlink.grid:HttpGrid": HttpGrid(token="token"),
        "flwr.supercore.error:FlowerError": found("flwr.supercore.error:FlowerError").from_json(
            '{"code": 1, "public_message": "told"}'
        ),
        "flwr.supercore.run:Run": empty_run(1),
    }


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_classes_have_the_attributes_that_are_used(name):
    there = {*dir(found(name)), *dir(type(found(name)))}  # properties of a metaclass count
    if (instance := _instances().get(name)) is not None:
        there |= set(vars(instance))
    missing = set(ATTRIBUTES[name]) - there
    assert missing == set(), f"Flower has changed {name}: it lacks {sorted(missing)}."


def test_a_grid_has_to_define_no_more_than_it_does():
    abstract = set(Grid.__abstractmethods__)
    assert abstract == set(ATTRIBUTES["flwr.serverapp:Grid"])
    assert abstract <= set(vars(ForwardingGrid))
    assert SimulationGrid.__abstractmethods__ - abstract == {"execute", "keep"}


def test_the_lists_name_all_that_is_imported():
    source = Path(str(flower_internals.__file__)).read_text()
    imported = {
        f"{node.module}:{alias.name}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("flwr.")
        if node.module not in PUBLIC
        for alias in node.names
    }
    classes_of_methods = r":(\w+)\.\w+$"
    listed = {re.sub(classes_of_methods, r":\1", name) for name in (*CALLS, *FIELDS, *ATTRIBUTES)}
    assert imported - listed == set()
    # Types that fedsink receives or subclasses, imported from public modules or not by name.
    assert listed - imported == {
        "flwr.app:Message", "flwr.app:Metadata", "flwr.proto.fleet_pb2:ActivateNodeResponse",
        "flwr.proto.fleet_pb2:PullMessagesResponse", "flwr.proto.fleet_pb2:PushMessagesResponse",
        "flwr.proto.heartbeat_pb2:SendNodeHeartbeatResponse",
        "flwr.proto.runtime_pb2:PullAppMessagesResponse", "flwr.serverapp:Grid",
        "flwr.supercore.runtime:RuntimeHttpClient",
    }  # fmt: skip


@pytest.fixture
def _identity() -> Iterator[None]:
    names = ("_run_id", "_task_id", "_node_id")
    before = {name: getattr(TaskIdentity, name) for name in names}
    yield
    for name, value in before.items():
        setattr(TaskIdentity, name, value)


@pytest.mark.usefixtures("_identity")
def test_a_message_exists_only_for_a_process_that_has_become_a_node():
    for name in ("run_id", "task_id", "node_id"):
        setattr(TaskIdentity, name, None)
    with pytest.raises(Exception, match=r".+"):
        Message(RecordDict(), dst_node_id=5, message_type="query")
    become(3, SERVER_NODE)
    message = Message(RecordDict(), dst_node_id=5, message_type="query")
    assert (message.metadata.run_id, message.metadata.src_node_id) == (3, SERVER_NODE)


@pytest.mark.usefixtures("_identity")
def test_a_message_takes_the_id_it_is_given_and_a_reply_names_it():
    become(1, SERVER_NODE)
    message = Message(RecordDict(), dst_node_id=5, message_type="query")
    set_message_id(message, "41")
    assert message.metadata.message_id == "41"
    reply = Message(RecordDict(), reply_to=message)
    assert reply.metadata.reply_to_message_id == "41"
    assert (reply.metadata.src_node_id, reply.metadata.dst_node_id) == (5, SERVER_NODE)


def test_an_empty_run_has_its_number():
    assert empty_run(12).run_id == 12


def test_a_superlinks_own_sentence_is_read_and_others_are_none():
    assert told_by_superlink('{"code": 1, "public_message": "It is full."}') == "It is full."
    assert told_by_superlink("<html>502</html>") is None


class Link:
    """A SuperLink's side of Flower's calls; as there, a reply is announced once."""

    def __init__(self) -> None:
        self.replies: dict[str, Message] = {}
        self.parts: dict[str, bytes] = {}
        self.given_up = False
        self.asked: list[list[str]] = []
        self.confirmed: list[str] = []

    def reply(self, sent: str, value: int) -> dict[str, bytes]:
        """Announces a reply. Returns its parts, which are still to be uploaded."""
        metadata = Metadata(1, "", 7, 1, sent, "", 0.0, 60.0, "train.x")
        message = cast(Any, Message)(
            metadata=metadata, content=RecordDict({"answer": ConfigRecord({"value": value})})
        )
        metadata.__dict__["_message_id"] = message.object_id
        self.replies[sent] = message
        return {name: part.deflate() for name, part in get_all_nested_objects(message).items()}

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:
        self.asked.append(sorted(request.message_ids))
        here = [self.replies.pop(sent) for sent in request.message_ids if sent in self.replies]
        with no_object_id_recompute():
            return PullAppMessagesResponse(
                messages_list=[message_to_proto(remove_content_from_message(m)) for m in here],
                message_object_trees=[get_object_tree(m) for m in here],
            )

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:
        content = self.parts.get(request.object_id, b"")
        found = bool(content) or not self.given_up
        return PullObjectResponse(
            object_found=found, object_available=bool(content), object_content=content
        )

    def ConfirmMessageReceived(self, request: ConfirmMessageReceivedRequest) -> None:
        self.confirmed.append(request.message_object_id)


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def replies(link: Link) -> CompleteReplies:
    grid = HttpGrid(token="token")
    grid._client = cast(Any, link)
    grid.set_run(Run.create_empty(1))
    assert complete_replies(grid).__func__ is CompleteReplies.pull  # type: ignore[attr-defined]
    return CompleteReplies(grid)


def values(replies: list[Message]) -> dict[str, object]:
    return {r.metadata.reply_to_message_id: r.content["answer"]["value"] for r in replies}


def test_a_reply_of_which_half_is_there_blocks_no_other(link, replies):
    half, whole = link.reply("slow", 1), link.reply("quick", 2)
    first, *rest = half
    link.parts |= whole | {first: half[first]}
    started = time.monotonic()
    assert values(replies.pull(["slow", "quick"])) == {"quick": 2}
    assert values(replies.pull(["slow"])) == {}
    assert time.monotonic() - started < 0.9  # Flower's first pause before it looks again
    assert len(link.confirmed) == 1
    link.parts |= {name: half[name] for name in rest}
    assert values(replies.pull(["slow", "other"])) == {"slow": 1}
    assert link.asked == [["quick", "slow"], ["other"]]
    assert len(link.confirmed) == 2


def test_an_upload_that_was_given_up_is_asked_about_again(link, replies):
    link.reply("dead", 1)
    assert replies.pull(["dead"]) == []
    link.given_up = True
    assert replies.pull(["dead"]) == []
    link.parts |= link.reply("dead", 2)  # as the error that Flower makes of it
    assert values(replies.pull(["dead"])) == {"dead": 2}
    assert link.asked == [["dead"], ["dead"]]


def test_what_nobody_waits_for_is_forgotten(link, replies):
    half = link.reply("late", 1)
    assert replies.pull(["late"]) == []
    assert replies.pull(["next"]) == []
    link.parts |= half
    assert replies.pull(["late"]) == []
