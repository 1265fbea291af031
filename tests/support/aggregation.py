"""Clients and a server of one masked sum, played trip by trip, and lies between two trips."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsink.secagg.client import ClientSession
from fedsink.secagg.identities import Identity, Peers
from fedsink.secagg.parameters import Parameters, Rules
from fedsink.secagg.server import MaskedSum, ServerSession

Vector = NDArray[np.int64]


@cache
def identity(client: int) -> Identity:
    return Identity.derived(hashlib.sha256(f"client {client}".encode()).digest())


@cache
def peers(clients: int) -> Peers:
    return Peers({client: identity(client).public for client in range(clients)})


def source(name: object) -> Callable[[int], bytes]:
    """Deterministic random bytes."""
    count = 0

    def random(size: int) -> bytes:
        nonlocal count
        count += 1
        return hashlib.shake_128(f"{name} {count}".encode()).digest(size)

    return random


class Sum:
    """One message; each attribute can be changed before the trip that uses it."""

    def __init__(
        self,
        clients: int = 5,
        *,
        seed: object = 0,
        rules: Rules | None = None,
        stored: bool = False,  # every session is written and read between two trips
        **others: Any,
    ) -> None:
        values = {"run": "r", "message": "m", "bits": 32, "length": 3, "minimum": 2} | others
        self.parameters = Parameters(clients=tuple(range(clients)), **values)
        self.rules = Rules(peers(clients)) if rules is None else rules
        self.seed, self.stored = seed, stored
        self.sessions = {client: self.begin(client) for client in range(clients)}
        self.server = ServerSession(self.parameters, peers(clients))
        entropy = int.from_bytes(hashlib.sha256(str(seed).encode()).digest()[:8])
        bound = 1 << (self.parameters.bits - 1)
        self.vectors: dict[int, Vector] = dict(
            enumerate(
                np.random.default_rng(entropy).integers(
                    -bound, bound, (clients, self.parameters.length)
                )
            )
        )
        self.computed: list[int] = []
        self.requests: dict[int, bytes] = {}  # of clients that are asked another than the others

    def begin(self, client: int) -> ClientSession:
        random = source((self.seed, client))
        return ClientSession(self.parameters, client, identity(client), self.rules, random)

    def client(self, client: int) -> ClientSession:
        if self.stored:
            content = self.sessions[client].to_bytes()
            self.sessions[client] = ClientSession.from_bytes(
                content, identity(client), self.rules, source((client, content))
            )
        return self.sessions[client]

    def mask(self, client: int, forwarded: bytes | None = None) -> bytes:
        def vector() -> Vector:
            self.computed.append(client)
            return self.vectors[client]

        content = self.server.forwarded(client) if forwarded is None else forwarded
        return self.client(client).masked(content, self.requests.get(client, b"request"), vector)

    def keys(self, gone: Collection[int] = ()) -> None:
        for client in set(self.sessions) - set(gone):
            assert self.server.take_keys(client, self.client(client).keys())

    def shares(self, gone: Collection[int] = ()) -> None:
        roster = self.server.roster()
        for client in set(self.server.members()) - set(gone):
            assert self.server.take_shares(client, self.client(client).shares(roster))

    def masked(self, gone: Collection[int] = ()) -> None:
        for client in set(self.server.sharers()) - set(gone):
            assert self.server.take_masked(client, self.mask(client))

    def survivors(self, gone: Collection[int] = ()) -> None:
        survivors = self.server.survivors()
        for client in set(self.server.vectors()) - set(gone):
            signature = self.client(client).survivors(survivors)
            assert self.server.take_signature(client, signature)

    def unmask(self, gone: Collection[int] = ()) -> None:
        signatures = self.server.signatures()
        for client in set(self.server.signers()) - set(gone):
            assert self.server.take_unmask(client, self.client(client).unmask(signatures))

    def play(self, trips: int = 5, gone: Mapping[int, Collection[int]] | None = None) -> Sum:
        """Plays the first trips; `gone` are the clients that disappear in each."""
        steps = (self.keys, self.shares, self.masked, self.survivors, self.unmask)
        lost: set[int] = set()
        for trip, step in enumerate(steps[:trips]):
            lost |= set((gone or {}).get(trip, ()))
            step(lost)
        return self

    def result(self) -> MaskedSum:
        return self.server.result(b"request")

    def plain(self, survivors: Sequence[int]) -> Vector:
        """The sum modulo 2^b of plain integers, centred."""
        bits = self.parameters.bits
        total = np.zeros(self.parameters.length, object)
        for client in survivors:
            total += self.vectors[client].astype(object)
        half = 1 << (bits - 1)
        return np.array([(int(t) + half) % (1 << bits) - half for t in total])
