"""Replies are taken when they are whole; those of which half is there hold up nobody."""

from __future__ import annotations

import time
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
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.run import Run
from flwr.superlink.grid import HttpGrid

from fedsink.deployment.arrivals import Arrivals


class Link:
    """A SuperLink's side of Flower's calls; as there, a reply is announced once."""

    def __init__(self) -> None:
        self.replies: dict[str, Message] = {}
        self.parts: dict[str, bytes] = {}
        self.given_up = False
        self.asked: list[list[str]] = []
        self.confirmed: list[str] = []

    def reply(self, sent: str, value: int) -> dict[str, bytes]:
        """Announce a reply; returns its parts, which are still to be uploaded."""
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
def arrivals(link: Link) -> Arrivals:
    grid = HttpGrid(token="token")
    grid._client = cast(Any, link)
    grid.set_run(Run.create_empty(1))
    return Arrivals(grid)


def values(replies: list[Message]) -> dict[str, object]:
    return {r.metadata.reply_to_message_id: r.content["answer"]["value"] for r in replies}


def test_a_reply_of_which_half_is_there_holds_up_nobody(link: Link, arrivals: Arrivals) -> None:
    half, whole = link.reply("slow", 1), link.reply("quick", 2)
    first, *rest = half
    link.parts |= whole | {first: half[first]}
    started = time.monotonic()
    assert values(arrivals.pull(["slow", "quick"])) == {"quick": 2}
    assert values(arrivals.pull(["slow"])) == {}
    assert time.monotonic() - started < 0.9  # Flower's first pause before it looks again
    assert len(link.confirmed) == 1
    link.parts |= {name: half[name] for name in rest}
    assert values(arrivals.pull(["slow", "other"])) == {"slow": 1}
    assert link.asked == [["quick", "slow"], ["other"]]
    assert len(link.confirmed) == 2


def test_an_upload_that_was_given_up_is_asked_about_again(link: Link, arrivals: Arrivals) -> None:
    link.reply("dead", 1)
    assert arrivals.pull(["dead"]) == []
    link.given_up = True
    assert arrivals.pull(["dead"]) == []
    link.parts |= link.reply("dead", 2)  # as the error that Flower makes of it
    assert values(arrivals.pull(["dead"])) == {"dead": 2}
    assert link.asked == [["dead"], ["dead"]]


def test_what_nobody_waits_for_is_forgotten(link: Link, arrivals: Arrivals) -> None:
    half = link.reply("late", 1)
    assert arrivals.pull(["late"]) == []
    assert arrivals.pull(["next"]) == []
    link.parts |= half
    assert arrivals.pull(["late"]) == []
