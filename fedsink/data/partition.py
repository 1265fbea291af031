"""Dealing one dataset out to simulated clients: disjoint shards that cover every record.

The schemes are public and deterministic in `seed`. The shards themselves and `manifest` describe
private data; they exist because a simulation owns all of it.

>>> labels = torch.tensor([0, 1, 0, 1, 0, 1])
>>> shards = partition(labels, 2, {"name": "by_label", "labels_per_client": 1}, seed=0)
>>> sorted(labels[shard].tolist() for shard in shards)
[[0, 0, 0], [1, 1, 1]]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsink.errors import ConfigError, DataError
from fedsink.registry import Registry
from fedsink.values import by_range, checks

Indices = np.ndarray

_MOST = 1000  # entries of a partition's description


@dataclass(frozen=True, eq=False)
class Deal:
    """The records of each client, by index: two arrays, however many clients there are.

    Iterated or taken by a client's number, it gives that client's indices.

    Attributes:
        order: indices of the dealt records, client by client, increasing within each (N,) int64.
        sizes: number of records of each client (K,) int64.
    """

    order: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, shards: Sequence[Indices]) -> Deal:
        """Returns the deal of these indices."""
        sizes = np.fromiter(map(len, shards), np.int64, len(shards))
        indices = np.concatenate([np.empty(0, np.int64), *shards]).astype(np.int64)
        order = np.lexsort((indices, np.repeat(np.arange(len(shards)), sizes)))
        return cls(torch.from_numpy(indices[order]), torch.from_numpy(sizes))

    @cached_property
    def starts(self) -> Tensor:
        """Place of each client's first record in `order` (K,)."""
        return self.sizes.cumsum(0) - self.sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, client: int) -> Tensor:
        start = int(self.starts[client])
        return self.order[start : start + int(self.sizes[client])]

    def __iter__(self) -> Iterator[Tensor]:
        return map(self.__getitem__, range(len(self)))

    def only(self, clients: Collection[int]) -> Deal:
        """Returns the deal in which all but these clients hold nothing."""
        kept = torch.zeros(len(self), dtype=torch.bool)
        kept[torch.tensor(sorted(clients), dtype=torch.int64)] = True
        return Deal(self.order[kept.repeat_interleave(self.sizes)], self.sizes * kept)


@dataclass(frozen=True)
class Iid:
    """Deals equal shards of a random permutation (sizes differ by at most one)."""

    def deal(self, labels: Indices, clients: int, random: np.random.Generator) -> list[Indices]:
        return np.array_split(random.permutation(len(labels)), clients)


@dataclass(frozen=True)
class Dirichlet:
    """Draws the clients' fractions of each class from Dirichlet(α, …, α); small α is skewed.

    A client that would be left without records receives one from the largest shard.
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        checks.positive("partition.alpha", self.alpha)

    def deal(self, labels: Indices, clients: int, random: np.random.Generator) -> list[Indices]:
        shards: list[list[int]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            members = random.permutation(np.flatnonzero(labels == label))
            fractions = random.dirichlet(np.full(clients, self.alpha))
            if not np.isclose(fractions.sum(), 1.0):  # every gamma draw underflowed: α is tiny
                fractions = np.eye(clients)[random.integers(clients)]
            ends = np.round(np.cumsum(fractions) * len(members)).astype(int)
            for shard, part in zip(shards, np.split(members, ends[:-1]), strict=True):
                shard.extend(part.tolist())
        for shard in shards:
            if not shard:
                shard.append(max(shards, key=len).pop())
        return [np.asarray(shard, dtype=np.int64) for shard in shards]


@dataclass(frozen=True)
class ByLabel:
    """Gives every client records of at most `labels_per_client` classes."""

    labels_per_client: int = 2

    def __post_init__(self) -> None:
        checks.count("partition.labels_per_client", self.labels_per_client)

    def deal(self, labels: Indices, clients: int, random: np.random.Generator) -> list[Indices]:
        present = random.permutation(np.unique(labels))
        held = min(self.labels_per_client, len(present))
        if held * clients < len(present):
            raise DataError(
                f"{clients} clients with {held} labels each cannot hold {len(present)} classes; "
                f"set partition.labels_per_client to {-(-len(present) // clients)} or more."
            )
        classes = np.arange(clients * held).reshape(clients, held) % len(present)
        shards: list[list[int]] = [[] for _ in range(clients)]
        for position, label in enumerate(present):
            members = random.permutation(np.flatnonzero(labels == label))
            holders = np.flatnonzero((classes == position).any(axis=1)).tolist()
            holders.sort(key=lambda client: len(shards[client]))
            for client, part in zip(holders, np.array_split(members, len(holders)), strict=True):
                shards[client].extend(part.tolist())
        if not all(shards):
            raise DataError(
                f"{clients} clients with {held} labels each: some class has fewer records than "
                f"clients that hold it; use fewer clients or more labels per client."
            )
        return [np.asarray(shard, dtype=np.int64) for shard in shards]


@dataclass(frozen=True)
class Unequal:
    """Deals random shards with the weights sizes[k], or ratio**k without sizes, of clients k.

    Weights are relative; weights that sum to the number of records are met exactly.
    """

    ratio: float = 0.8
    sizes: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.sizes is not None:
            sizes = tuple(checks.positive("partition.sizes", size) for size in self.sizes)
            object.__setattr__(self, "sizes", sizes)
        checks.within("partition.ratio", self.ratio, "(0, 1]")

    def deal(self, labels: Indices, clients: int, random: np.random.Generator) -> list[Indices]:
        if self.sizes is not None and len(self.sizes) != clients:
            raise ConfigError(
                f"partition.sizes lists {len(self.sizes)} clients, but there are {clients}."
            )
        weights = np.asarray(
            self.sizes if self.sizes is not None else [self.ratio**k for k in range(clients)]
        )
        # Every client starts with one record; the rest follows the weights by largest remainder.
        wanted = weights / weights.sum() * len(labels)
        counts = np.maximum(np.floor(wanted), 1).astype(int)
        while counts.sum() < len(labels):
            counts[np.argmax(wanted - counts)] += 1
        while counts.sum() > len(labels):
            counts[np.argmin(np.where(counts > 1, wanted - counts, np.inf))] -= 1
        return np.split(random.permutation(len(labels)), np.cumsum(counts)[:-1])


@dataclass(frozen=True)
class ByUser:
    """Deals out whole users: one per client if there are as many users, else equally many each.

    The numbers of users of two clients differ by at most one, whatever records users have.
    """

    def deal(self, users: Indices, clients: int, random: np.random.Generator) -> list[Indices]:
        present, places = np.unique(users, return_inverse=True)
        holders = np.empty(len(present), dtype=np.int64)
        for client, members in enumerate(np.array_split(random.permutation(len(present)), clients)):
            holders[members] = client
        holder = holders[places]
        ends = np.cumsum(np.bincount(holder, minlength=clients))
        return np.split(np.argsort(holder, kind="stable"), ends[:-1])


PartitionSpec = Iid | Dirichlet | ByLabel | Unequal | ByUser
"""Any of the schemes; each deals records, by their labels or users, one index array per client."""

SCHEMES: Registry[type[PartitionSpec]] = Registry(
    "partition.name",
    {
        "iid": Iid,
        "dirichlet": Dirichlet,
        "by_label": ByLabel,
        "unequal": Unequal,
        "by_user": ByUser,
    },
)


def scheme_from_dict(options: Mapping[str, Any]) -> PartitionSpec:
    """Returns the scheme for {"name": "dirichlet", "alpha": 0.3} and the like."""
    scheme: PartitionSpec = SCHEMES.from_dict(options)
    return scheme


def partition(
    labels: Tensor,
    clients: int,
    scheme: PartitionSpec | Mapping[str, Any],
    seed: int,
    *,
    users: Tensor | None = None,
) -> Deal:
    """Deals the records with `labels` (N,) and `users` (N,) out to `clients` clients.

    Returns one sorted int64 index tensor per client, as a sequence: the shards are disjoint, cover
    every record and none is empty. The same arguments give the same shards.

    Raises:
        ConfigError: for fewer than one client or a bad scheme, or `ByUser` without users.
        DataError: where the records do not suffice for that many clients.
    """
    if clients < 1:
        raise ConfigError(f"the number of clients must be at least 1, got {clients}.")
    rule = scheme_from_dict(scheme) if isinstance(scheme, Mapping) else scheme
    random = np.random.Generator(np.random.PCG64(seed))
    dealt, most, what = labels, len(labels), "records"
    if isinstance(rule, ByUser):
        if users is None:
            raise ConfigError(
                "partition=by_user deals whole users, and this source tells none apart: choose "
                "another partition, or give a Federation its users=."
            )
        dealt, most, what = users, len(users.unique()), "users"
    if clients > most:
        raise DataError(
            f"{clients} clients cannot share {most} {what}; use at most {most} clients."
        )
    return Deal.of(rule.deal(dealt.numpy(), clients, random))


def manifest(dealt: Deal, labels: Tensor, classes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Describes a partition: client → {"records": n, "labels": {class: n}}, ready for JSON.

    Clients are named as `by_range` does; a partition of more than `_MOST` entries is summed up.
    These are exact counts of private data: for a simulation's own report, never for a server.
    """

    def described(held: list[int]) -> dict[str, Any]:
        counts = Counter(held)
        by_class = {name: counts[label] for label, name in enumerate(classes)}
        return {"records": len(held), "labels": by_class}

    held, sizes = labels[dealt.order].tolist(), dealt.sizes.tolist()
    ends = zip(sizes, accumulate(sizes), strict=True)
    entries = by_range(enumerate(sorted(held[end - size : end]) for size, end in ends))
    if len(listed := [*islice(entries, _MOST + 1)]) <= _MOST:
        return {"clients": {str(name): described(entry) for name, entry in listed}}
    sizes.sort()
    least_median_most = [sizes[0], sizes[len(sizes) // 2], sizes[-1]]
    what = f"More than {_MOST} entries were needed, so that all clients are described together."
    together = {"meaning": what, "clients": len(sizes), "least_median_most": least_median_most}
    return {"summary": together | described(held)}
