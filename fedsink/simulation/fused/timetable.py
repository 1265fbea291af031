"""What is public and changes from round to round: classes, learning rate, averaging weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsink.simulation.fused.layout import Layout
from fedsink.simulation.fused.table import Table
from fedsink.simulation.fused.trainer import StaticTrainer


@dataclass(frozen=True)
class Entry:
    """One round, on the device.

    Attributes:
        row_labels: class of every row, (R,).
        group_labels: class of every group, (G,).
        client_labels: class that each client is asked about, (K,).
        positions: block that each client is asked about, (K,).
        rate: learning rate, ().
        weight: of the new weights in the average, ().
    """

    row_labels: Tensor
    group_labels: Tensor
    client_labels: Tensor
    positions: Tensor
    rate: Tensor
    weight: Tensor


class Timetable:
    """The entries of consecutive rounds.

    Args:
        layout: of a round.
        trainer: knows rates and weights.
        ahead: how many rounds it holds.
        device: where they are read.
    """

    def __init__(
        self, layout: Layout, trainer: StaticTrainer, ahead: int, device: torch.device
    ) -> None:
        self._layout, self._trainer = layout, trainer
        sizes = (layout.rows, layout.groups, layout.clients, layout.clients)
        self._labels = [Table(ahead, (size,), torch.int64, device) for size in sizes]
        self._numbers = [Table(ahead, (), torch.float32, device) for _ in range(2)]

    def prepare(self, first: int, count: int) -> None:
        """Write the rounds first, …, first + count − 1."""
        layout, trainer = self._layout, self._trainer
        of_round = (
            layout.row_labels, layout.group_labels, layout.client_labels, layout.positions,
        )  # fmt: skip
        for place in range(count):
            for table, labels in zip(self._labels, of_round, strict=True):
                table.host[place] = labels(first + place)
            for table, number in zip(self._numbers, (trainer.rate, trainer.weight), strict=True):
                table.host[place] = number(first + place)
        for table in (*self._labels, *self._numbers):
            table.send()

    def at(self, row: Tensor) -> Entry:
        """The entry of round first + row, with row (1,) on the device."""
        return Entry(*(table.at(row) for table in (*self._labels, *self._numbers)))
