"""Values of several rounds in fixed places of the device, filled from the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Table:
    """One row per round, of one or several columns: written on the host, read on the device.

    Args:
        rows: how many rounds.
        columns: shape and type of each column's value of a round.
        device: where they are read.
    """

    def __init__(
        self,
        rows: int,
        columns: Sequence[tuple[tuple[int, ...], torch.dtype]],
        device: torch.device,
    ) -> None:
        self._host = [torch.zeros(rows, *shape, dtype=dtype) for shape, dtype in columns]
        self._device = [column.to(device, copy=True) for column in self._host]

    def write(self, row: int, *values: Tensor | float) -> None:
        """Set a row's values on the host."""
        for column, value in zip(self._host, values, strict=True):
            column[row] = value

    def send(self) -> None:
        """Copy the host's values; whatever was launched before still reads the old ones."""
        for there, here in zip(self._device, self._host, strict=True):
            there.copy_(here)

    def at(self, row: Tensor) -> list[Tensor]:
        """The values of a row (1,), copied."""
        return [column.index_select(0, row).squeeze(0) for column in self._device]
