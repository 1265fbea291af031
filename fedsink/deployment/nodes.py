"""Flower's grid for a deployment: nodes go away, come back, and are waited for in measure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

from fedsink.deployment.around import GridAround
from fedsink.deployment.pending import CLIENTS_OWN, Pending
from fedsink.errors import ClientError
from fedsink.protocol.exchange import Exchange
from fedsink.protocol.node_identity import identity_query, stated_client
from fedsink.strategies.base import check

_LOOK_SECONDS = 2.0  # between two looks at who is connected
_IDENTITY_SECONDS = 300.0  # for a node to say which client it is: it starts a process first


@dataclass(frozen=True)
class Patience:
    """How long nodes are waited for, in seconds.

    Attributes:
        wait: for them to connect, or to come back.
        round: after which the quorum is enough; None: everybody is waited for.
        again: after which a node that has not answered is asked again.
        poll: between two looks for replies.
    """

    wait: float = 60.0
    round: float | None = None
    again: float = 120.0
    poll: float = 0.2


class NodeGrid(GridAround):
    """Knows which client is at which node, and collects what arrives in time.

    An exchange ends when everybody has answered; or with the quorum, once the round's time is up
    or all others have refused or are gone; or when the quorum cannot be reached any more. What
    arrives later is never looked at: its client has charged it, and it is of no use.

    Args:
        grid: Flower's.
        clients: K.
        needed: how many clients must be there.
        patience: how long to wait for what.
    """

    def __init__(self, grid: Grid, clients: int, needed: int, patience: Patience) -> None:
        super().__init__(grid)
        self._clients, self._needed = clients, needed
        self._patience = patience
        self._node_of: dict[int, int] = {}  # of every client that was ever there
        self._former: set[int] = set()  # nodes that clients have left
        self._asked: dict[int, float] = {}  # node → when it was asked which client it is
        self._foreign: dict[int, str] = {}  # node → why it takes no part
        self._present: dict[int, int] | None = None

    def roster(self) -> Mapping[int, int]:
        """Client number → node id, of those that are connected.

        Raises:
            ClientError: there are too few of them for too long, or two nodes are one client.
        """
        deadline = time.monotonic() + self._patience.wait
        # The first time everybody is waited for; later those who are away are away.
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
        if present != self._present:
            self._present = present
        return self._present

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Replies and errors, at most one for each message; see the class for when it ends."""
        asked = list(messages)
        needed = messages.needed if isinstance(messages, Exchange) else None
        if not asked:
            return []
        pending, patience = Pending(self._grid, asked), self._patience
        started = looked = time.monotonic()
        while True:
            pending.pull()
            now = time.monotonic()
            answered = pending.answered
            enough = answered >= (len(asked) if needed is None else needed)
            late = patience.round is not None and now - started >= patience.round
            too_late = timeout is not None and now - started >= timeout
            if answered == len(asked) or too_late or (enough and (late or not pending.working)):
                break
            if not enough and answered + pending.possible < (needed or len(asked)):
                break  # too many have refused
            if now - looked >= _LOOK_SECONDS:
                looked = now
                pending.ask_again(self._moved(asked), now - patience.again)
            time.sleep(patience.poll)
        return pending.replies()

    def _look(self, connected: set[int] | None = None) -> dict[int, int]:
        """Who is connected, after asking those who are new which client they are."""
        connected, now = connected or set(self._grid.get_node_ids()), time.monotonic()
        known = self._former | set(self._node_of.values())
        # One that gave no good answer is asked again, but does not hold up every round.
        lately = {n for n, asked in self._asked.items() if now - asked < self._patience.again}
        new = sorted(connected - known - lately)
        self._asked |= dict.fromkeys(new, now)
        for client, node in self._identify(new).items():
            if client in self._node_of:  # it came back, and is at its new node
                self._former.add(self._node_of[client])
            self._node_of[client] = node
            self._foreign.pop(node, None)
        return {client: n for client, n in sorted(self._node_of.items()) if n in connected}

    def _identify(self, nodes: Sequence[int]) -> dict[int, int]:
        """Client number → node id, of these nodes."""
        pending = Pending(self._grid, [identity_query(node) for node in nodes])
        started = time.monotonic()
        pending.pull()
        while pending.working and (seconds := time.monotonic() - started) < _IDENTITY_SECONDS:
            there = len(self._present or {}) + pending.answered
            if there >= self._needed and seconds >= self._patience.wait:
                break
            time.sleep(self._patience.poll)
            pending.pull()
        seen: dict[int, int] = {}
        for reply in pending.replies():
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
            if client in seen:
                raise ClientError(
                    f"The nodes {seen[client]} and {node} both are client {client}: give each a "
                    "partition-id of its own."
                )
            seen[client] = node
        return seen

    def _moved(self, asked: Sequence[Message]) -> dict[int, int]:
        """Node that was asked → node to ask now, of the clients that are connected."""
        client_of = {node: client for client, node in (self._present or {}).items()}
        nodes = [message.metadata.dst_node_id for message in asked]
        connected = set(self._grid.get_node_ids())
        if {self._node_of.get(client_of.get(node, -1)) for node in nodes} <= connected:
            return {n: self._node_of[client_of[n]] for n in nodes}  # a stranger is not waited for
        now = self._look(connected)
        return {n: now[client_of[n]] for n in nodes if client_of.get(n) in now}
