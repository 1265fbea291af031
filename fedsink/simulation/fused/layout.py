"""Which rows a round generates, who is asked about which of them: fixed sizes, public numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsink.privacy import RecordClip
from fedsink.strategies.dp_sinkhorn.settings import DPSinkhornSettings


@dataclass(frozen=True)
class Layout:
    """Sizes of one round.

    Rows come in `groups` of equal size, each a transport problem of its own, its extra rows (of
    the self term) at the end. Clients are asked about `blocks`: one group each under the class
    schedule, all rows together under the joint one.

    Attributes:
        clients: K.
        classes: C.
        by_class: whether a round asks each client about one class.
        groups: G.
        group_rows: rows of a group that clients see.
        extra: further rows of a group.
        mixed: whether a group mixes classes.
    """

    clients: int
    classes: int
    by_class: bool
    groups: int
    group_rows: int
    extra: int
    mixed: bool

    @classmethod
    def of(cls, settings: DPSinkhornSettings) -> Layout:
        """The layout that `DPSinkhorn` has under these settings."""
        plan, clients, classes = settings.plan, settings.clients, settings.objective.classes
        by_class = plan.schedule.classes > 1
        record = isinstance(plan.clip, RecordClip)
        mixed = not (by_class or record)
        rows = settings.rows * (classes if mixed else 1)
        semi = settings.self_term.kind == "semi_debiased"
        return cls(
            clients=clients,
            classes=classes,
            by_class=by_class,
            groups=min(clients, classes) if by_class else 1 if mixed else classes,
            group_rows=rows,
            extra=int(rows * settings.self_term.p) if semi else 0,
            mixed=mixed,
        )

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

    def group_labels(self, round: int) -> Tensor:
        """The classes of a round's groups, (G,), increasing; zeros where groups mix classes."""
        if not self.by_class:
            return torch.arange(self.groups)
        return ((torch.arange(self.groups) + round) % self.classes).sort().values

    def client_labels(self, round: int) -> Tensor:
        """The class that each client is asked about, (K,); zeros where it is all of them."""
        if not self.by_class:
            return torch.zeros(self.clients, dtype=torch.int64)
        return (torch.arange(self.clients) + round) % self.classes

    def positions(self, round: int) -> Tensor:
        """The block that each client is asked about, (K,)."""
        if not self.by_class:
            return torch.zeros(self.clients, dtype=torch.int64)
        return torch.searchsorted(self.group_labels(round), self.client_labels(round))

    def row_labels(self, round: int) -> Tensor:
        """The class of every row of a round."""
        if self.mixed:
            own = torch.arange(self.classes).repeat_interleave(self.group_rows // self.classes)
            return torch.cat([own, own[: self.extra]])
        return self.group_labels(round).repeat_interleave(self.group_rows + self.extra)
