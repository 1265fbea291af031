"""The generated rows of one round: what is asked about them, and what the answers add up to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsink.protocol import GradientRequest
from fedsink.protocol.exchange import Sum
from fedsink.strategies.dp_sinkhorn.settings import DPSinkhornSettings
from fedsink.strategies.self_term import Label, SelfPart

Labels = tuple[Label, ...]
"""What one message asks about: a class for each of its uses."""


@dataclass(frozen=True)
class Group:
    """Rows that form one transport problem.

    Attributes:
        label: their class; None where the problem mixes classes.
        rows: their place among the block's rows, the self term's extra rows at the end.
        row_labels: labels of the rows that clients see, (n,).
        part: the self term's share.
    """

    label: Label
    rows: slice
    row_labels: Tensor
    part: SelfPart


@dataclass(frozen=True)
class Block:
    """One round's rows and who was asked about which of them.

    Attributes:
        round: the round's number in the plan.
        asked: the label that each client was asked about; None: all rows.
        groups: in row order.
        coordinates: every row in the view, extra ones included, (R, D), on the CPU.
    """

    round: int
    asked: Mapping[int, Label]
    groups: list[Group]
    coordinates: Tensor

    def about(self, label: Label) -> list[Group]:
        """The groups that a client asked about `label` sees."""
        return [group for group in self.groups if label is None or group.label == label]

    def seen(self, group: Group) -> Tensor:
        """The group's rows without the extra ones, (n, D)."""
        return self.coordinates[group.rows][: len(group.row_labels)]

    def shape(self, label: Label) -> tuple[int, int]:
        """Shape of the gradient that a client asked about `label` answers with."""
        rows = sum(len(group.row_labels) for group in self.about(label))
        return rows, self.coordinates.shape[1]

    def request(
        self, label: Label, settings: DPSinkhornSettings, share: int = 1
    ) -> GradientRequest:
        """What a client is asked about `label`, with the noise spread over `share` clients."""
        mine = self.about(label)
        return GradientRequest(
            self.round,
            label,
            settings.plan,
            settings.objective,
            settings.view,
            torch.cat([self.seen(group) for group in mine]),
            torch.cat([group.row_labels for group in mine]),
            torch.cat([group.part.potentials for group in mine]),
            torch.cat([group.part.inside for group in mine]),
            settings.run,
            share,
        )

    def means(self, sums: Mapping[Labels, Sum], place: int) -> dict[int, Tensor]:
        """The clients' mean gradient of each group in float64, by the group's first row.

        Args:
            sums: of the gradients of those who were asked about the same classes.
            place: which of the message's uses this block is.
        """
        totals: dict[Label, Sum] = {}
        for labels, one in sums.items():
            label, total, clients = labels[place], one.total[place], one.clients
            if label in totals:
                total, clients = totals[label].total + total, totals[label].clients + clients
            totals[label] = Sum(total, clients)
        means: dict[int, Tensor] = {}
        for label, of_label in totals.items():
            mine = self.about(label)
            sizes = [len(group.row_labels) for group in mine]
            mean = of_label.total / of_label.clients
            for group, part in zip(mine, mean.split(sizes), strict=True):
                means[group.rows.start] = part
        return means

    def gradient(self, means: Mapping[int, Tensor], scale: float) -> Tensor:
        """means/scale plus the self term, for every row, (R, D) in float64."""
        gradient = torch.zeros(self.coordinates.shape, dtype=torch.float64)
        for group in self.groups:
            mine = gradient[group.rows]
            mine[: len(group.row_labels)] = means[group.rows.start] / scale
            mine += group.part.outside
        return gradient
