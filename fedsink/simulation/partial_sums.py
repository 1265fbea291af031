"""An exchange divided among the processes of a simulation, and the sums that they send back.

`divide` gives each process its portions of an exchange's broadcasts. It answers each portion with
a `PartialSum`, and `combine` adds these up for the strategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedsink.protocol.exchange import Exchange, Reduction, Sum
from fedsink.protocol.tree_sum import BLOCK, TreeSum


@dataclass(frozen=True)
class Portion:
    """The clients of one broadcast that one process answers for.

    Attributes:
        place: index of the broadcast in its exchange.
        clients: consecutive clients of the broadcast, in whole blocks.
        shape: of a reply.
        lo: number of their first block within the broadcast.
        hi: number of the block behind their last one; None: they are the broadcast's last ones.
    """

    place: int
    clients: Sequence[int]
    shape: tuple[int, ...]
    lo: int = 0
    hi: int | None = None


@dataclass(frozen=True)
class PartialSum:
    """The sum of the replies to one portion.

    Attributes:
        sums: `TreeSum.parts` of the replies.
        clients: number of replies in them.
        failures: client → error code; where there are any, nothing was added up.
    """

    sums: list[tuple[int, Tensor]]
    clients: int
    failures: dict[int, int]


NO_REPLIES = PartialSum([], 0, {})
"""The sum of a process without a portion of a broadcast."""


def divide(exchange: Exchange, processes: int, block: int = BLOCK) -> list[list[Portion]]:
    """The portions of each process: equal shares of all clients, in the order of the broadcasts.

    A process meets few broadcasts, and the same clients whenever broadcasts are divided alike.

    Args:
        exchange: to be answered.
        processes: number of processes.
        block: consecutive clients of a broadcast that are not divided.
    """
    everyone = len(exchange)
    portions: list[list[Portion]] = [[] for _ in range(processes)]
    before = 0  # clients of earlier broadcasts
    for place, broadcast in enumerate(exchange.broadcasts):
        clients = list(broadcast.nodes)
        # Of all clients in a row, process p has the p-th of equal stretches. A block is not cut:
        # it belongs to the process in whose stretch its middle falls.
        owners = []
        for start in range(0, len(clients), block):
            middle = start + len(clients[start : start + block]) / 2
            owners.append(int((before + middle) * processes / everyone))
        before += len(clients)
        cuts = _cuts(owners)
        for (owner, lo), hi in zip(cuts.items(), [*list(cuts.values())[1:], None], strict=True):
            members = clients[lo * block : None if hi is None else hi * block]
            portions[owner].append(Portion(place, members, broadcast.shape, lo, hi))
    return portions


def _cuts(owners: list[int]) -> dict[int, int]:
    """The first block of each process that has blocks of a broadcast.

    Args:
        owners: the process that each block belongs to, never decreasing.
    """
    processes = sorted(set(owners))
    # Sums are made along a binary tree over the blocks, so a cut at a multiple of a power of two
    # leaves few partial sums to send. The power is small against a share, at most an eighth.
    step = 1 << max(0, (len(owners) // (8 * len(processes))).bit_length() - 1)
    return {process: round(owners.index(process) / step) * step for process in processes}


def combine(processes: Sequence[Sequence[PartialSum]]) -> Reduction:
    """Adds up the sums of all processes; the result is the same for any number of them.

    Args:
        processes: in the order of their clients; each has one partial sum for each broadcast.
    """
    failures: dict[int, int] = {}
    sums: list[Sum | None] = []
    for of_broadcast in zip(*processes, strict=True):
        total, clients = TreeSum(), 0
        for partial in of_broadcast:
            failures |= partial.failures
            clients += partial.clients
            for block, values in partial.sums:
                total.add(block, values)
        parts = total.parts()
        sums.append(Sum(parts[0][1], clients) if parts else None)
    return Reduction(sums, failures)
