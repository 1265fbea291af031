"""All clients' records on one device, so that a class of a client is a run of consecutive ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedsink.clients.shard import Shard
from fedsink.errors import DataError
from fedsink.simulation.fused.layout import Layout
from fedsink.strategies.dp_sinkhorn.settings import DPSinkhornSettings


class Records:
    """Coordinates and labels of every client's records, and where each client's begin.

    Attributes:
        coordinates: (N, D), on the device; with the scaled one-hot label appended where the
            transport problem compares labels.
        labels: (N,), on the device; zeros where there is one class.
        starts, sizes: of client k's records of class c, (K, C) on the host; (K, 1) where a round
            mixes classes.

    Raises:
        DataError: there is no record at all, or a client has more than the plan accounts for.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        settings: DPSinkhornSettings,
        layout: Layout,
        device: torch.device,
    ) -> None:
        most = settings.plan.nominal_records
        if most is not None and any(len(shard) > most for shard in shards):
            raise DataError("A client holds more records than the plan accounts for.")
        if len(shards) != layout.clients or not any(len(shard) for shard in shards):
            raise DataError(
                f"{layout.clients} shards with a record among them are needed, received "
                f"{len(shards)} with {sum(len(shard) for shard in shards)} records."
            )
        labels = torch.cat([shard.labels for shard in shards])
        owners = torch.arange(len(shards)).repeat_interleave(
            torch.tensor([len(shard) for shard in shards])
        )
        columns = layout.classes if layout.by_class else 1
        keys = owners * columns + (labels if layout.by_class else 0)
        # Stable: within its class a client's records keep their order, which keyed draws count by.
        order = keys.argsort(stable=True)
        sizes = torch.bincount(keys, minlength=len(shards) * columns)
        self.sizes = sizes.reshape(len(shards), columns)
        self.starts = (sizes.cumsum(0) - sizes).reshape(len(shards), columns)
        if layout.classes == 1:
            labels = torch.zeros_like(labels)
        coordinates = torch.cat([shard.coordinates(settings.view) for shard in shards])
        if layout.mixed and settings.objective.label_weight > 0:
            hot = settings.objective.label_weight * one_hot(labels, layout.classes)
            coordinates = torch.cat([coordinates, hot.to(coordinates)], dim=1)
        self.coordinates = coordinates[order].to(device)
        self.labels = labels[order].to(device)

    def __len__(self) -> int:
        return len(self.labels)


def appended(rows: Tensor, row_labels: Tensor, layout: Layout, weight: float) -> Tensor:
    """Rows with the scaled one-hot label appended where the transport problem compares labels."""
    if not layout.mixed or weight == 0.0:
        return rows
    return torch.cat([rows, weight * one_hot(row_labels, layout.classes).to(rows)], dim=1)
