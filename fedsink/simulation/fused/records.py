"""All clients' records on one device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsink.clients.pool import Batch, Pool, classes_under
from fedsink.clients.shard import Shard
from fedsink.errors import DataError
from fedsink.strategies.dp_sinkhorn.settings import DPSinkhornSettings
from fedsink.strategies.self_term import with_labels


class Records:
    """Coordinates and labels of every client's records, those of one class side by side.

    Attributes:
        pool: the clients' records, from which samples are drawn.
        places: where each of the pool's records stands here, (N,), on the host.
        coordinates: (N, D), on the device; with the scaled one-hot label appended where the
            transport problem compares labels.
        labels: (N,), on the device; zeros where there is one class.

    Raises:
        DataError: there is no record at all, or a client has more than the plan accounts for.
    """

    def __init__(
        self, shards: Sequence[Shard], settings: DPSinkhornSettings, device: torch.device
    ) -> None:
        most = settings.plan.nominal_records
        if most is not None and any(len(shard) > most for shard in shards):
            raise DataError("A client holds more records than the plan accounts for.")
        if len(shards) != settings.clients or not any(len(shard) for shard in shards):
            raise DataError(
                f"{settings.clients} shards with a record among them are needed, received "
                f"{len(shards)} with {sum(len(shard) for shard in shards)} records."
            )
        self.pool = Pool(shards)
        labels = classes_under(settings.objective, self.pool.labels)
        coordinates = self.pool.coordinates(settings.view)
        coordinates = with_labels(coordinates, labels, settings.objective, settings.layout)
        members, _, _ = self.pool.runs(settings.layout.asked(1), slice(None))
        order = torch.arange(len(labels)) if members is None else members
        self.places = order.argsort()
        self.coordinates, self.labels = coordinates[order].to(device), labels[order].to(device)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, chosen: Tensor, present: Tensor) -> Batch:
        """The records in these places, (K, B); any in an empty one."""
        return Batch(self.coordinates[chosen], self.labels[chosen], present)
