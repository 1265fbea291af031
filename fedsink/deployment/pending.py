"""The messages of one exchange on Flower's grid, and what has come of each."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from fedsink.errors import ClientError

log = logging.getLogger("fedsink.server")

CLIENTS_OWN = 1000
"""Error codes from here on are a client's own word; those below are Flower's."""


class Pending:
    """What was asked, and what has come of it; each message may be sent several times.

    A client has stored what it released, so that it answers the same again, and its owner is
    charged once.

    Args:
        grid: Flower's.
        asked: one message for each client; sent at once.

    Raises:
        ClientError: the SuperLink does not take them.
    """

    def __init__(self, grid: Grid, asked: Sequence[Message]) -> None:
        self._grid, self._asked = grid, asked
        self._done: dict[int, Message] = {}  # place in `asked` → a reply, or a client's own error
        self._gone: dict[int, Message] = {}  # place → Flower's error; it may be asked again
        self._sent: dict[str, int] = {}  # id of a message that may be answered → place
        self._last: dict[int, tuple[int, float]] = {}  # place → node and time of the last message
        self._push(dict(enumerate(asked)))

    @property
    def answered(self) -> int:
        """How many have answered with something else than an error."""
        return sum(not reply.has_error() for reply in self._done.values())

    @property
    def possible(self) -> int:
        """How many may still answer, those included that would have to come back."""
        return len(self._asked) - len(self._done)

    @property
    def working(self) -> int:
        """How many may still answer what they were asked."""
        return len(self._asked) - len(self._done) - len(self._gone)

    def replies(self) -> list[Message]:
        """One for each client that said anything, as if from the node that was asked first."""
        said = {**self._gone, **self._done}
        return [_from(said[place], self._asked[place]) for place in sorted(said)]

    def pull(self) -> None:
        """Take what has arrived."""
        if not self._sent:
            return
        for reply in self._grid.pull_messages(list(self._sent)):
            place = self._sent.pop(reply.metadata.reply_to_message_id, None)
            if place is None or place in self._done:
                continue
            if reply.has_error() and reply.error.code < CLIENTS_OWN:
                if place not in self._sent.values():
                    self._gone[place] = reply
                continue
            self._gone.pop(place, None)
            self._done[place] = reply
            self._sent = {sent: other for sent, other in self._sent.items() if other != place}

    def ask_again(self, nodes: Mapping[int, int], before: float) -> None:
        """Ask those again who were gone, are at another node, or have not answered for long.

        Args:
            nodes: node that was asked → node to ask now, of those who are connected.
            before: who was asked before this time (time.monotonic()) is asked again.
        """
        again = {}
        for place, message in enumerate(self._asked):
            node = nodes.get(message.metadata.dst_node_id)
            if place in self._done or node is None:
                continue
            last, since = self._last[place]
            if place in self._gone or node != last or since < before:
                again[place] = Message(
                    message.content,
                    dst_node_id=node,
                    message_type=message.metadata.message_type,
                    group_id=message.metadata.group_id,
                )
        if again:
            log.info("asking %d nodes again", len(again))
            self._push(again)

    def _push(self, messages: Mapping[int, Message]) -> None:
        ids = list(self._grid.push_messages(list(messages.values()))) if messages else []
        if len(ids) != len(messages):
            raise ClientError(
                f"The SuperLink took {len(ids)} of {len(messages)} messages: ask for less in one "
                "(strategy.uses_per_message, strategy.rows)."
            )
        for (place, message), sent in zip(messages.items(), ids, strict=True):
            self._last[place] = message.metadata.dst_node_id, time.monotonic()
            self._gone.pop(place, None)
            if sent is not None:  # else the node is not there, and is asked again
                self._sent[sent] = place


def _from(reply: Message, asked: Message) -> Message:
    """The reply as one to this message: Flower's errors name no node, and clients move."""
    if reply.metadata.src_node_id == asked.metadata.dst_node_id:
        return reply
    return Message(reply.error if reply.has_error() else reply.content, reply_to=asked)
