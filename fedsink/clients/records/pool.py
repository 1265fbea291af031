"""Records of one or several clients side by side, and samples drawn from them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedsink.clients.records.shard import Shard
from fedsink.privacy import PoissonSampler, Stream
from fedsink.protocol.tree_sum import BLOCK

if TYPE_CHECKING:
    from fedsink.protocol.dp_sinkhorn import GradientRequest


@dataclass(frozen=True)
class PlaceLayout:
    """Samples of several clients in B places each, of which each holds a record or is empty."""

    clients: Tensor  # client of each sample, (K,), counted within the drawn ones
    indices: Tensor  # indices of the records in the pool, (K, B); any in an empty place
    present: Tensor  # (K, B) bool, true for places that hold a record

    def pooled(self) -> PlaceLayout:
        """Returns all places as those of one client."""
        return PlaceLayout(
            torch.zeros(1, dtype=torch.int64), self.indices.view(1, -1), self.present.view(1, -1)
        )


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

    def pooled(self) -> Sample:
        """Returns all samples as that of one client."""
        return Sample(self.indices, torch.zeros_like(self.owners), 1)

    def of(self, mask: Tensor) -> Sample:
        """Returns the part of the sample where `mask` (M,) is true."""
        return Sample(self.indices[mask], self.owners[mask], self.clients)

    def in_buckets(self) -> Iterator[PlaceLayout]:
        """Yields layouts of few different widths; none for empty samples.

        The width, and so the result, depends only on a client's own sample: 1,
        2, 4, …, 64 places, and above that less than a fifth of them empty.
        """
        sizes = self._sizes()
        # frexp gives the e with 2^(e−1) ≤ size − 1 < 2^e.
        exponents = torch.frexp((sizes - 1).to(torch.float64)).exponent
        steps = 2 ** torch.where(sizes > 64, exponents - 3, exponents.clamp(min=0)).to(torch.int64)
        widths = ((sizes + steps - 1) // steps * steps).masked_fill(sizes == 0, 0)
        for width in widths.unique().tolist():
            if width:
                yield self._laid_out(torch.nonzero(widths == width).flatten(), sizes, width)

    def in_blocks(self) -> Iterator[PlaceLayout]:
        """Yields layouts as wide as the largest sample of `BLOCK` clients; none for empty samples.

        For results that float rounding couples: blocks depend only on the clients' order.
        """
        sizes = self._sizes()
        for block in torch.arange(self.clients).split(BLOCK):
            clients = block[sizes[block] > 0]
            if len(clients):
                yield self._laid_out(clients, sizes, int(sizes[clients].amax()))

    def _sizes(self) -> Tensor:
        return torch.bincount(self.owners, minlength=self.clients)

    def _laid_out(self, clients: Tensor, sizes: Tensor, width: int) -> PlaceLayout:
        starts = (sizes.cumsum(0) - sizes)[clients].unsqueeze(-1)
        places = torch.arange(width)
        present = places < sizes[clients].unsqueeze(-1)
        return PlaceLayout(clients, self.indices[torch.where(present, starts + places, 0)], present)


class Pool:
    """Labels and coordinates of some clients' records, in the shards' order.

    Coordinates are kept for the last view asked for: one copy, however many clients there are.
    The shards, at least one, hold records of one shape on one device.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = shards
        self.labels = torch.cat([shard.labels for shard in shards])
        self._labels_on_cpu = self.labels.cpu()  # samples are drawn there
        sizes = torch.tensor([len(shard) for shard in shards])
        # The runs of a client's records: all of them in their order, or those of one class.
        self._sizes = sizes
        self._starts = sizes.cumsum(0) - sizes
        self._by_class: tuple[Tensor, Tensor, Tensor] | None = None
        self._view: tuple[str, Tensor] | None = None

    def coordinates(self, view: dict[str, Any]) -> Tensor:
        """Returns every record in a public linear view, (N, D); raises like `Shard.coordinates`."""
        if len(self.shards) == 1:
            return self.shards[0].coordinates(view)
        key = json.dumps(view, sort_keys=True)
        if self._view is None or self._view[0] != key:
            images = torch.cat([shard.images for shard in self.shards])
            self._view = key, Shard(images, self.labels).coordinates(view)
        return self._view[1]

    def norm_bound(self, view: dict[str, Any]) -> float:
        """Returns the view's public bound on the norm of a record; raises like `coordinates`."""
        return self.shards[0].norm_bound(view)

    def places_of(self, client: int) -> slice:
        """Returns where one client's records lie among the pool's."""
        start = int(self._starts[client])
        return slice(start, start + int(self._sizes[client]))

    def draw(
        self, requests: Sequence[GradientRequest], part: slice, samples: Sequence[Stream]
    ) -> Sample:
        """Draws some clients' Poisson samples: each record of the class with probability q."""
        members, starts, sizes = self.runs([request.label for request in requests], part)
        taken = PoissonSampler(requests[0].plan.rate).draw_each(sizes.tolist(), samples)
        owners = torch.arange(len(sizes)).repeat_interleave(sizes)[taken]
        ends = (sizes.cumsum(0) - sizes)[owners]
        within = torch.nonzero(taken).flatten() - ends
        return Sample(_at(members, starts[owners] + within), owners, len(sizes))

    def draw_at_most(
        self, requests: Sequence[GradientRequest], part: slice, samples: Sequence[Stream]
    ) -> PlaceLayout:
        """Draws the samples of `draw` in as many places as the plan's capacity B.

        Of a larger sample a uniformly random part stays, whatever the records. No shape depends on
        a sample.
        """
        plan = requests[0].plan
        if plan.capacity is None:
            raise ValueError("The plan fixes no capacity.")
        sampler = PoissonSampler(plan.rate)
        members, starts, sizes = self.runs([request.label for request in requests], part)
        drawn = [
            sampler.draw_at_most(size, plan.capacity, stream)
            for size, stream in zip(sizes.tolist(), samples, strict=True)
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
        self, labels: Sequence[int | None], part: slice
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Returns the records that each client may sample: those of its class (None: all).

        These are indices into the pool (None: its own order), in which each client's records stand
        together, and for each client the first one's place, (K,), and their number, (K,).
        """
        if labels[0] is None:
            return None, self._starts[part], self._sizes[part]
        members, starts, sizes = self._of_classes()
        clients = torch.arange(len(self.shards))[part]
        wanted, last = torch.tensor(labels), starts.shape[1] - 1  # the last class has no records
        column = torch.where((wanted >= 0) & (wanted < last), wanted, last)
        return members, starts[clients, column], sizes[clients, column]

    def _of_classes(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns records ordered by client and class, each such run's start and its size."""
        if self._by_class is None:
            labels = self._labels_on_cpu
            columns = int(labels.amax()) + 2 if len(labels) else 1
            owners = torch.arange(len(self.shards)).repeat_interleave(self._sizes)
            keys = owners * columns + labels
            # Stable: within its class a client's records keep their order.
            members = keys.argsort(stable=True)
            sizes = torch.bincount(keys, minlength=len(self.shards) * columns)
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
