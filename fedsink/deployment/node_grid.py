"""Real nodes as Flower's grid: nodes may leave and return, and waiting for them is limited.

The training loop of a deployment gets a `NodeGrid`. It knows which client lives at which node;
`Inquiry` is one exchange of messages with nodes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

from fedsink.errors import ClientError
from fedsink.flower_internals import ForwardingGrid
from fedsink.protocol.exchange import Exchange, MessageList
from fedsink.protocol.signing import identity_query, stated_client
from fedsink.strategies.base.round_strategy import check

log = logging.getLogger("fedsink.server")

CLIENTS_OWN = 1000
"""Error codes from here on are a client's own word; those below are Flower's."""

_LOOK_SECONDS = 2.0  # between two looks at who is connected
_IDENTITY_SECONDS = 300.0  # for a node to say which client it is: it starts a process first


@dataclass(frozen=True)
class Patience:
    """Seconds to wait for nodes."""

    wait: float = 60.0  # until nodes connect, or return
    round: float | None = None  # until the quorum is enough; None: all nodes are waited for
    again: float = 120.0  # until a node that has not answered is asked again
    poll: float = 0.2  # between two looks for replies


class NodeGrid(ForwardingGrid):
    """Knows which client is at which node, and collects the replies that arrive in time.

    An exchange ends when everybody has answered; or with the quorum, once the round's time is up
    or all others have refused or are gone; or when the quorum can no longer be reached. A reply
    that arrives later is not read: its client has charged it, and the round is over.

    `needed` of the K `clients` must be there.
    """

    def __init__(self, grid: Grid, clients: int, needed: int, patience: Patience) -> None:
        super().__init__(grid)
        self._clients, self._needed = clients, needed
        self._patience = patience
        # Client → the nodes that have said they are it, the first in front. A node's id is its
        # key's, which Flower has authenticated, and its word is its own: nobody takes the place of
        # an earlier node that is connected.
        self._nodes_of: dict[int, list[int]] = {}
        self._identified: dict[int, float] = {}  # node → when it was asked which client it is
        self._foreign: dict[int, str] = {}  # node → why it takes no part
        self._present: dict[int, int] | None = None  # client → node, of the last roster

    def roster(self) -> Mapping[int, int]:
        """Returns client number → node id of the connected clients."""
        # Too few of them for too long are a ClientError, and so are two new nodes of one client.
        deadline = time.monotonic() + self._patience.wait
        # Only the first call waits for all clients; later calls take the connected ones.
        wanted = self._clients if self._present is None else self._needed
        while len(present := self._look()) < wanted:
            if time.monotonic() < deadline:
                time.sleep(min(_LOOK_SECONDS, self._patience.wait))
            elif len(present) >= self._needed:
                break
            else:
                why = "".join(f"{reason} " for reason in self._foreign.values())
                raise ClientError(
                    f"{len(present)} of {self._clients} clients are connected after "
                    f"{self._patience.wait:g} s. {why}Start the others, lower clients=, or raise "
                    "engine.wait."
                )
        if present != self._present:  # an unchanged roster stays the same object
            self._present = present
        return self._present

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Returns replies and errors, at most one for each message; see the class for the end."""
        asked = list(messages)
        needed = messages.needed if isinstance(messages, Exchange | MessageList) else None
        quorum = len(asked) if needed is None else needed
        if not asked:
            return []
        inquiry = Inquiry(self._grid, asked)
        started = looked = time.monotonic()
        while True:
            inquiry.pull()
            now = time.monotonic()
            if self._ended(inquiry, quorum, now - started, timeout):
                return inquiry.replies()
            if now - looked >= _LOOK_SECONDS:
                looked = now
                inquiry.ask_again(self._moved(asked), now - self._patience.again)
            time.sleep(self._patience.poll)

    def _ended(self, inquiry: Inquiry, quorum: int, waited: float, timeout: float | None) -> bool:
        """Decides whether a round ends now, after `waited` seconds."""
        if inquiry.everybody_answered:
            return True
        if timeout is not None and waited >= timeout:
            return True
        if inquiry.answered + inquiry.possible < quorum:  # too many have refused
            return True
        if inquiry.answered < quorum:
            return False
        # The quorum is there. The others may answer until the round's time is up.
        time_is_up = self._patience.round is not None and waited >= self._patience.round
        return time_is_up or inquiry.working == 0

    def _look(self, connected: set[int] | None = None) -> dict[int, int]:
        """Returns client → node of the connected clients, after asking new nodes who they are."""
        connected, now = connected or set(self._grid.get_node_ids()), time.monotonic()
        seen = {node for nodes in self._nodes_of.values() for node in nodes}
        # A node without a valid answer is asked again, but not in every round.
        again = self._patience.again
        lately = {node for node, when in self._identified.items() if now - when < again}
        new = sorted(connected - seen - lately)
        self._identified |= dict.fromkeys(new, now)
        for node, client in self._identify(new).items():
            nodes = self._nodes_of.setdefault(client, [])
            nodes.append(node)
            self._foreign.pop(node, None)
            if (first := self._where(connected)[client]) != node:
                log.warning(
                    "node %s says that it is client %s, which the connected node %s is: it waits "
                    "until that one is gone",
                    *(node, client, first),
                )
        return self._where(connected)

    def _where(self, connected: set[int]) -> dict[int, int]:
        """Returns client → the first of its nodes that are connected."""
        found = {
            client: next((node for node in nodes if node in connected), None)
            for client, nodes in sorted(self._nodes_of.items())
        }
        return {client: node for client, node in found.items() if node is not None}

    def _identify(self, nodes: Sequence[int]) -> dict[int, int]:
        """Asks these nodes which clients they are; returns node id → client number."""
        inquiry = Inquiry(self._grid, [identity_query(node) for node in nodes])
        started = time.monotonic()
        inquiry.pull()
        while inquiry.working and (seconds := time.monotonic() - started) < _IDENTITY_SECONDS:
            there = len(self._present or {}) + inquiry.answered
            if there >= self._needed and seconds >= self._patience.wait:
                break
            time.sleep(self._patience.poll)
            inquiry.pull()
        client_of: dict[int, int] = {}
        for reply in inquiry.replies():
            node = reply.metadata.src_node_id
            try:
                check(reply, "saying which client it is")
                client = stated_client(reply.content)
            except ClientError as error:
                if reply.error.code >= CLIENTS_OWN:
                    self._foreign[node] = str(error)
                continue
            except ValueError as error:
                self._foreign[node] = f"Node {node} takes no part: {error}"
                continue
            twin = next((other for other, theirs in client_of.items() if theirs == client), None)
            if twin is not None and client not in self._nodes_of:
                raise ClientError(
                    f"The nodes {twin} and {node} both are client {client}: give each another "
                    "client=."
                )
            client_of[node] = client
        return client_of

    def _moved(self, asked: Sequence[Message]) -> dict[int, int]:
        """Maps each node that was asked to the one where its client is now, if it is connected."""
        client_of = {node: client for client, node in (self._present or {}).items()}
        nodes = [message.metadata.dst_node_id for message in asked]
        connected = set(self._grid.get_node_ids())
        where = self._where(connected)
        if all(client_of.get(node) in where for node in nodes):
            # No client is missing: do not wait until an unknown node says who it is.
            return {node: where[client_of[node]] for node in nodes}
        present = self._look(connected)
        return {node: present[client_of[node]] for node in nodes if client_of.get(node) in present}


class Inquiry:
    """Sends one message to each of several clients, and collects their replies."""

    # It may be sent several times: a client answers with the stored bytes, so its owner is charged
    # once. A client's *place* is that of its message in `asked`, which are sent at once.

    def __init__(self, grid: Grid, asked: Sequence[Message]) -> None:
        self._grid, self._asked = grid, asked
        self._done: dict[int, Message] = {}  # place → a reply, or a client's own error
        self._gone: dict[int, Message] = {}  # place → Flower's error; it may be asked again
        self._sent: dict[str, int] = {}  # id of a message that may be answered → place
        self._last: dict[int, tuple[int, float]] = {}  # place → node and time of the last message
        self._push(dict(enumerate(asked)))

    @property
    def answered(self) -> int:
        """Number of clients that answered without an error."""
        return sum(not reply.has_error() for reply in self._done.values())

    @property
    def everybody_answered(self) -> bool:
        """True when all clients answered without an error."""
        return self.answered == len(self._asked)

    @property
    def possible(self) -> int:
        """Number of clients that may still answer, including disconnected ones."""
        return len(self._asked) - len(self._done)

    @property
    def working(self) -> int:
        """Number of clients whose node is connected and may still answer."""
        return self.possible - len(self._gone)

    def replies(self) -> list[Message]:
        """Returns one reply for each client that sent any, as if from the node asked first."""
        replies = {**self._gone, **self._done}
        return [_from(replies[place], self._asked[place]) for place in sorted(replies)]

    def pull(self) -> None:
        """Takes the replies that have arrived."""
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
            # The first answer counts: copies of the message are not waited for.
            self._sent = {sent: other for sent, other in self._sent.items() if other != place}

    def ask_again(self, nodes: Mapping[int, int], before: float) -> None:
        """Asks clients again that were gone, are at another node, or have not answered for long."""
        # `nodes` are node that was asked → node to ask now, of the connected clients; long is since
        # `before`, of time.monotonic().
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
    """Returns the reply as one to this message: Flower's errors name no node, and clients move."""
    if reply.metadata.src_node_id == asked.metadata.dst_node_id:
        return reply
    return Message(reply.error if reply.has_error() else reply.content, reply_to=asked)
