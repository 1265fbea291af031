"""Neighbours: the clients with whom a client agrees masks and shares its secrets.

In a small cohort all clients are neighbours (Bonawitz et al. 2017). In a larger one they sit on a
circle in a public random order, and each has the k/2 clients on either side (Bell et al. 2020,
section 3, a Harary graph with shuffled nodes).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def neighbourhoods(
    clients: Sequence[int], neighbours: int, seed: bytes
) -> dict[int, tuple[int, ...]]:
    """Returns the neighbours of each client, increasing, without itself.

    Args:
        clients: of the roster, increasing.
        neighbours: k; in a cohort of at most k + 1 clients all are neighbours.
        seed: the roster's digest; it is fixed once keys are, so that no client can choose its
            neighbours by choosing its keys for less than a search.
    """
    if len(clients) - 1 <= neighbours:
        return {client: tuple(c for c in clients if c != client) for client in clients}
    circle = sorted(clients, key=lambda c: hashlib.sha256(seed + c.to_bytes(4, "big")).digest())
    near = [step for distance in range(1, neighbours // 2 + 1) for step in (-distance, distance)]
    size = len(circle)
    return {
        client: tuple(sorted(circle[(place + step) % size] for step in near))
        for place, client in enumerate(circle)
    }
