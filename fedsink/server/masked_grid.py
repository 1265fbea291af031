"""A grid that adds up nodes' replies by secure aggregation: it sees sums, and no reply.

`MaskedGrid` runs the five trips of `fedsink.secagg` over any grid, for all cohorts of an exchange
at once, and returns a `Reduction`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsink.flower_internals import ForwardingGrid
from fedsink.privacy import Stream
from fedsink.protocol.aggregation import (
    KEYS,
    SHARES,
    SURVIVORS,
    UNMASK,
    content_of,
    put_trip,
)
from fedsink.protocol.exchange import (
    Asked,
    Broadcast,
    Exchange,
    Keeper,
    Reduction,
    Roster,
    Sum,
)
from fedsink.protocol.failure_codes import MEANING
from fedsink.protocol.packing import digest, pack
from fedsink.secagg.parameters import Parameters
from fedsink.secagg.refusals import VoidMessageError
from fedsink.secagg.server import ServerSession

log = logging.getLogger("fedsink.server")

Dropping = Callable[[str, str, int], bool]
"""Tells whether a simulated client disappears, given the message's number, trip and client."""


def simulated_dropouts(probability: float, key: bytes) -> Dropping | None:
    """Returns the clients that disappear in a simulation; None: none does.

    Args:
        probability: that a client disappears at one trip.
        key: of the choice.
    """
    if not probability:
        return None

    def drops(message: str, trip: str, client: int) -> bool:
        return bool(Stream(key, "dropouts", message, trip, client).uniform(1).item() < probability)

    return drops


class MaskedGrid(ForwardingGrid):
    """Adds up the replies to an exchange's broadcasts by secure aggregation.

    A cohort from which too few clients are left is void: its sum is None in the reduction. All
    other messages are forwarded.

    Args:
        grid: delivers messages.
        run: public name of the run.
        drops: simulates clients that disappear; None: none does.
    """

    def __init__(self, grid: Grid, run: str, drops: Dropping | None = None) -> None:
        super().__init__(grid)
        self._run_name, self._drops = run, drops
        if isinstance(grid, Roster):
            self.roster = grid.roster
        if isinstance(grid, Keeper):
            self.keep = grid.keep

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Returns the sums of an exchange, or the replies to other messages."""
        if not isinstance(messages, Exchange):
            return self._grid.send_and_receive(messages, timeout=timeout)
        cohorts = [
            _Cohort(self._run_name, messages.message_type, broadcast)
            for broadcast in messages.broadcasts
        ]
        trips = _Trips(self._grid, messages, timeout, self._drops)
        for trip, (kind, ask, take) in enumerate(
            (
                (f"query.{KEYS}", _Cohort.keys, ServerSession.take_keys),
                (f"query.{SHARES}", _Cohort.shares, ServerSession.take_shares),
                (messages.message_type, _Cohort.masked, ServerSession.take_masked),
                (f"query.{SURVIVORS}", _Cohort.survivors, ServerSession.take_signature),
                (f"query.{UNMASK}", _Cohort.unmask, ServerSession.take_unmask),
            )
        ):
            trips.ask(trip, kind, cohorts, ask, take)
        sums = [cohort.sum() for cohort in cohorts]
        absent = [client for cohort in cohorts for client in cohort.absent]
        return Reduction(
            sums, {}, sorted(absent), tuple(str(c.void) for c in cohorts if c.void is not None)
        )


class _Cohort:
    """The clients of one broadcast, and the server's session of their sum.

    The sum is named after the whole cohort: a client that is not connected has dropped out.

    Attributes:
        void: why there is no sum; None as long as there may be one.
        absent: clients whose vectors are not in the sum.
    """

    def __init__(self, run: str, message_type: str, broadcast: Broadcast) -> None:
        if broadcast.fixed_point is None:
            raise ValueError("Secure aggregation adds up integers, and this request asks for none.")
        self.broadcast = broadcast
        clients = tuple(broadcast.cohort or broadcast.nodes)
        self.parameters = Parameters(
            run=run,
            message=digest(message_type, broadcast.content.said).hex(),
            clients=clients,
            bits=broadcast.fixed_point.bits,
            length=int(np.prod(broadcast.shape)),
            minimum=min(max(2, broadcast.sharers), len(clients)),
        )
        self.session = ServerSession(self.parameters)
        self.void: VoidMessageError | None = None
        self.absent: list[int] = list(broadcast.nodes)
        self._base = pack({}, {})

    def keys(self) -> Mapping[int, RecordDict]:
        return dict.fromkeys(self.broadcast.nodes, self._query())

    def shares(self) -> Mapping[int, RecordDict]:
        query = self._query(self.session.roster())
        return dict.fromkeys(self.session.members(), query)

    def masked(self) -> Mapping[int, RecordDict]:
        request = self.broadcast.content.record
        return {
            client: put_trip(
                RecordDict(dict(request)), self.parameters, self.session.forwarded(client)
            )
            for client in self.session.sharers()
        }

    def survivors(self) -> Mapping[int, RecordDict]:
        survivors = self.session.survivors()
        return dict.fromkeys(self.session.vectors(), self._query(survivors))

    def unmask(self) -> Mapping[int, RecordDict]:
        return dict.fromkeys(self.session.signers(), self._query(self.session.signatures()))

    def sum(self) -> Sum | None:
        """Returns the sum of the survivors' integers; None where the message is void."""
        if self.void is not None:
            return None
        try:
            integers, survivors = self.session.result()
        except VoidMessageError as error:
            self.void = error
            return None
        self.absent = sorted(set(self.broadcast.nodes) - set(survivors))
        return Sum(torch.from_numpy(integers).reshape(self.broadcast.shape), len(survivors))

    def _query(self, content: bytes = b"") -> RecordDict:
        return put_trip(RecordDict(dict(self._base)), self.parameters, content)


class _Trips:
    """Sends the messages of each trip, and gives the answers to their cohorts."""

    def __init__(
        self, grid: Grid, exchange: Exchange, timeout: float | None, drops: Dropping | None
    ) -> None:
        self._grid, self._group, self._timeout = grid, exchange.group_id, timeout
        self._drops = drops
        self._gone: set[int] = set()

    def ask(
        self,
        trip: int,
        message_type: str,
        cohorts: Sequence[_Cohort],
        contents: Callable[[_Cohort], Mapping[int, RecordDict]],
        take: Callable[[ServerSession, int, bytes], bool],
    ) -> None:
        """Sends one message to each client that is left, and takes the answers."""
        asked, needed = [], 0
        receivers: dict[int, tuple[_Cohort, int]] = {}  # node → cohort, client
        for cohort in cohorts:
            if cohort.void is not None:
                continue
            try:
                records = contents(cohort)
            except VoidMessageError as error:
                cohort.void = error
                continue
            needed += cohort.session.needed(trip)
            for client, record in records.items():
                if self._dropped(message_type, client):
                    continue
                node = cohort.broadcast.nodes[client]
                receivers[node] = cohort, client
                asked.append(
                    Message(
                        record, dst_node_id=node, message_type=message_type, group_id=self._group
                    )
                )
        for reply in (
            self._grid.send_and_receive(Asked(asked, needed), timeout=self._timeout)
            if asked
            else ()
        ):
            cohort, client = receivers[reply.metadata.src_node_id]
            if reply.has_error():
                code = reply.error.code
                log.warning(
                    "client %s %s", client, MEANING.get(code, f"answered with Flower's {code}")
                )
                continue
            try:
                fits = take(cohort.session, client, content_of(reply.content))
            except ValueError:
                fits = False
            if not fits:
                log.warning("client %s answered %s with something else", client, message_type)

    def _dropped(self, message_type: str, client: int) -> bool:
        if self._drops is None:
            return False
        if self._drops(self._group, message_type, client):
            self._gone.add(client)
        return client in self._gone
