"""Replies as they arrive at the SuperLink: one of which half is there holds up nobody."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
    pull_objects,
)
from flwr.superlink.grid import HttpGrid


class Arrivals:
    """Takes the replies that the SuperLink holds whole.

    Flower's `pull_messages` waits for all parts of each reply that has begun to arrive: three
    minutes where its node died in the upload, in which no other reply is seen and no round ends.
    Here such a reply is left for the next look.

    Args:
        grid: Flower's.
    """

    def __init__(self, grid: HttpGrid) -> None:
        self._grid = grid
        self._begun: dict[str, tuple[ObjectTree, dict[str, bytes]]] = {}  # message → its reply

    def pull(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to these messages that are whole; never waits for a node.

        What has begun to arrive for other messages is forgotten: nobody waits for it any more.
        """
        asked = list(message_ids)
        self._begun = {sent: self._begun[sent] for sent in asked if sent in self._begun}
        waiting = [sent for sent in asked if sent not in self._begun]
        if waiting:
            response = self._grid._runtime_client.PullMessages(
                PullAppMessagesRequest(message_ids=waiting)
            )
            for message, tree in zip(
                response.messages_list, response.message_object_trees, strict=True
            ):
                self._begun[message.metadata.reply_to_message_id] = tree, {}
        replies = []
        for sent, (tree, parts) in list(self._begun.items()):
            try:
                whole = self._fetch(tree, parts)
            except ObjectPullError:  # the upload was given up; Flower has an error for this message
                del self._begun[sent]
                continue
            if whole:
                del self._begun[sent]
                replies.append(self._received(tree, parts))
        return replies

    def _fetch(self, tree: ObjectTree, parts: dict[str, bytes]) -> bool:
        """Add the parts that have arrived; whether all have."""
        pull = make_pull_object_fn_protobuf(
            self._grid._runtime_client.PullObject, self._grid.node, self._grid.run.run_id
        )

        def take(part: str) -> bytes:
            try:
                parts[part] = pull(part)
            except ObjectUnavailableError:
                return b""
            return parts[part]

        names = {node.object_id for node in iterate_object_tree(tree)}
        pull_objects(sorted(names - parts.keys()), take)
        return names == parts.keys()

    def _received(self, tree: ObjectTree, parts: dict[str, bytes]) -> Message:
        self._grid._runtime_client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=self._grid.node,
                run_id=self._grid.run.run_id,
                message_object_id=tree.object_id,
            )
        )
        reply = cast(Message, inflate_object_from_contents(tree.object_id, parts))
        reply.metadata.__dict__["_message_id"] = tree.object_id
        return reply
