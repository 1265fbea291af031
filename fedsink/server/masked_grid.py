"""A grid that adds up nodes' replies by secure aggregation: it sees sums, and no reply.

`MaskedGrid` runs the five trips of `fedsink.secagg` over any grid, for all cohorts of an exchange
at once, and returns a `Reduction`. The first two trips of the next exchange travel with the third
and the fourth of this one: after the first exchange, an exchange costs three messages a client.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsink.flower_internals import ForwardingGrid
from fedsink.privacy import Stream
from fedsink.protocol.aggregation import (
    AHEAD,
    KEYS,
    MASKED,
    SHARES,
    SURVIVORS,
    UNMASK,
    Trip,
    content_ahead,
    content_of,
    put_trip,
    sum_name,
)
from fedsink.protocol.exchange import (
    Broadcast,
    Exchange,
    Keeper,
    MessageList,
    Reduction,
    Roster,
    Sum,
)
from fedsink.protocol.failure_codes import MEANING
from fedsink.protocol.packing import digest
from fedsink.secagg.parameters import Parameters
from fedsink.secagg.refusals import VoidMessageError
from fedsink.secagg.server import ServerSession

log = logging.getLogger("fedsink.server")

_TAKE: Mapping[str, Callable[[ServerSession, int, bytes], bool]] = {
    KEYS: ServerSession.take_keys,
    SHARES: ServerSession.take_shares,
    MASKED: ServerSession.take_masked,
    SURVIVORS: ServerSession.take_signature,
    UNMASK: ServerSession.take_unmask,
}
"""Trips in their order: each takes an answer, and tells whether it is of use."""

Dropping = Callable[[str, str, int], bool]
"""Tells whether a simulated client disappears, given the message's number, trip and client."""


def simulated_dropouts(probability: float, key: bytes) -> Dropping | None:
    """Returns the clients that disappear in a simulation, with this probability at each trip."""
    if not probability:
        return None

    def drops(message: str, trip: str, client: int) -> bool:
        return bool(Stream(key, "dropouts", message, trip, client).uniform(1).item() < probability)

    return drops


class MaskedGrid(ForwardingGrid):
    """Adds up the replies to an exchange's broadcasts by secure aggregation.

    A cohort from which too few clients are left is void: its sum is None in the reduction. All
    other messages are forwarded.

    Keys and shares for the next exchange travel with this one's trips, where the exchange announces
    it. A client that misses them misses the next sum, too, and is asked for keys of the sum after.
    """

    def __init__(self, grid: Grid, run: str, drops: Dropping | None = None) -> None:
        super().__init__(grid)
        self._run_name, self._drops = run, drops
        self._prepared: list[_Cohort] = []  # of the next exchange
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
        kind, prepared = messages.message_type, self._prepared
        cohorts = [_Cohort(self._run_name, kind, one) for one in messages.broadcasts]
        self._prepared = [_Cohort(self._run_name, kind, one) for one in messages.following]
        for cohort in cohorts:
            cohort.continue_from(prepared)
        unprepared = [cohort for cohort in cohorts if not cohort.is_prepared]
        trips = _Trips(self._grid, messages, timeout, self._drops)
        trips.ask(KEYS, unprepared)
        trips.ask(SHARES, unprepared)
        trips.ask(MASKED, cohorts, self._prepared)
        trips.ask(SURVIVORS, cohorts, self._prepared)
        trips.ask(UNMASK, cohorts)
        sums = [cohort.sum() for cohort in cohorts]
        absent = [client for cohort in cohorts for client in cohort.absent]
        return Reduction(
            sums, {}, sorted(absent), tuple(str(c.void) for c in cohorts if c.void is not None)
        )


class _Cohort:
    """The clients of one broadcast, who all are in its sum's name, and the server's session."""

    def __init__(self, run: str, message_type: str, broadcast: Broadcast) -> None:
        if broadcast.fixed_point is None:
            raise ValueError("Secure aggregation adds up integers, and this request asks for none.")
        self.broadcast, self._type = broadcast, message_type
        clients = tuple(broadcast.cohort or broadcast.nodes)
        self.parameters = Parameters(
            run=run,
            message=sum_name(message_type, broadcast.round),
            clients=clients,
            bits=broadcast.fixed_point.bits,
            length=int(np.prod(broadcast.shape)),
            minimum=min(max(2, broadcast.noise_parts), len(clients)),
        )
        self.session = ServerSession(self.parameters)
        self.void: VoidMessageError | None = None  # why there is no sum
        self.absent: list[int] = list(broadcast.nodes)  # whose vectors are not in the sum

    def continue_from(self, prepared: Iterable[_Cohort]) -> None:
        """Takes over the session of the same sum, of which two trips are done, if there is one."""
        # Where too few clients have sent shares, the trips are asked again, and answered again.
        for other in prepared:
            if other.parameters == self.parameters and other.is_prepared:
                self.session = other.session

    @property
    def is_prepared(self) -> bool:
        """True once enough clients have shared their secrets."""
        return self.session.is_shared

    def contents(self, trip: str) -> Mapping[int, bytes]:
        """Returns what a trip sends to each client that is left and connected; too few are void."""
        session, connected = self.session, self.broadcast.nodes
        if trip == KEYS:
            return dict.fromkeys(connected, b"")
        if trip == SHARES:
            contents = dict.fromkeys(session.members(), session.roster())
        elif trip == MASKED:
            contents = {client: session.forwarded(client) for client in session.sharers()}
        elif trip == SURVIVORS:
            survivors = session.survivors()
            contents = dict.fromkeys(session.vectors(), survivors)
        else:
            contents = dict.fromkeys(session.signers(), session.signatures())
        return {client: content for client, content in contents.items() if client in connected}

    def sum(self) -> Sum | None:
        """Returns the sum of the survivors' integers; None where the message is void."""
        if self.void is not None:
            return None
        request = digest(self._type, self.broadcast.content.payload)
        try:
            integers, survivors = self.session.result(request)
        except VoidMessageError as error:
            self.void = error
            return None
        self.absent = sorted(set(self.broadcast.nodes) - set(survivors))
        return Sum(torch.from_numpy(integers).reshape(self.broadcast.shape), len(survivors))


class _Errand(NamedTuple):
    """A trip of one cohort to one client."""

    client: int
    trip: str
    cohort: _Cohort
    content: Trip


class _Trips:
    """Sends the messages of each trip, and gives the answers to their cohorts."""

    def __init__(
        self, grid: Grid, exchange: Exchange, timeout: float | None, drops: Dropping | None
    ) -> None:
        self._grid, self._exchange, self._timeout = grid, exchange, timeout
        self._drops = drops
        self._gone: set[int] = set()

    def ask(self, trip: str, cohorts: Sequence[_Cohort], following: Sequence[_Cohort] = ()) -> None:
        """Sends one message to each client that is left, and takes the answers."""
        # `following` are the cohorts of the next exchange, which are asked the trip's `AHEAD`.
        asked: dict[int, list[_Errand]] = {}  # node → a trip, or a trip and that of the next sum
        for one in (*self._asked(trip, cohorts), *self._asked(AHEAD.get(trip, ""), following)):
            asked.setdefault(one.cohort.broadcast.nodes[one.client], []).append(one)
        messages, group = [], self._exchange.group_id
        for node, (first, *ahead) in asked.items():
            if self._drops is not None and self._drops(group, trip, first.client):
                self._gone.add(first.client)
            if first.client not in self._gone:
                query = first.trip != MASKED  # which is the next sum's where a node is new to it
                kind = f"query.{first.trip}" if query else self._exchange.message_type
                about = {} if query else dict(first.cohort.broadcast.content.record)
                record = put_trip(RecordDict(about), first.content, *(one.content for one in ahead))
                messages.append(
                    Message(record, dst_node_id=node, message_type=kind, group_id=group)
                )
        if not messages:
            return
        place = list(_TAKE).index(trip)
        needed = sum(c.session.needed(place) for c in cohorts if c.void is None)
        replies = self._grid.send_and_receive(MessageList(messages, needed), timeout=self._timeout)
        for reply in replies:
            both = asked[reply.metadata.src_node_id]
            if reply.has_error():
                _warn(both[0].client, reply.error.code)
                continue
            for one, read in zip(both, (content_of, content_ahead), strict=False):
                try:
                    content = read(reply.content)
                    if isinstance(content, int):
                        _warn(one.client, content)
                        continue
                    fits = _TAKE[one.trip](one.cohort.session, one.client, content)
                except ValueError:
                    fits = False
                if not fits:
                    log.warning("client %s answered %s with something else", one.client, one.trip)

    def _asked(self, trip: str, cohorts: Sequence[_Cohort]) -> Iterator[_Errand]:
        for cohort in cohorts:
            if cohort.void is not None:
                continue
            try:
                contents = cohort.contents(trip)
            except VoidMessageError as error:
                cohort.void = error
                continue
            for client, content in contents.items():
                yield _Errand(client, trip, cohort, Trip(cohort.parameters, content))


def _warn(client: int, code: int) -> None:
    log.warning("client %s %s", client, MEANING.get(code, f"answered with Flower's {code}"))
