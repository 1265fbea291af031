"""Which rows a round generates, and who is asked about which of them: public sizes and labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedsink.privacy.sampling import Schedule

Label = int | None
"""The class that a client is asked about; None: all of them."""


@dataclass(frozen=True)
class Layout:
    """Sizes and labels of one round.

    Rows come in `groups` of equal size, each a transport problem of its own, its extra rows (of
    the self term) at the end. Clients are asked about `blocks`: one group each under the class
    schedule, all rows together under the joint one.

    Attributes:
        clients: K.
        classes: C.
        schedule: names the class that each client is asked about.
        mixed: whether a group mixes classes.
        rows_per_class: n, rows of one class in one group.
        debiased: rows of a group that the self term needs another time, as a share of them.
    """

    clients: int
    classes: int
    schedule: Schedule
    mixed: bool
    rows_per_class: int
    debiased: float = 0.0

    @property
    def by_class(self) -> bool:
        """Whether a round asks each client about one class."""
        return self.schedule.classes > 1

    @property
    def groups(self) -> int:
        """G, transport problems of the rows of one round."""
        if self.by_class:
            return min(self.clients, self.classes)
        return 1 if self.mixed else self.classes

    @property
    def kinds(self) -> int:
        """How many different groups there are in all rounds: one per class, or one that mixes."""
        return 1 if self.mixed else self.classes

    @property
    def group_rows(self) -> int:
        """Rows of a group that clients see."""
        return self.rows_per_class * (self.classes if self.mixed else 1)

    @property
    def extra(self) -> int:
        """Further rows of a group, which the self term alone sees."""
        return int(self.group_rows * self.debiased)

    @property
    def blocks(self) -> int:
        """P, how many different sets of rows clients are asked about."""
        return self.groups if self.by_class else 1

    @property
    def block_rows(self) -> int:
        """Rows of one client's gradient."""
        return self.groups * self.group_rows // self.blocks

    @property
    def rows(self) -> int:
        """Rows that one round generates."""
        return self.groups * (self.group_rows + self.extra)

    def asked(self, round: int) -> list[Label]:
        """The label that each client is asked about."""
        return [self.schedule.label(client, round) for client in range(self.clients)]

    def client_labels(self, round: int) -> Tensor:
        """The class that each client is asked about, (K,); zeros where it is all of them."""
        return torch.tensor([label or 0 for label in self.asked(round)])

    def group_labels(self, round: int) -> Tensor:
        """The kinds of a round's groups, (G,), increasing: classes, or 0 where groups mix them."""
        if not self.by_class:
            return torch.arange(self.groups)
        # The first G clients are asked about different classes, and so are all of them.
        return torch.tensor(sorted(self.asked(round)[: self.groups]))

    def positions(self, round: int) -> Tensor:
        """The block that each client is asked about, (K,)."""
        if not self.by_class:
            return torch.zeros(self.clients, dtype=torch.int64)
        return torch.searchsorted(self.group_labels(round), self.client_labels(round))

    def row_labels(self, kinds: Tensor) -> Tensor:
        """The class of every row of groups of these kinds (G,), (G, n + n′)."""
        if not self.mixed:
            return kinds.unsqueeze(-1).expand(-1, self.group_rows + self.extra)
        own = torch.arange(self.classes).repeat_interleave(self.rows_per_class)
        return torch.cat([own, own[: self.extra]]).expand(len(kinds), -1)

    def groups_of(self, block: int) -> slice:
        """The groups that a client asked about a block sees."""
        size = self.groups // self.blocks
        return slice(block * size, (block + 1) * size)

    def in_blocks(self, values: Tensor) -> Tensor:
        """What clients see of values (G, n + n′, ...) of all rows, (P, block_rows, ...)."""
        seen = values[:, : self.group_rows]
        return seen.reshape(self.blocks, self.block_rows, *values.shape[2:])

    def means(self, releases: Tensor, positions: Tensor) -> Tensor:
        """The mean of the clients' gradients (K, n, D) of each block, (P, n, D) float64.

        Args:
            releases: gradients.
            positions: the block that each client was asked about, (K,).
        """
        blocks = torch.arange(self.blocks, device=positions.device)
        shares = (positions == blocks.unsqueeze(-1)).to(torch.float64)
        shares /= shares.sum(-1, keepdim=True)
        return (shares @ releases.to(torch.float64).flatten(1)).unflatten(-1, releases.shape[1:])

    def gradient(self, means: Tensor, outside: Tensor, scale: float) -> Tensor:
        """The gradient at every row, (R, D) float64.

        Args:
            means: of the clients' gradients of each block, (P, block_rows, D) float64.
            outside: what the server adds, (G, n + n′, D).
            scale: what a sum over records is divided by.
        """
        shared = means.reshape(self.groups, self.group_rows, -1) / scale
        return (pad(shared, (0, 0, 0, self.extra)) + outside).flatten(0, 1)
