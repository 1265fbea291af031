"""Cost of the engine: trivial clients on our grid against bare Ray actors that add up.

Every client of K gets 60×784 float32 values and returns them plus its number; two actors. The
bare actors loop over their clients and return one float64 sum without any check. Our grid
packs and reads a request, checks every reply and adds along the tree. Both take turns in one Ray
instance. Arguments: numbers of clients.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_LOG_LEVEL="ERROR", FLWR_DISABLE_UPDATE_CHECK="1")

import numpy as np
import ray
import torch
from flwr.clientapp import ClientApp

from fedsink.protocol.exchange import Answers, Broadcast, Content, Exchange, Uploads
from fedsink.protocol.packing import pack, unpack
from fedsink.protocol.tree_sum import BLOCK
from fedsink.simulation.ray.ray_grid import RayGrid
from fedsink.simulation.virtual_clients import Hosted

SHAPE = (60, 784)
ACTORS = 2
ROUNDS = {10: 200, 100: 100, 1000: 40}


class Trivial:
    """All clients of a block at once."""

    block = BLOCK

    def handles(self, message_type: str) -> bool:
        return True

    def uploads(self, message_type: str) -> bool:
        return False

    def upload(self, message_type: str, content: Content, clients: Sequence[int]) -> Uploads:
        raise NotImplementedError

    def answers(
        self, message_type: str, contents: Sequence[Content], clients: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, Answers]]:
        for number, (content, whose) in enumerate(zip(contents, clients, strict=True)):
            rows = unpack(content.record)[1]["x"]
            for start in range(0, len(whose), BLOCK):
                block = whose[start : start + BLOCK]
                numbers = torch.tensor(block, dtype=rows.dtype)
                yield number, Answers(block, rows + numbers.view(-1, 1, 1))


def host(settings: Any) -> Hosted:
    torch.set_num_threads(1)
    return Hosted(ClientApp(), Trivial())


class Shard:
    """A bare actor."""

    def __init__(self, clients: range) -> None:
        self.clients = clients

    def total(self, rows: np.ndarray) -> np.ndarray:
        total = np.zeros(rows.shape)
        for client in self.clients:
            total += rows + np.float32(client)
        return total


def bare_round(actors: list[Any], x: torch.Tensor) -> np.ndarray:
    shared = ray.put(x.numpy())
    total: np.ndarray = sum(ray.get([actor.total.remote(shared) for actor in actors]))
    return total


def our_round(grid: RayGrid, x: torch.Tensor) -> np.ndarray:
    content = Content(list, lambda: pack({}, {"x": x}))
    broadcast = Broadcast(content, grid.roster(), SHAPE)
    reduced: Any = grid.send_and_receive(Exchange("train.trivial", "1", [broadcast]))
    total: np.ndarray = reduced.sums[0].total.numpy()
    return total


def medians(clients: int, x: torch.Tensor) -> list[float]:
    """Seconds of a round of bare Ray, and of ours."""
    settings: Any = SimpleNamespace(clients=clients)
    grid = RayGrid(settings, actors=ACTORS, num_cpus=2 * ACTORS, host=host)
    shard: Any = ray.remote(num_cpus=1)(Shard)
    bare = [shard.remote(range(place, clients, ACTORS)) for place in range(ACTORS)]
    runs = [partial(bare_round, bare, x), partial(our_round, grid, x)]
    np.testing.assert_allclose(bare_round(bare, x), our_round(grid, x), rtol=1e-6)
    seconds: list[list[float]] = [[], []]
    for _ in range(ROUNDS[clients]):
        for run, noted in zip(runs, seconds, strict=True):
            began = time.perf_counter()
            run()
            noted.append(time.perf_counter() - began)
    for actor in bare:
        ray.kill(actor)
    grid.close()
    return [statistics.median(noted) for noted in seconds]


def main() -> None:
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    print("| clients | bare Ray, rounds/s | ours, rounds/s | ratio |\n|---|---|---|---|")
    ratios = []
    for clients in [int(argument) for argument in sys.argv[1:]] or list(ROUNDS):
        bare, ours = medians(clients, x)
        print(f"| {clients} | {1 / bare:.3g} | {1 / ours:.3g} | {bare / ours:.2f} |", flush=True)
        ratios.append(f"ratio simulation-shards-{clients} {bare / ours:.2f}")
    print("\n".join(ratios))


if __name__ == "__main__":
    main()
