"""The data-independent half of a round for all groups at once, on fixed shapes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedsink.errors import ConfigError
from fedsink.privacy import BatchClip, RecordClip
from fedsink.simulation.fused import transport
from fedsink.simulation.fused.clients import record_totals
from fedsink.simulation.fused.layout import Layout
from fedsink.simulation.fused.records import appended
from fedsink.strategies.dp_sinkhorn.settings import DPSinkhornSettings
from fedsink.strategies.self_term import POTENTIAL_SOLVER
from fedsink.transport import bounding_diameter
from fedsink.transport.problem import bounded


@dataclass(frozen=True)
class SelfParts:
    """What `strategies.self_term.SelfPart` holds, for all groups of a round.

    Attributes:
        potentials: f, (G, n); empty for `clip=batch`.
        inside: gradient that clients add inside their clip, (G, n, D); empty for `clip=record`.
        outside: gradient that is added after averaging, (G, n + n′, D).
    """

    potentials: Tensor
    inside: Tensor
    outside: Tensor


class SelfTerm(ABC):
    """Computes the self parts of a round's rows, and remembers what it needs."""

    @abstractmethod
    def __call__(self, rows: Tensor, row_labels: Tensor, group_labels: Tensor) -> SelfParts:
        """The self parts of rows (R, D) of these classes."""

    def remember(self, rows: Tensor, group_labels: Tensor) -> None:  # noqa: B027 (one forgets)
        """Take rows (R, D) into the history of their groups' classes (G,)."""

    def state(self) -> dict[str, Tensor]:
        """Tensors to resume from, as `strategies.self_term` names them."""
        return {}

    def load_state(self, tensors: dict[str, Tensor]) -> None:  # noqa: B027 (one has none)
        """Restore what `state` returned."""


class HistoryField(SelfTerm):
    """`strategies.self_term.HistoryField` with the last H batches of every class in one tensor."""

    def __init__(self, settings: DPSinkhornSettings, layout: Layout, like: Tensor) -> None:
        length, dimension = settings.self_term.history, like.shape[-1]
        self._lam, self._bound = settings.objective.lam, settings.plan.clip.bound
        self._rows, self._length = layout.group_rows, length
        self._past = like.new_zeros(layout.classes, length, layout.group_rows, dimension)
        self._seen = torch.zeros(layout.classes, dtype=torch.int64, device=like.device)

    def __call__(self, rows: Tensor, row_labels: Tensor, group_labels: Tensor) -> SelfParts:
        """Potentials against the remembered rows, and the field that they feel themselves."""
        x = rows.unflatten(0, (-1, self._rows))
        past = self._past.index_select(0, group_labels).flatten(1, 2)
        f = transport.rough_potential(x, past, self._lam, POTENTIAL_SOLVER)
        field = record_totals(x, past, f, None, self._lam, self._bound)
        return SelfParts(f, rows.new_zeros(0), -field / past.shape[1])

    def remember(self, rows: Tensor, group_labels: Tensor) -> None:
        """Replace each class's oldest batch."""
        oldest = self._seen.index_select(0, group_labels) % self._length
        places = group_labels * self._length + oldest
        self._past.flatten(0, 1).index_copy_(0, places, rows.unflatten(0, (-1, self._rows)))
        self._seen.index_add_(0, group_labels, torch.ones_like(group_labels))

    def state(self) -> dict[str, Tensor]:
        """Every class's batches, the oldest first."""
        first = (self._seen % self._length).tolist()
        return {
            str(label): batches.roll(-start, 0).cpu()
            for label, (batches, start) in enumerate(zip(self._past, first, strict=True))
        }

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for label, batches in tensors.items():
            self._past[int(label)] = batches.to(self._past)
        self._seen.zero_()


class SemiDebiased(SelfTerm):
    """`strategies.self_term.SemiDebiased` of all groups, with the annealed solver."""

    def __init__(
        self, settings: DPSinkhornSettings, layout: Layout, clip: BatchClip, widest: float
    ) -> None:
        self._layout, self._objective, self._clip = layout, settings.objective, clip
        labels = math.sqrt(layout.classes) * settings.objective.label_weight if layout.mixed else 0
        self._diameter = math.hypot(widest, labels)
        self._longest = transport.most_steps(self._diameter, settings.objective.lam)

    def __call__(self, rows: Tensor, row_labels: Tensor, group_labels: Tensor) -> SelfParts:
        """The gradient against the shifted rows; what falls on the extra rows stays outside."""
        layout, objective = self._layout, self._objective
        n, extra = layout.group_rows, layout.extra
        x = appended(rows, row_labels, layout, objective.label_weight)
        x = x.unflatten(0, (layout.groups, -1))
        source, target = x[:, :n], x[:, extra:]
        problem = bounded(
            transport.costs(source, target, objective.m),
            objective.lam,
            None,
            None,
            self._diameter**2,
        )
        solution = transport.annealed(problem, bounding_diameter(source, target), self._longest)
        dimension = rows.shape[-1]
        forward = transport.cost_gradient(source, target, solution.source_plan, objective.m)
        gradient = -pad(forward, (0, 0, 0, extra))
        # The cost is symmetric, so ∂_y c(x, y) is ∂ₓ with the arguments exchanged.
        backward = solution.target_plan.transpose(-1, -2)
        gradient[:, extra:] -= transport.cost_gradient(target, source, backward, objective.m)
        gradient = gradient[..., :dimension]
        outside = torch.zeros_like(gradient)
        if extra:
            outside[:, n:] = self._clip.apply_each(gradient[:, n:])
        return SelfParts(rows.new_zeros(0), gradient[:, :n], outside)


def self_term(
    settings: DPSinkhornSettings, layout: Layout, like: Tensor, widest: float
) -> SelfTerm:
    """The self term of these settings.

    Args:
        settings: of the run.
        layout: of a round.
        like: a tensor of the rows' type, device and dimension.
        widest: bound on the diagonal of a box that holds all rows.

    Raises:
        ConfigError: a combination that is not fused.
    """
    clip, kind = settings.plan.clip, settings.self_term.kind
    if isinstance(clip, RecordClip) and kind == "history":
        return HistoryField(settings, layout, like)
    published = kind == "semi_debiased" and settings.objective.solver == "annealed"
    if isinstance(clip, BatchClip) and published:
        return SemiDebiased(settings, layout, clip, widest)
    raise ConfigError(
        "engine=fused runs clip=record with strategy.self_term=history, or clip=batch with "
        "strategy.self_term=semi_debiased and strategy.solver=annealed: choose one of them, or "
        "engine=local."
    )
