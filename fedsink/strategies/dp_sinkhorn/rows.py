"""Generated rows of a round, the same ones under every engine, and what is answered about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsink.data.views import View
from fedsink.models import Generator
from fedsink.privacy import Stream
from fedsink.protocol.exchange import Sum
from fedsink.strategies.dp_sinkhorn.layout import Label, Layout
from fedsink.strategies.self_term import SelfParts


class Rows:
    """Makes rows of groups from latents that the server's key decides on.

    Args:
        generator: makes them.
        view: their coordinates.
        layout: of a round.
        key: keys the latents (not secret).

    Attributes:
        latent_dim, latent_law: how many latents a row has, and what law they follow.
    """

    def __init__(self, generator: Generator, view: View, layout: Layout, key: bytes) -> None:
        self._generator, self._view, self._layout, self._key = generator, view, layout, key
        self.latent_dim, self.latent_law = generator.latent_dim, generator.latent_law

    def __call__(self, z: Tensor, labels: Tensor) -> Tensor:
        """Rows of these latents and labels, (R, D), with their graph."""
        points: Tensor = self._view(self._generator(z, labels))
        return points

    def latents(self, purpose: str, number: int, kinds: Tensor) -> tuple[Tensor, Tensor]:
        """Latents, (R, latent_dim), and labels, (R,), of fresh groups of these kinds."""
        labels = self._layout.row_labels(kinds).flatten()
        return self._generator.latent(len(labels), Stream(self._key, purpose, number)), labels

    @torch.no_grad()
    def untrained(self, kinds: Tensor, number: int) -> Tensor:
        """Rows before the first round, of groups of these kinds, (G, n + n′, D)."""
        return self(*self.latents("history", number, kinds)).unflatten(0, (len(kinds), -1))


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

    def means(self, sums: Mapping[Labels, Sum], place: int) -> tuple[Tensor, list[int]]:
        """The clients' mean gradient of each of the layout's blocks, and how many are in each.

        Args:
            sums: of the gradients of those who were asked about the same classes.
            place: which of the message's uses this block is.

        Returns:
            (P, block_rows, D) float64, zeros where nobody answered, and P numbers of clients.
        """
        totals: dict[int, Sum] = {}
        for labels, part in sums.items():
            position, total, clients = self.position(labels[place]), part.total[place], part.clients
            if position in totals:
                total, clients = totals[position].total + total, totals[position].clients + clients
            totals[position] = Sum(total, clients)
        means = torch.zeros(self.layout.blocks, *self.shape, dtype=torch.float64)
        for position, answered in totals.items():
            means[position] = answered.total / answered.clients
        counts = {position: answered.clients for position, answered in totals.items()}
        return means, [counts.get(position, 0) for position in range(self.layout.blocks)]

    def gradient(self, means: Tensor, answers: Sequence[int], scale: float) -> Tensor:
        """The gradient at every row, (R, D) float64.

        Rows that nobody answered about have none: their self term alone would push generated
        points apart, with no data to pull them.

        Args:
            means: of the clients' gradients of each block, (P, block_rows, D) float64.
            answers: how many clients answered about each block.
            scale: what a sum over records is divided by.
        """
        gradient = self.layout.gradient(means, self.parts.outside, scale)
        for block, clients in enumerate(answers):
            if not clients:
                groups = self.layout.groups_of(block)
                gradient.unflatten(0, (self.layout.groups, -1))[groups] = 0.0
        return gradient
