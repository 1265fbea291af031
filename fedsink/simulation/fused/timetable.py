"""What is public and changes from round to round: classes, learning rate, averaging weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsink.simulation.fused.table import Table
from fedsink.simulation.fused.trainer import StaticTrainer
from fedsink.strategies.dp_sinkhorn.layout import Layout


@dataclass(frozen=True)
class Entry:
    """One round, on the device.

    Attributes:
        row_labels: class of every row, (G, n + n′).
        kinds: kind of every group, (G,).
        positions: block that each client is asked about, (K,).
        rate: learning rate, ().
        weight: of the new weights in the average, ().
    """

    row_labels: Tensor
    kinds: Tensor
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
        labels = (layout.groups, layout.group_rows + layout.extra), (layout.groups,)
        columns = [(shape, torch.int64) for shape in (*labels, (layout.clients,))]
        self._table = Table(ahead, [*columns, *[((), torch.float32)] * 2], device)

    def prepare(self, first: int, count: int) -> None:
        """Write the rounds first, …, first + count − 1."""
        for place, round in enumerate(range(first, first + count)):
            kinds, positions = self._layout.group_labels(round), self._layout.positions(round)
            numbers = self._trainer.rate(round), self._trainer.weight(round)
            self._table.write(place, self._layout.row_labels(kinds), kinds, positions, *numbers)
        self._table.send()

    def at(self, row: Tensor) -> Entry:
        """The entry of round first + row, with row (1,) on the device."""
        return Entry(*self._table.at(row))
