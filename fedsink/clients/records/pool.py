"""Records of one or several clients side by side, and samples drawn from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedsink.clients.records.shard import Shard
from fedsink.data.labelled import LabelledData
from fedsink.privacy import PoissonSampler
from fedsink.privacy.randomness.noise import Several, Streams
from fedsink.protocol.tree_sum import BLOCK

if TYPE_CHECKING:
    from fedsink.protocol.dp_sinkhorn import GradientRequest


@dataclass(frozen=True)
class PlaceLayout:
    """Samples of several clients in B places each, of which each holds a record or is empty."""

    clients: Tensor  # client of each sample, (K,), counted within the drawn ones
    indices: Tensor  # indices of the records in the pool, (K, B); any in an empty place
    present: Tensor  # (K, B) bool, true for places that hold a record

    def in_blocks(self, drawn: slice) -> Iterator[PlaceLayout]:
        """Yields the samples of some of the clients, `BLOCK` at a time, counted within these."""
        for start in range(drawn.start, drawn.stop, BLOCK):
            here = slice(start, min(start + BLOCK, drawn.stop))
            clients = torch.arange(here.start, here.stop) - drawn.start
            yield PlaceLayout(clients, self.indices[here], self.present[here])


@dataclass(frozen=True)
class Batch:
    """The records in some places, on the records' device."""

    records: Tensor  # coordinates, (K, B, D), zero in an empty place
    labels: Tensor  # (K, B) int64, zero in an empty place
    present: Tensor  # (K, B) bool, true for places that hold a record

    def meets(self, row_labels: Tensor) -> Tensor:
        """Returns (K, n, B) bool, true where a row may meet a record: present, and of its class."""
        same = row_labels.to(self.labels.device).unsqueeze(-1) == self.labels.unsqueeze(-2)
        return same & self.present.unsqueeze(-2)


@dataclass(frozen=True)
class Sample:
    """Poisson samples of several clients, one behind the other, as large as they come."""

    indices: Tensor  # indices of the records in the pool, (M,), client by client
    owners: Tensor  # each record's client, (M,), increasing, counted within the drawn ones
    clients: int  # number of clients

    def summed(self, sums: Tensor, count: int) -> Sample:
        """Returns the samples as those of fewer clients: `sums` (clients,) tells of which."""
        return Sample(self.indices, sums[self.owners], count)

    def of(self, mask: Tensor) -> Sample:
        """Returns the part of the sample where `mask` (M,) is true."""
        return Sample(self.indices[mask], self.owners[mask], self.clients)

    def in_buckets(self) -> Iterator[PlaceLayout]:
        """Yields layouts of few different widths; none for empty samples.

        The width, and so the result, depends only on a client's own sample: 16, 32 or 64 places,
        and above that less than a fifth of them empty.
        """
        sizes = self._sizes()
        # frexp gives the e with 2^(e−1) ≤ size − 1 < 2^e.
        exponents = torch.frexp((sizes - 1).to(torch.float64)).exponent
        steps = 2 ** torch.where(sizes > 64, exponents - 3, exponents.clamp(min=4)).to(torch.int64)
        widths = ((sizes + steps - 1) // steps * steps).masked_fill(sizes == 0, 0)
        for width in widths.unique().tolist():
            if width:
                yield self._laid_out(torch.nonzero(widths == width).flatten(), sizes, width)

    def in_blocks(self, drawn: slice) -> Iterator[PlaceLayout]:
        """Yields layouts as wide as the largest sample of `BLOCK` clients; none for empty samples.

        Of some of the clients, counted within these. For results that float rounding couples:
        blocks depend only on the clients' order.
        """
        here = (self.owners >= drawn.start) & (self.owners < drawn.stop)
        part = Sample(self.indices[here], self.owners[here] - drawn.start, drawn.stop - drawn.start)
        sizes = part._sizes()
        for block in torch.arange(part.clients).split(BLOCK):
            clients = block[sizes[block] > 0]
            if len(clients):
                yield part._laid_out(clients, sizes, int(sizes[clients].amax()))

    def _sizes(self) -> Tensor:
        return torch.bincount(self.owners, minlength=self.clients)

    def _laid_out(self, clients: Tensor, sizes: Tensor, width: int) -> PlaceLayout:
        starts = (sizes.cumsum(0) - sizes)[clients].unsqueeze(-1)
        places = torch.arange(width)
        present = places < sizes[clients].unsqueeze(-1)
        return PlaceLayout(clients, self.indices[torch.where(present, starts + places, 0)], present)


_AT_ONCE = 1 << 14  # records, which bounds the memory


class Pool:
    """Records of some clients, one client's behind the other's.

    Coordinates are kept for the last view asked for: one copy, however many clients there are. The
    shards, at least one, hold records of one shape on one device.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._one = shards[0] if len(shards) == 1 else None  # which keeps its own coordinates
        numbers = ([getattr(shard, name) for shard in shards] for name in ("users", "slots"))
        users, slots = (None if any(n is None for n in of) else torch.cat(of) for of in numbers)
        images = shards[0].images if self._one else torch.cat([shard.images for shard in shards])
        labels = torch.cat([shard.labels for shard in shards])
        sizes = torch.tensor([len(shard) for shard in shards])
        self._lay_out(images.__getitem__, labels, users, slots, sizes)

    @classmethod
    def of(cls, data: LabelledData, held: Tensor, sizes: Tensor, device: torch.device) -> Pool:
        """Returns the pool of clients with `sizes` (K,) of the checked records `held`, in order.

        Pictures stay where and as they are, until their coordinates are asked for.
        """
        pool = cls.__new__(cls)
        pool._one, users, slots = None, data.users, data.slots
        users, slots = (None if n is None else n[held] for n in (users, slots))

        def images(own: slice) -> Tensor:
            return data.take(held[own])[0].to(device)

        pool._lay_out(images, data.labels[held].to(device), users, slots, sizes)
        return pool

    def _lay_out(
        self,
        images: Callable[[slice], Tensor],
        labels: Tensor,
        users: Tensor | None,
        slots: Tensor | None,
        sizes: Tensor,
    ) -> None:
        self._images, self.labels, self._sizes = images, labels, sizes
        self.users, self.slots = users, slots
        self._labels_on_cpu = labels.cpu()  # samples are drawn there
        # The runs of a client's records: all of them in their order, or those of one class.
        self._starts = sizes.cumsum(0) - sizes
        self._by_class: tuple[Tensor, Tensor, Tensor] | None = None
        self._view: tuple[str, Tensor] | None = None

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def device(self) -> torch.device:
        return self.labels.device

    def records(self, own: slice) -> Shard:
        """Returns the records in some places."""
        users, slots = (None if n is None else n[own] for n in (self.users, self.slots))
        return Shard(self._images(own), self.labels[own], users, slots)

    def coordinates(self, view: dict[str, Any]) -> Tensor:
        """Returns every record in a public linear view, (N, D); raises like `Shard.coordinates`."""
        if self._one is not None:
            return self._one.coordinates(view)
        key = json.dumps(view, sort_keys=True)
        if self._view is None or self._view[0] != key:
            coordinates = self._empty.coordinates(view)
            coordinates = coordinates.new_empty(len(self.labels), coordinates.shape[1])
            for start in range(0, len(coordinates), _AT_ONCE):
                some = slice(start, start + _AT_ONCE)
                coordinates[some] = self.records(some).coordinates(view)
            self._view = key, coordinates
        return self._view[1]

    def norm_bound(self, view: dict[str, Any]) -> float:
        """Returns the view's public bound on the norm of a record; raises like `coordinates`."""
        return (self._one or self._empty).norm_bound(view)

    @cached_property
    def _empty(self) -> Shard:
        """No records, and the views that were asked for."""
        return self.records(slice(0))

    def places_of(self, client: int) -> slice:
        """Returns where one client's records lie among the pool's."""
        start = int(self._starts[client])
        return slice(start, start + int(self._sizes[client]))

    def shard(self, first: int, clients: int = 1) -> Shard:
        """Returns the records of one client, or of some that lie side by side."""
        start, stop = self.places_of(first).start, self.places_of(first + clients - 1).stop
        return self.records(slice(start, stop))

    def sizes(self, clients: Tensor) -> Tensor:
        """Returns the number of records of each of some clients."""
        return self._sizes[clients]

    def draw(
        self, requests: Sequence[GradientRequest], clients: Sequence[Tensor], coins: Several
    ) -> Sample:
        """Draws some clients' Poisson samples: each record of the class with probability q.

        Args:
            requests: of one plan.
            clients: numbers of the clients that each request asks, in the pool.
            coins: each client's stream.
        """
        members, starts, sizes = self.runs(requests, clients)
        taken = PoissonSampler(requests[0].plan.rate).draw_each(sizes.numpy(), coins)
        taken, ends = torch.nonzero(taken).flatten(), sizes.cumsum(0)
        owners = torch.searchsorted(ends, taken, right=True)
        within = taken - (ends - sizes)[owners]
        return Sample(_at(members, starts[owners] + within), owners, len(sizes))

    def draw_at_most(
        self, requests: Sequence[GradientRequest], clients: Sequence[Tensor], coins: Several
    ) -> PlaceLayout:
        """Draws the samples of `draw` in as many places as the plan's capacity B.

        Of a larger sample a uniformly random part stays, whatever the records. No shape depends on
        a sample.
        """
        plan = requests[0].plan
        if plan.capacity is None:
            raise ValueError("The plan fixes no capacity.")
        sampler = PoissonSampler(plan.rate)
        members, starts, sizes = self.runs(requests, clients)
        drawn = [
            sampler.draw_at_most(size, plan.capacity, stream)
            for size, stream in zip(
                sizes.tolist(), coins.each() if isinstance(coins, Streams) else coins, strict=True
            )
        ]
        places, present = (torch.stack(parts) for parts in zip(*drawn, strict=True))
        # An empty place reads some record too, and drops it.
        indices = _at(members, torch.where(present, starts.unsqueeze(-1) + places, 0))
        return PlaceLayout(torch.arange(len(sizes)), indices, present)

    def batch(self, request: GradientRequest, places: PlaceLayout) -> Batch:
        """Returns the records in these places, in the request's view."""
        coordinates = self.coordinates(request.view)
        indices, present = (v.to(coordinates.device) for v in (places.indices, places.present))
        if len(self.labels) == 0:
            records = coordinates.new_zeros(*indices.shape, coordinates.shape[1])
            return Batch(records, torch.zeros_like(indices), present)
        records = torch.where(present.unsqueeze(-1), coordinates[indices], 0.0)
        classes = classes_under(request.objective.classes, self.labels[indices])
        labels = torch.where(present, classes, 0)
        return Batch(records, labels, present)

    def classes_of(self, classes: int, sample: Sample) -> Tensor:
        """Returns the class of each sampled record, (M,) on the CPU."""
        return classes_under(classes, self._labels_on_cpu[sample.indices])

    def runs(
        self, requests: Sequence[GradientRequest], clients: Sequence[Tensor]
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Returns the records that each client may sample: those of its class (None: all).

        These are indices into the pool (None: its own order), in which each client's records stand
        together, and for each client the first one's place, (K,), and their number, (K,).
        """
        everyone = torch.cat([*clients])
        if requests[0].label is None:
            return None, self._starts[everyone], self._sizes[everyone]
        members, starts, sizes = self._of_classes()
        last = starts.shape[1] - 1  # the last class has no records
        wanted = [r.label if 0 <= r.label < last else last for r in requests if r.label is not None]
        column = torch.tensor(wanted).repeat_interleave(torch.tensor([len(c) for c in clients]))
        return members, starts[everyone, column], sizes[everyone, column]

    def _of_classes(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns records ordered by client and class, each such run's start and its size."""
        if self._by_class is None:
            labels = self._labels_on_cpu
            columns = int(labels.amax()) + 2 if len(labels) else 1
            owners = torch.arange(len(self)).repeat_interleave(self._sizes)
            keys = owners * columns + labels
            # Stable: within its class a client's records keep their order.
            members = keys.argsort(stable=True)
            sizes = torch.bincount(keys, minlength=len(self) * columns)
            starts = (sizes.cumsum(0) - sizes).reshape(-1, columns)
            self._by_class = members, starts, sizes.reshape(-1, columns)
        return self._by_class


def classes_under(classes: int, labels: Tensor) -> Tensor:
    """Returns the labels; where a request knows one class, all are that class."""
    return torch.zeros_like(labels) if classes == 1 else labels


def _at(members: Tensor | None, places: Tensor) -> Tensor:
    if members is None:
        return places
    return members[places] if len(members) else torch.zeros_like(places)
