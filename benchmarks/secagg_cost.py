"""Cost of secure aggregation: bytes and processor time of each trip, at a client and the server.

All clients in this process, vectors of 9,900 values a use modulo 2^32, one client in twenty drops
out before its vector. Clients' times are medians over a few clients that verify every signature
themselves; in one process the others find them verified. Ratios are against plain summation: a
client sends its vector as packed integers, the server adds them.

    python benchmarks/secagg_cost.py [--clients 10 100 1000] [--uses 1 20]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from fedsink.secagg import client as client_side
from fedsink.secagg import masks
from fedsink.secagg.client import TRIPS, ClientSession
from fedsink.secagg.identities import Identity, Peers, verified
from fedsink.secagg.parameters import Parameters, Rules
from fedsink.secagg.server import ServerSession

VALUES, BITS, MEASURED = 9_900, 32, 5
T = TypeVar("T")


class Meter:
    """Processor time of one message by trip, of some clients and of the server."""

    def __init__(self, measured: frozenset[int]) -> None:
        self.measured = measured
        self.clients: dict[int, list[float]] = defaultdict(list)
        self.server: dict[int, float] = defaultdict(float)
        self.up: dict[int, list[int]] = defaultdict(list)
        self.down: dict[int, list[int]] = defaultdict(list)

    def at_server(self, trip: int, run: Callable[[], T]) -> T:
        start = time.process_time()
        found = run()
        self.server[trip] += time.process_time() - start
        return found

    def at_client(self, trip: int, client: int, down: bytes, run: Callable[[], bytes]) -> bytes:
        if client in self.measured:  # as in a process of its own: nothing verified, nothing read
            verified.cache_clear()
            client_side._read.cache_clear()
            client_side._circle.cache_clear()
        start = time.process_time()
        answer = run()
        if client in self.measured:
            self.clients[trip].append(time.process_time() - start)
            self.up[trip].append(len(answer))
            self.down[trip].append(len(down))
        return answer


def message(clients: int, uses: int) -> Meter:
    """Plays one message; compares its sum with the plain one."""
    identities = {c: Identity.derived(c.to_bytes(32, "big")) for c in range(clients)}
    rules = Rules(Peers({c: own.public for c, own in identities.items()}))
    parameters = Parameters("run", "message", tuple(range(clients)), BITS, VALUES * uses, 2)
    sessions = {c: ClientSession(parameters, c, own, rules) for c, own in identities.items()}
    server = ServerSession(parameters, rules.trust)
    vector = np.random.default_rng(0).integers(-1000, 1000, VALUES * uses)
    gone = clients // 20
    meter = Meter(frozenset(range(clients - MEASURED, clients)))
    for c, session in sessions.items():
        row = meter.at_client(0, c, b"", session.keys)
        assert meter.at_server(0, lambda c=c, row=row: server.take_keys(c, row))  # type: ignore[misc]
    roster = meter.at_server(0, server.roster)
    for c, session in sessions.items():
        boxes = meter.at_client(1, c, roster, lambda s=session: s.shares(roster))  # type: ignore[misc]
        assert meter.at_server(1, lambda c=c, b=boxes: server.take_shares(c, b))  # type: ignore[misc]
    for c in server.sharers()[gone:]:
        down = meter.at_server(2, lambda c=c: server.forwarded(c))  # type: ignore[misc]
        masked = meter.at_client(
            2,
            c,
            down,
            lambda c=c, down=down: sessions[c].masked(down, b"request", lambda: vector),  # type: ignore[misc]
        )
        assert meter.at_server(2, lambda c=c, m=masked: server.take_masked(c, m))  # type: ignore[misc]
    survivors = server.survivors()
    for c in server.vectors():
        signature = meter.at_client(3, c, survivors, lambda c=c: sessions[c].survivors(survivors))  # type: ignore[misc]
        assert meter.at_server(3, lambda c=c, s=signature: server.take_signature(c, s))  # type: ignore[misc]
    signatures = server.signatures()
    for c in server.signers():
        shares = meter.at_client(4, c, signatures, lambda c=c: sessions[c].unmask(signatures))  # type: ignore[misc]
        assert meter.at_server(4, lambda c=c, s=shares: server.take_unmask(c, s))  # type: ignore[misc]
    total, found = meter.at_server(4, lambda: server.result(b"request"))
    assert len(found) == clients - gone
    assert (total == len(found) * vector).all()
    return meter


def plain(clients: int, uses: int) -> tuple[float, float, int]:
    """Processor time of a client and of the server, and bytes, of plain summation."""
    vector = np.random.default_rng(0).integers(-1000, 1000, VALUES * uses)
    dtype = np.dtype("<u4")
    start = time.process_time()
    sent = masks.packed(masks.encoded(vector, dtype), BITS)
    at_client = time.process_time() - start
    total = np.zeros(VALUES * uses, dtype)
    start = time.process_time()
    for _ in range(clients - clients // 20):
        total += masks.unpacked(sent, VALUES * uses, BITS, dtype)
    return at_client, time.process_time() - start, len(sent)


def main() -> None:
    """Prints one table for each number of clients and uses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--uses", type=int, nargs="+", default=[1, 20])
    options = parser.parse_args()
    for clients in options.clients:
        for uses in options.uses:
            meter = message(clients, uses)
            at_client, at_server, sent = plain(clients, uses)
            print(f"\n{clients} clients, {uses} uses\n")
            print("| trip | up, kB | down, kB | client, ms | server, ms |\n|---|---|---|---|---|")
            times = {trip: 1e3 * statistics.median(meter.clients[trip]) for trip in range(5)}
            for trip, name in enumerate(TRIPS):
                up, down = statistics.median(meter.up[trip]), statistics.median(meter.down[trip])
                print(
                    f"| {name} | {up / 1e3:.1f} | {down / 1e3:.1f} | {times[trip]:.2f} "
                    f"| {1e3 * meter.server[trip]:.1f} |"
                )
            up = sum(statistics.median(meter.up[trip]) for trip in range(5))
            down = sum(statistics.median(meter.down[trip]) for trip in range(5))
            total = 1e3 * sum(meter.server.values())
            print(
                f"| sum | {up / 1e3:.1f} | {down / 1e3:.1f} | {sum(times.values()):.2f} "
                f"| {total:.1f} |"
            )
            print(
                f"| plain | {sent / 1e3:.1f} | 0.0 | {1e3 * at_client:.2f} "
                f"| {1e3 * at_server:.1f} |"
            )
            print(
                f"| ratio | {up / sent:.2f} | | {sum(times.values()) / (1e3 * at_client):.1f} "
                f"| {total / (1e3 * at_server):.1f} |"
            )


if __name__ == "__main__":
    main()
