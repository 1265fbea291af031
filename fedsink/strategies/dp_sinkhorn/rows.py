"""Public sizes of a round's generated rows, and the gradient that clients' answers make at them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedsink.privacy.sampling import Schedule
from fedsink.protocol.exchange import Sum

Label = int | None
"""The class that a client is asked about; None: all of them."""

Labels = tuple[Label, ...]
"""The classes that one message asks about, one for each of its rounds."""


@dataclass(frozen=True)
class Layout:
    """Sizes and labels of the rows of one round.

    Rows come in `groups` of equal size, each a transport problem by itself, with the extra rows of
    the self term at its end. Clients are asked about `blocks`: one group each under the class
    schedule, all groups together under the joint one.
    """

    clients: int  # K
    classes: int  # C
    schedule: Schedule  # names the class that each client is asked about
    mixed: bool  # a group mixes classes
    rows_per_class: int  # n, rows of one class in one group
    debiased: float = 0.0  # extra rows of a group as a fraction of the others

    @property
    def by_class(self) -> bool:
        """True where a round asks each client about one class."""
        return self.schedule.classes > 1

    @property
    def groups(self) -> int:
        """G, transport problems of the rows of one round."""
        if self.by_class:
            return min(self.clients, self.classes)
        return 1 if self.mixed else self.classes

    @property
    def kinds(self) -> int:
        """Number of different groups in all rounds: one per class, or one that mixes classes."""
        return 1 if self.mixed else self.classes

    @property
    def group_rows(self) -> int:
        """Number of a group's rows without the extra ones."""
        return self.rows_per_class * (self.classes if self.mixed else 1)

    @property
    def extra(self) -> int:
        """n′, further rows of a group, which only the self term sees."""
        return math.floor(self.group_rows * self.debiased + 1e-9)  # 100·0.29 is 28.9999…

    @property
    def blocks(self) -> int:
        """P, number of different sets of rows that clients are asked about."""
        return self.groups if self.by_class else 1

    @property
    def block_rows(self) -> int:
        """Rows of one client's gradient."""
        return self.groups * self.group_rows // self.blocks

    def label(self, client: int, round: int) -> Label:
        """Returns the class that a client is asked about."""
        return self.schedule.label(client, round)

    def group_kinds(self, round: int) -> Tensor:
        """Returns the kinds of a round's groups, (G,), increasing: classes, or 0 for a mixture."""
        if not self.by_class:
            return torch.arange(self.groups)
        # The first G clients are asked about different classes, and so are all of them.
        return torch.tensor(sorted(self.label(client, round) or 0 for client in range(self.groups)))

    def row_labels(self, kinds: Tensor) -> Tensor:
        """Returns the class of every row of groups of these kinds (G,), (G, n + n′)."""
        if not self.mixed:
            return kinds.unsqueeze(-1).expand(-1, self.group_rows + self.extra)
        labels = torch.arange(self.classes).repeat_interleave(self.rows_per_class)
        return torch.cat([labels, labels[: self.extra]]).expand(len(kinds), -1)

    def groups_of(self, block: int) -> slice:
        """Returns the groups that make up this block."""
        size = self.groups // self.blocks
        return slice(block * size, (block + 1) * size)


class SelfParts(NamedTuple):
    """The part of the self term in the gradient of some groups of rows."""

    potentials: Tensor  # f for the clients' soft c-transform, (G, n); (G, 0) for `clip=batch`
    inside: Tensor  # gradient that clients add inside their clip, (G, n, D); or (G, 0, 0): none
    outside: Tensor  # gradient that the server adds after averaging, (G, n + n′, D)


@dataclass(frozen=True)
class RoundRows:
    """The generated rows of one round, in the coordinates of the view."""

    round: int  # its number in the plan
    layout: Layout
    kinds: Tensor  # of the groups, (G,)
    rows: Tensor  # every row, extra ones included, (G, n + n′, D), on the CPU
    parts: SelfParts

    @property
    def seen(self) -> Tensor:
        """The groups' rows without the extra ones, (G, n, D)."""
        return self.rows[:, : self.layout.group_rows]

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the gradient that a client answers with."""
        return self.layout.block_rows, self.rows.shape[-1]

    def block(self, label: Label) -> int:
        """Returns the block that a client asked about `label` sees."""
        return self.kinds.tolist().index(label) if self.layout.by_class else 0

    def groups_of(self, label: Label) -> slice:
        """Returns the groups that a client asked about `label` sees."""
        return self.layout.groups_of(self.block(label))

    def means(self, sums: Mapping[Labels, Sum], index: int) -> tuple[Tensor, list[int]]:
        """Returns the clients' mean gradients, (P, block_rows, D) float64, and the clients in each.

        `index` counts this round among those of its message. A mean of nobody is zeros.
        """
        # Cohorts that a message of several rounds tells apart may agree in this one.
        totals: dict[int, Sum] = {}
        for labels, part in sums.items():
            block, total, clients = self.block(labels[index]), part.total[index], part.clients
            if block in totals:
                total, clients = totals[block].total + total, totals[block].clients + clients
            totals[block] = Sum(total, clients)
        means = torch.zeros(self.layout.blocks, *self.shape, dtype=torch.float64)
        counts = [0] * self.layout.blocks
        for block, answered in totals.items():
            means[block] = answered.total / answered.clients
            counts[block] = answered.clients
        return means, counts

    def gradient(self, means: Tensor, counts: Sequence[int], scale: float) -> Tensor:
        """Returns the gradient at every row: the clients' means and the self term, (R, D) float64.

        `scale` divides the means, which are sums over records with `clip=record`.
        """
        groups, n = self.layout.groups, self.layout.group_rows
        shared = means.reshape(groups, n, -1) / scale
        # No client sees the extra rows: only the self term moves them.
        gradient = pad(shared, (0, 0, 0, self.layout.extra)) + self.parts.outside
        for block, clients in enumerate(counts):
            if not clients:
                # Without data to pull the rows, their self term would only push them apart.
                gradient[self.layout.groups_of(block)] = 0.0
        return gradient.flatten(0, 1)
