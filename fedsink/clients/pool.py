"""The records of several virtual clients side by side, so that one index finds those of all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsink.clients.shard import Shard
from fedsink.privacy import PoissonSampler, Stream
from fedsink.protocol import GradientRequest
from fedsink.protocol.exchange import BLOCK


class Pool:
    """Labels and coordinates of some clients' shards, in the shards' order.

    Coordinates are kept for the last view asked for: one copy, however many clients there are.

    Args:
        shards: at least one, of records of one shape.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = shards
        self.labels = torch.cat([shard.labels for shard in shards])
        self._owners = np.repeat(np.arange(len(shards)), [len(shard) for shard in shards])
        self._members: dict[int | None, tuple[Tensor, np.ndarray]] = {}
        self._view: tuple[str, Tensor] | None = None

    def coordinates(self, view: dict[str, Any]) -> Tensor:
        """Every record in a public linear view, (N, D); raises ValueError like `Shard`'s."""
        key = json.dumps(view, sort_keys=True)
        if self._view is None or self._view[0] != key:
            images = torch.cat([shard.images for shard in self.shards])
            self._view = key, Shard(images, self.labels).coordinates(view)
        return self._view[1]

    def draw(
        self, request: GradientRequest, part: slice, samples: Sequence[Stream]
    ) -> tuple[Tensor, Tensor]:
        """The Poisson samples of some of the clients, as each client's own path draws it.

        Args:
            request: names the class and the rate.
            part: the clients' places among the shards.
            samples: one stream per client of the part.

        Returns:
            Indices of the sampled records and their clients' places within the part, (M,) each,
            client by client.
        """
        members, offsets = self._of_label(request.label)
        bounds = offsets[part.start : part.stop + 1]
        sizes = np.diff(bounds)
        taken = PoissonSampler(request.plan.rate).draw_each(sizes.tolist(), samples)
        owners = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes))
        return members[int(bounds[0]) : int(bounds[-1])][taken], owners[taken]

    def _of_label(self, label: int | None) -> tuple[Tensor, np.ndarray]:
        """Indices of the records of a class, and where each client's begin among them."""
        if label not in self._members:
            mine = np.arange(len(self.labels))
            if label is not None:
                mine = np.flatnonzero(self.labels.numpy() == label)
            sizes = np.bincount(self._owners[mine], minlength=len(self.shards))
            offsets = np.concatenate(([0], np.cumsum(sizes)))
            self._members[label] = torch.from_numpy(mine), offsets
        return self._members[label]


def buckets(owners: Tensor, clients: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Samples laid out in rows of 1, 2, 4, 8, … places, those of similar size together.

    The width depends on a client's own sample alone, and so does what is computed from its row.

    Args:
        owners: each record's client, (M,), increasing.
        clients: how many clients there are.

    Yields:
        Clients (k,), indices of their records (k, B), and which places hold one, (k, B) bool.
        Clients without records are left out.
    """
    sizes = torch.bincount(owners, minlength=clients)
    starts = sizes.cumsum(0) - sizes
    # frexp gives the e with 2^(e−1) ≤ size − 1 < 2^e.
    exponents = torch.frexp((sizes - 1).to(torch.float64)).exponent.masked_fill(sizes == 0, -1)
    for exponent in exponents.unique().tolist():
        if exponent < 0:
            continue
        mine = torch.nonzero(exponents == exponent).flatten()
        places = torch.arange(1 << exponent)
        present = places < sizes[mine].unsqueeze(-1)
        yield mine, torch.where(present, starts[mine].unsqueeze(-1) + places, 0), present


def blocks(owners: Tensor, clients: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Samples laid out in rows as wide as the largest of a block of `BLOCK` clients.

    For what float rounding couples: who is in a block depends on the clients' order alone.
    Arguments and values are those of `buckets`.
    """
    sizes = torch.bincount(owners, minlength=clients)
    starts = sizes.cumsum(0) - sizes
    for block in torch.arange(clients).split(BLOCK):
        mine = block[sizes[block] > 0]
        if len(mine):
            places = torch.arange(int(sizes[mine].amax()))
            present = places < sizes[mine].unsqueeze(-1)
            yield mine, torch.where(present, starts[mine].unsqueeze(-1) + places, 0), present
