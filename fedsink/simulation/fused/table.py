"""Values of several rounds in one place of the device, filled from the host."""

from __future__ import annotations

import torch
from torch import Tensor


class Table:
    """One row per round: written to `host`, sent at once, read by a row number on the device.

    Args:
        rows: how many rounds.
        shape: of a round's value.
        dtype: of the values.
        device: where they are read.
    """

    def __init__(
        self, rows: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.host = torch.zeros(rows, *shape, dtype=dtype)
        self._device = torch.zeros(rows, *shape, dtype=dtype, device=device)

    def send(self) -> None:
        """Copy the host's values; whatever was launched before still reads the old ones."""
        self._device.copy_(self.host)

    def at(self, row: Tensor) -> Tensor:
        """The value of a row (1,), copied."""
        return self._device.index_select(0, row).squeeze(0)
