"""Nodes of several owners in one process, each with its own policy, and the way to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict

from fedsink.clients.app import client_app
from fedsink.clients.node import close_nodes
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.ledger.database import Database
from fedsink.clients.owner.policy_file import read_policy
from fedsink.privacy.integer_gaussian import FixedPoint
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.exchange import Broadcast, Content, Exchange
from fedsink.protocol.signing import NodeIdentityKey
from fedsink.simulation.grid import SimulationGrid, client_context, client_of, node_of

from .policies import limits, policy
from .requests import pack_requests

GRID = FixedPoint(granularity=2.0**-16, bits=32, radius=64.0)
KIND = "train.dp_sinkhorn"

Way = Callable[[Message], Message | None]
"""Changes a message on its way to a node; None: it is lost."""


def unchanged(message: Message) -> Message:
    return message


class Consortium(SimulationGrid):
    """K nodes whose owners trust one another's keys; node k is client k."""

    def __init__(
        self,
        folder: Path,
        clients: int = 4,
        *,
        aggregation: Mapping[str, Any] | None = None,  # replaces keys of the owners' tables
        allow: Mapping[str, Any] | None = None,  # the same
        **policies: Any,
    ) -> None:
        super().__init__(clients)
        self.way: Way = unchanged
        self.codes: list[tuple[str, int, int]] = []  # message type, client, code of each refusal
        self.folders = [folder / f"node{client}" for client in range(clients)]
        keys = [NodeIdentityKey.at(home / "state").shown for home in self.folders]
        listed = "".join(f'{client} = "{key}"\n' for client, key in enumerate(keys))
        usual = {"add-remove": limits(1e6), "replace-one": limits(1e6, 0.0)}
        for home in self.folders:
            (home / "peers.toml").write_text(listed)
            text = policy(
                **{"budget": usual, **policies},
                allow={"secure_aggregation": "masked", **(allow or {})},
                aggregation={"peers": "peers.toml", "minimum_cohort": 3, **(aggregation or {})},
            )
            (home / "policy.toml").write_text(text)

    def execute(self, messages: Sequence[Message]) -> list[Message]:
        """Answers each message by its node; each has just been started."""
        replies = []
        for message in messages:
            if (sent := self.way(message)) is not None:
                replies.append(self.ask(sent))
        return replies

    def ask(self, message: Message) -> Message:
        """Returns a node's reply."""
        close_nodes()
        client = client_of(message.metadata.dst_node_id)
        settings = NodeSettings.from_policy(
            read_policy(self.folders[client] / "policy.toml"), clients=self.clients
        )
        reply = client_app(settings)(message, client_context(client, self.clients, 1))
        if reply.has_error():
            self.codes.append((message.metadata.message_type, client, reply.error.code))
        return reply

    def send(self, client: int, content: RecordDict, kind: str = KIND) -> Message:
        """Returns a node's reply to a content."""
        return self.ask(
            Message(content, dst_node_id=node_of(client), message_type=kind, group_id="1")
        )

    def exchange(
        self,
        request: GradientRequest,
        clients: Sequence[int] | None = None,
        following: GradientRequest | None = None,
    ) -> Exchange:
        """Returns the exchange of one request, to all clients or to those that are connected.

        `following` is announced as the request of the next exchange.
        """
        members = range(self.clients) if clients is None else clients
        content = Content(lambda: [request], lambda: pack_requests([request]))
        announced = [] if following is None else [self._to(members, following, Content.later())]
        return Exchange(KIND, "1", [self._to(members, request, content)], None, announced)

    def _to(self, members: Sequence[int], request: GradientRequest, content: Content) -> Broadcast:
        return Broadcast(
            content,
            {client: node_of(client) for client in members},
            (1, *request.rows.shape),
            request.share,
            request.fixed_point,
            range(self.clients),
            request.round,
        )

    def claims(self) -> list[int]:
        """Returns the number of charged uses in each node's ledger."""
        counts = []
        for home in self.folders:
            path = home / "state" / "ledger.sqlite"
            rows = Database(path, writable=False).rows if path.exists() else None
            counts.append(0 if rows is None else int(rows("SELECT COUNT(*) FROM claims")[0][0]))
        return counts

    def keep(self, round: int) -> None:
        """Does nothing: nodes keep their states themselves."""


def shared(request: GradientRequest, sharers: int, **fields: Any) -> GradientRequest:
    """Returns a request whose noise several clients share."""
    return replace(request, share=sharers, fixed_point=GRID, **fields)
