"""Random interleavings of honest and hostile messages by a server with colluding clients.

The server shows clients any rosters, shares, survivors and signatures that it can put together from
what it has seen, and colluders sign whatever it wants. Whatever it does:

- a client gives at most one answer in a trip;
- of a peer a client gives a share of at most one secret;
- clients that unmask have signed one statement, of at least the minimum of survivors;
- the server has t shares of both secrets of no honest client.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsink.secagg.client import ClientSession
from fedsink.secagg.masks import SHARE_BYTES
from fedsink.secagg.refusals import AggregationError
from fedsink.secagg.wire import BOX_BYTES, Entry, KeyRoster, forwarded, joined, named, names, rows

from ..support.aggregation import Sum, identity, source

HONEST, COLLUDING = (0, 1, 2, 3, 4), (5,)
MINIMUM = 5


class LyingServer:
    """Plays random trips with each client, and keeps all that it learns."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.sum = Sum(6, seed=seed, minimum=MINIMUM)
        self.rows: dict[int, list[bytes]] = defaultdict(list)
        self.rosters: list[bytes] = []
        self.boxes: dict[tuple[bytes, int], dict[int, bytes]] = {}  # roster, sender → receiver
        self.shown: dict[int, bytes] = {}  # client → roster
        self.sharers: dict[int, bytes] = {}
        self.survivors: dict[int, bytes] = {}
        self.signatures: dict[tuple[bytes, bytes, bytes, int], bytes] = {}
        self.answers: dict[tuple[int, int], set[bytes]] = defaultdict(set)  # client, trip
        self.forks: dict[bytes, bytes] = {}
        for client in COLLUDING:
            for fork in range(2):
                session = ClientSession(
                    self.sum.parameters, client, identity(client), self.sum.rules,
                    source((seed, client, fork)),
                )  # fmt: skip
                row = session.keys()
                self.rows[client].append(row)
                self.forks[row] = session.to_bytes()

    def some(self, clients: Iterable[int], keep: float = 0.93) -> list[int]:
        if self.draw.random() < 0.7:
            return sorted(clients)
        return [client for client in sorted(clients) if self.draw.random() < keep]

    def tampered(self, content: bytes) -> bytes:
        if content and self.draw.random() < 0.06:
            place = self.draw.randrange(len(content))
            return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        return content

    def keys(self, client: int) -> None:
        answer = self.sum.client(client).keys()
        self.answers[client, 0].add(answer)
        self.rows[client] = [answer]

    def roster(self) -> bytes:
        if not self.rosters or self.draw.random() < 0.2:
            members = self.some(self.rows)
            self.rosters.append(b"".join(self.draw.choice(self.rows[c]) for c in members))
        return self.draw.choice(self.rosters) if self.draw.random() < 0.3 else self.rosters[0]

    def shares(self, client: int) -> None:
        roster = self.tampered(self.roster())
        answer = self.sum.client(client).shares(roster)
        self.answers[client, 1].add(answer)
        self.shown[client] = roster
        self.boxes[roster, client] = dict(rows(answer, BOX_BYTES, ""))
        for colluder in COLLUDING:
            self.collude(roster, colluder)

    def collude(self, roster: bytes, client: int) -> None:
        for row, stored in self.forks.items():
            if row in roster and (roster, client) not in self.boxes:
                session = ClientSession.from_bytes(
                    stored, identity(client), self.sum.rules, source(roster)
                )
                try:
                    self.boxes[roster, client] = dict(rows(session.shares(roster), BOX_BYTES, ""))
                except AggregationError:
                    self.boxes[roster, client] = {}

    def masked(self, client: int) -> None:
        roster = self.shown.get(client, b"")
        sent = {sender: box for (shown, sender), box in self.boxes.items() if shown == roster}
        sharers = self.some(sent)
        boxes = [
            (c, self.tampered(sent[c].get(client, bytes(BOX_BYTES))))
            for c in sharers
            if c != client
        ]
        if boxes and self.draw.random() < 0.05:
            other = self.draw.choice(list(self.boxes.values()))
            boxes[0] = boxes[0][0], other.get(client, boxes[0][1])
        answer = self.sum.mask(client, forwarded(sharers, boxes))
        self.answers[client, 2].add(answer)
        self.sharers[client] = named(sharers)

    def sign(self, client: int) -> None:
        sharers = self.sharers.get(client, b"")
        survivors = self.tampered(named(self.some(names(sharers, ""), keep=0.8)))
        answer = self.sum.client(client).survivors(survivors)
        self.answers[client, 3].add(answer)
        self.survivors[client] = survivors
        self.signatures[(*self.statement(client), client)] = answer

    def statement(self, client: int) -> tuple[bytes, bytes, bytes]:
        shown = self.shown.get(client, b""), self.sharers.get(client, b"")
        return KeyRoster(shown[0]).digest, shown[1], self.survivors.get(client, b"")

    def unmask(self, client: int) -> None:
        statement = self.statement(client)
        signed = {
            signer: signature
            for (*stated, signer), signature in self.signatures.items()
            if tuple(stated) == statement or self.draw.random() < 0.02
        }
        for colluder in COLLUDING:
            if colluder in names(statement[2], ""):
                signed[colluder] = identity(colluder).sign("survivors", *statement)
        some = self.some(signed)
        shown = joined((signer, self.tampered(signed[signer])) for signer in some)
        answer = self.sum.client(client).unmask(shown)
        self.answers[client, 4].add(answer)

    def lie(self, steps: int) -> None:
        for client in HONEST:
            if self.draw.random() < 0.97:
                self.keys(client)
        trips = (self.keys, self.shares, self.masked, self.sign, self.unmask)
        for _ in range(steps):
            client = self.draw.choice(HONEST)
            done = max((trip for trip in range(5) if self.answers.get((client, trip))), default=-1)
            trip = min(done + 1, 4) if self.draw.random() < 0.8 else self.draw.randrange(5)
            try:
                trips[trip](client)
            except AggregationError:
                continue

    def check(self) -> int:
        """Checks the promises; returns the number of clients that have unmasked."""
        assert all(len(answers) == 1 for answers in self.answers.values())
        given: dict[tuple[int, bytes], set[int]] = defaultdict(set)
        unmasking = [client for client in HONEST if (client, 4) in self.answers]
        for client in unmasking:
            [answer] = self.answers[client, 4]
            shares = rows(answer, 1 + SHARE_BYTES, "")
            assert len({owner for owner, _ in shares}) == len(shares)
            for owner, rest in shares:
                given[owner, rest[:1]].add(client)
        statements = {self.statement(client) for client in unmasking}
        assert len(statements) <= 1
        for _, _, survivors in statements:
            assert len(names(survivors, "")) >= MINIMUM
        needed = self.sum.parameters.threshold
        for owner in HONEST:
            both = [len(given[owner, kind] | set(COLLUDING)) for kind in (b"\0", b"\1")]
            assert min(both) < needed
        assert all(self.sum.computed.count(client) <= 1 for client in HONEST)
        return len(unmasking)


@pytest.mark.medium
@given(st.integers(0, 2**40))
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_lying_server_learns_one_sum_at_most(seed: int) -> None:
    server = LyingServer(seed)
    server.lie(steps=45)
    server.check()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_three_thousand_interleavings_break_no_promise(part: int) -> None:
    unmasked = []
    for seed in range(400):
        server = LyingServer(10_000 * (part + 1) + seed)
        server.lie(steps=60)
        unmasked.append(server.check())
    assert sum(count > 0 for count in unmasked) > 20, "the server never came to the last trip"
    assert sum(count == 0 for count in unmasked) > 20


@pytest.mark.medium
def test_the_lying_server_reaches_every_trip() -> None:
    reached: dict[int, int] = defaultdict(int)
    for seed in range(25):
        server = LyingServer(seed)
        server.lie(steps=60)
        server.check()
        for _, trip in server.answers:
            reached[trip] += 1
    assert all(reached[trip] > 3 for trip in range(5))


def test_entries_of_one_client_differ_between_forks() -> None:
    server = LyingServer(0)
    assert len(set(server.rows[5])) == 2
    assert all(len(rows(row, Entry.REST, "")) == 1 for row in server.rows[5])
