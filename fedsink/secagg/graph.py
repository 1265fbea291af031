"""Neighbours: the clients with whom a client agrees masks and shares its secrets.

In a small cohort all clients are neighbours (Bonawitz et al. 2017). In a larger one they sit on a
circle in a public random order, and each has the k/2 clients on either side (Bell et al. 2020,
section 3: a Harary graph with shuffled nodes).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from math import comb

COMPLETE = 64
"""Up to this number of clients all are neighbours."""

SECURITY = 80
"""−log2 of the probability that a circle is bad: 40 for chance, 40 for a search by the server."""


def two_thirds(size: int) -> int:
    """Returns the least number above two thirds.

    Two sets of so many out of n clients have an honest client in common where fewer than n/3
    collude with the server (Bonawitz et al. 2017, Theorem 6.5).

    >>> [two_thirds(size) for size in (3, 4, 10, 64)]
    [3, 3, 7, 43]
    """
    return 2 * size // 3 + 1


def is_secure(clients: int, neighbours: int, threshold: int) -> bool:
    """Tells whether honest survivors are connected, and no secret is known to colluders.

    *Lemma.* Let h = k/2, m = k + 1, and let the server learn the self mask of every honest survivor
    that it wants to unmask, so that at least t of the m clients around it have survived or collude.
    If fewer than t − h − 1 of the h clients on either side collude, then no run of h clients beside
    an honest survivor consists of the dropped and colluding only (honest ones that dropped are at
    most m − t): the next honest survivor on the circle is a neighbour, and all are connected. Then
    their masks cancel in no sum over fewer of them. A neighbourhood has fewer than
    2(t − h − 1) ≤ t colluders, so that they cannot rebuild a secret either.

    The number of colluders among h clients beside a client is hypergeometric: the circle's order is
    drawn after the keys. With n/10 colluders in a roster of only two thirds of the n clients that
    were asked, the union over 2n sides is at most 2^-`SECURITY`. Where k = n − 1, all are
    neighbours, and only the threshold t counts.
    """
    if not two_thirds(neighbours + 1) <= threshold <= neighbours + 1:
        return False
    if neighbours == clients - 1:
        return True
    if clients <= COMPLETE or neighbours % 2 or not 0 < neighbours < clients - 1:
        return False
    half, colluding, others = neighbours // 2, clients // 10, two_thirds(clients) - 1
    if neighbours > others:
        return False
    bad = 2 * clients * _tail(others, colluding, half, threshold - half - 1)
    return bad << SECURITY <= comb(others, half)


def most_colluders(clients: int) -> int:
    """Returns the number of colluders among n clients up to which the masks hold.

    >>> most_colluders(10), most_colluders(100)
    (3, 10)
    """
    return (clients - 1) // 3 if clients <= COMPLETE else clients // 10


@cache
def neighbourhood(clients: int) -> tuple[int, int]:
    """Returns (k, t) for n clients: the smallest secure circle that survives drop-outs.

    With n/10 clients missing at random, at most one message in a thousand has a survivor with fewer
    than t of its m = k + 1 clients left.

    >>> neighbourhood(5), neighbourhood(64)
    ((4, 4), (63, 43))
    """
    everybody = clients - 1, two_thirds(clients)
    if clients <= COMPLETE:
        return everybody
    for k in range(2, clients - 1, 2):
        t = next((t for t in range(two_thirds(k + 1), k + 2) if is_secure(clients, k, t)), None)
        if t is None:
            continue
        lost = _tail(clients, clients // 10, k + 1, k + 2 - t)
        if 1000 * clients * lost <= comb(clients, k + 1):
            return k, t
    return everybody


def _tail(population: int, marked: int, drawn: int, least: int) -> int:
    """Returns the number of draws, out of C(population, drawn), with at least so many marked."""
    return sum(
        comb(marked, found) * comb(population - marked, drawn - found)
        for found in range(max(least, 0), min(marked, drawn) + 1)
    )


class Circle:
    """The clients of one roster in the order of the circle; of at most k + 1 all are neighbours."""

    # The seed is the roster's digest, of every client's fresh keys: nobody chooses neighbours for
    # less than a search (`SECURITY`).

    def __init__(self, clients: Sequence[int], neighbours: int, seed: bytes) -> None:
        self._everybody = len(clients) <= neighbours + 1
        self._order = sorted(clients)
        if not self._everybody:
            self._order.sort(key=lambda c: hashlib.sha256(seed + c.to_bytes(4, "big")).digest())
        self._place = {client: place for place, client in enumerate(self._order)}
        self._half = neighbours // 2

    def around(self, client: int) -> tuple[int, ...]:
        """Returns a client and its neighbours in the order of its shares: the j-th has share j."""
        if self._everybody:
            return tuple(self._order)
        place, size = self._place[client], len(self._order)
        steps = range(place - self._half, place + self._half + 1)
        return tuple(self._order[step % size] for step in steps)
