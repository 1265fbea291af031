"""The generated rows of one round: what is asked about them, and what the answers add up to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsink.protocol import GradientRequest
from fedsink.protocol.exchange import Sum
from fedsink.strategies.dp_sinkhorn.layout import Label, Layout
from fedsink.strategies.dp_sinkhorn.settings import DPSinkhornSettings
from fedsink.strategies.self_term import SelfParts

Labels = tuple[Label, ...]
"""What one message asks about: a class for each of its uses."""


@dataclass(frozen=True)
class Block:
    """One round's rows and who is asked about which of them.

    Attributes:
        round: the round's number in the plan.
        layout: sizes, and who is asked what.
        kinds: the groups' kinds, (G,).
        rows: every row in the view, extra ones included, (G, n + n′, D), on the CPU.
        parts: the self term's share.
    """

    round: int
    layout: Layout
    kinds: Tensor
    rows: Tensor
    parts: SelfParts

    @property
    def seen(self) -> Tensor:
        """The groups' rows without the extra ones, (G, n, D)."""
        return self.rows[:, : self.layout.group_rows]

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the gradient that a client answers with."""
        return self.layout.block_rows, self.rows.shape[-1]

    def position(self, label: Label) -> int:
        """Which of the layout's blocks a client asked about `label` sees."""
        if not self.layout.by_class:
            return 0
        return self.kinds.tolist().index(label)

    def request(
        self, label: Label, settings: DPSinkhornSettings, share: int = 1
    ) -> GradientRequest:
        """What a client is asked about `label`, with the noise spread over `share` clients."""
        layout = self.layout
        groups = layout.groups_of(self.position(label))
        return GradientRequest(
            self.round,
            label,
            settings.plan,
            settings.objective,
            settings.view,
            self.seen[groups].flatten(0, 1),
            layout.row_labels(self.kinds[groups])[:, : layout.group_rows].flatten(),
            self.parts.potentials[groups].flatten(),
            self.parts.inside[groups].flatten(0, 1),
            settings.run,
            share,
        )

    def means(self, sums: Mapping[Labels, Sum], place: int) -> Tensor:
        """The clients' mean gradient of each of the layout's blocks, (P, block_rows, D) float64.

        Args:
            sums: of the gradients of those who were asked about the same classes.
            place: which of the message's uses this block is.
        """
        totals: dict[int, Sum] = {}
        for labels, part in sums.items():
            position, total, clients = self.position(labels[place]), part.total[place], part.clients
            if position in totals:
                total, clients = totals[position].total + total, totals[position].clients + clients
            totals[position] = Sum(total, clients)
        return torch.stack([totals[p].total / totals[p].clients for p in sorted(totals)])
