"""A server that lies sends a node trips of masked sums, in any order and any version."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsink.protocol.aggregation import (
    KEYS,
    SHARES,
    SURVIVORS,
    UNMASK,
    Trip,
    content_ahead,
    content_of,
    put_trip,
    sum_name,
)
from fedsink.protocol.dp_sinkhorn import GradientRequest, Objective
from fedsink.protocol.failure_codes import MEANING
from fedsink.protocol.packing import digest, pack
from fedsink.protocol.signing import NodeIdentityKey
from fedsink.secagg.client import ClientSession
from fedsink.secagg.identities import Identity, Peers
from fedsink.secagg.parameters import Parameters, Rules
from fedsink.secagg.refusals import VoidMessageError
from fedsink.secagg.server import ServerSession

from ..support.consortium import KIND, Consortium, shared
from ..support.requests import gradient_request, pack_requests, plan_of
from ..support.tiny import CLASSES

CLIENTS = 4
ORDER = (f"query.{KEYS}", f"query.{SHARES}", KIND, f"query.{SURVIVORS}", f"query.{UNMASK}")
VARIANTS = ({}, {"clients": (0, 1, 2)}, {"minimum": 4}, {"run": "another"}, {"bits": 40})
"""Public numbers under which a server may ask for one request."""


class Ask(NamedTuple):
    """One message of the server: its trip, by which sums it is made up, and the sum after it."""

    request: int
    variant: int
    trip: int
    of_request: int
    of_variant: int
    flipped: int | None
    ahead: int | None


ASKS = st.lists(
    st.one_of(
        # Mostly the honest next step of one of two sums, sometimes anything.
        st.builds(
            lambda request, trip, ahead: Ask(request, 0, trip, request, 0, None, ahead),
            st.integers(0, 2),
            st.integers(0, 4),
            st.none() | st.integers(0, 2),
        ),
        st.builds(
            Ask,
            st.integers(0, 2),
            st.integers(0, len(VARIANTS) - 1),
            st.integers(0, 4),
            st.integers(0, 2),
            st.integers(0, len(VARIANTS) - 1),
            st.none() | st.integers(0, 5000),
            st.none() | st.integers(0, 2),
        ),
    ),
    min_size=4,
    max_size=24,
)


def request(number: int) -> GradientRequest:
    """Requests 0 and 2 are of one round, and so of one sum."""
    objective = Objective(lam=0.5, classes=CLASSES)
    made = shared(gradient_request(plan_of("record"), objective, round=1 + number % 2), 3)
    return replace(made, rows=made.rows + 0.25) if number == 2 else made


def identities_of(nodes: Consortium) -> dict[int, Identity]:
    return {
        client: Identity(NodeIdentityKey.at(home / "state").private)
        for client, home in enumerate(nodes.folders)
    }


class Play:
    """One sum as an honest server and honest peers would play it with the node."""

    def __init__(
        self, parameters: Parameters, asked: bytes, identities: dict[int, Identity]
    ) -> None:
        self.asked = asked
        rules = Rules(Peers({client: one.public for client, one in identities.items()}))
        self.parameters = parameters
        self._server = ServerSession(parameters)
        self._peers = {
            client: ClientSession(parameters, client, identities[client], rules)
            for client in parameters.clients
            if client > 0
        }
        self._done = 0

    def content(self, trip: int) -> bytes:
        """What the server would send to the node; empty as long as it cannot."""
        server = self._server
        made: list[Callable[[], bytes]] = [
            lambda: b"",
            server.roster,
            lambda: server.forwarded(0),
            server.survivors,
            server.signatures,
        ]
        try:
            return made[trip]() if trip <= self._done else b""
        except VoidMessageError:
            return b""

    def take(self, trip: int, answer: bytes) -> None:
        """Takes the node's answer to a trip, and those of its peers."""
        if trip != self._done:
            return
        server, peers = self._server, self._peers
        vector = np.zeros(self.parameters.length, np.int64)
        ask: list[Callable[[int, ClientSession], bytes]] = [
            lambda _, peer: peer.keys(),
            lambda _, peer: peer.shares(server.roster()),
            lambda client, peer: peer.masked(server.forwarded(client), self.asked, lambda: vector),
            lambda _, peer: peer.survivors(server.survivors()),
            lambda _, peer: peer.unmask(server.signatures()),
        ]
        take = (
            server.take_keys,
            server.take_shares,
            server.take_masked,
            server.take_signature,
            server.take_unmask,
        )[trip]
        if not take(0, answer):
            return
        for client, peer in peers.items():
            assert take(client, ask[trip](client, peer))
        self._done += 1


@pytest.mark.medium
@settings(max_examples=40, deadline=None)
@given(asks=ASKS)
def test_whatever_is_asked_one_vector_leaves_and_is_charged_once(
    tmp_path_factory: pytest.TempPathFactory, asks: list[Ask]
) -> None:
    folder: Path = tmp_path_factory.mktemp("masked")
    nodes = Consortium(folder, CLIENTS)
    identities = identities_of(nodes)
    plays = {}
    for number in (0, 1, 2):
        asked = digest(KIND, pack_requests([request(number)]))
        name = sum_name(KIND, request(number).round)
        sum_ = Parameters(request(0).run, name, tuple(range(CLIENTS)), 32, 24, 3)
        for place, fields in enumerate(VARIANTS):
            values = replace(sum_, **{"neighbours": 0, "threshold": 0, **fields})
            plays[number, place] = Play(values, asked, identities)

    asked_run = request(0).run
    left: dict[tuple[str, int, int, bytes], set[bytes]] = defaultdict(set)

    def note(play: Play, number: int, trip: int, answer: bytes) -> None:
        # Until a vector has left, there is a session for each set of public numbers.
        numbers = play.parameters.digest if trip < 2 else b""
        left[play.parameters.run, number, trip, numbers].add(answer)
        play.take(trip, answer)

    for ask in asks:
        play = plays[ask.request, ask.variant]
        sent = plays[ask.of_request, ask.of_variant].content(ask.trip)
        if ask.flipped is not None and sent:
            spot = ask.flipped % len(sent)
            sent = sent[:spot] + bytes([sent[spot] ^ 1]) + sent[spot + 1 :]
        masked = ask.trip == 2
        record = request(ask.request).to_record() if masked else pack({}, {})
        ahead, following = None, plays.get((ask.ahead, 0))
        if following is not None:  # with keys go no shares, whatever a server may want
            ahead = Trip(following.parameters, following.content(ask.trip - 2))
        reply = nodes.send(0, put_trip(record, Trip(play.parameters, sent), ahead), ORDER[ask.trip])
        before = nodes.claims()[0]
        if reply.has_error():
            assert reply.error.code in MEANING
            assert reply.error.reason is None
        else:
            note(play, ask.request, ask.trip, content_of(reply.content))
            if following is not None:
                assert ask.trip in (2, 3)
                answer = content_ahead(reply.content)
                if isinstance(answer, int):
                    assert answer in MEANING
                else:
                    note(following, ask.ahead, ask.trip - 2, answer)
        vectors = [bool(left[asked_run, number, 2, b""]) for number in (0, 1, 2)]
        assert not (vectors[0] and vectors[2])  # a sum is of one request
        assert nodes.claims()[0] == before == sum(vectors)  # charged with its vector, only then
    # A request is masked in one session: whatever was asked, each trip had one answer.
    assert all(len(answers) == 1 for answers in left.values() if answers)
    kept = [
        path
        for path in nodes.folders[0].rglob("sessions/*")
        if path.is_file() and path.stat().st_size
    ]
    for path in kept:
        stored = json.loads(path.read_bytes())
        if len(stored["answers"]) > 2:  # the vector has left
            assert (stored["memory"]["seed"], stored["memory"]["mask"]) == ("", "")


def test_a_whole_honest_play_is_among_them(tmp_path: Path) -> None:
    """The test above would hold for a node that refuses everything."""
    nodes, asked = Consortium(tmp_path, CLIENTS), request(0)
    name, values = sum_name(KIND, asked.round), asked.rows.numel()
    sum_ = Parameters(asked.run, name, tuple(range(CLIENTS)), 32, values, 3)
    play = Play(sum_, digest(KIND, pack_requests([asked])), identities_of(nodes))
    for trip in range(5):
        record = asked.to_record() if trip == 2 else pack({}, {})
        reply = nodes.send(0, put_trip(record, Trip(sum_, play.content(trip))), ORDER[trip])
        assert not reply.has_error()
        play.take(trip, content_of(reply.content))
    assert play._server.result(play.asked).survivors == (0, 1, 2, 3)
