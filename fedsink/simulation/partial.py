"""Sums that cohorts made, brought together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedsink.protocol.exchange import Exchange, Reduction, Sum
from fedsink.protocol.tree_sum import BLOCK, TreeSum


@dataclass(frozen=True)
class Part:
    """What one cohort does of one broadcast.

    Attributes:
        place: which of the exchange's broadcasts.
        clients: consecutive clients of it.
        shape: of a reply.
        lo, hi: they are the broadcast's blocks from lo to below hi; None: to the last one.
    """

    place: int
    clients: Sequence[int]
    shape: tuple[int, ...]
    lo: int = 0
    hi: int | None = None


@dataclass(frozen=True)
class Partial:
    """What one cohort's replies to one broadcast add up to.

    Attributes:
        sums: `TreeSum.parts` of the replies.
        clients: how many replies are in them.
        failures: client → error code; where there are any, nothing was added up.
    """

    sums: list[tuple[int, Tensor]]
    clients: int
    failures: dict[int, int]


def parts(exchange: Exchange, cohorts: int) -> list[list[Part]]:
    """Divide an exchange among cohorts: equal shares of its blocks, one behind the other.

    A cohort meets few broadcasts, and the same clients whenever these share contents as before.
    """
    total = len(exchange)
    shares: list[list[Part]] = [[] for _ in range(cohorts)]
    done = 0
    for place, broadcast in enumerate(exchange.broadcasts):
        clients = list(broadcast.nodes)
        sizes = [len(clients[start : start + BLOCK]) for start in range(0, len(clients), BLOCK)]
        # A block goes where its middle falls in the row of all clients.
        middles = [BLOCK * block + size / 2 for block, size in enumerate(sizes)]
        whose = [int((done + middle) * cohorts / total) for middle in middles]
        done += len(clients)
        these = sorted(set(whose))
        # Cut where few partial sums come of it: at multiples of a power of two that is small
        # against a share.
        step = 1 << max(0, (len(whose) // (8 * len(these))).bit_length() - 1)
        cuts = [round(whose.index(cohort) / step) * step for cohort in these]
        for cohort, lo, hi in zip(these, cuts, [*cuts[1:], None], strict=True):
            mine = clients[lo * BLOCK : None if hi is None else hi * BLOCK]
            shares[cohort].append(Part(place, mine, broadcast.shape, lo, hi))
    return shares


def reduction(cohorts: Sequence[Sequence[Partial]]) -> Reduction:
    """Add up what the cohorts added up, the same for any number of them.

    Args:
        cohorts: in the order of their clients; each has one partial for each broadcast.
    """
    failures: dict[int, int] = {}
    sums: list[Sum | None] = []
    for of_broadcast in zip(*cohorts, strict=True):
        total, clients = TreeSum(), 0
        for partial in of_broadcast:
            failures |= partial.failures
            clients += partial.clients
            for block, values in partial.sums:
                total.add(block, values)
        parts = total.parts()
        sums.append(Sum(parts[0][1], clients) if parts else None)
    return Reduction(sums, failures)
