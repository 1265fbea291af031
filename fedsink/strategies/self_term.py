"""The data-independent half of the Sinkhorn divergence: generated points against themselves.

Nothing here touches private data; all of it may be published.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsink.errors import ConfigError
from fedsink.privacy import BatchClip, RecordClip
from fedsink.protocol import Objective
from fedsink.transport import (
    ConvergedSolver,
    append_labels,
    potential,
    self_gradient,
    solver_named,
    transport_gradient,
)
from fedsink.transport.record_clip import reduced, sum_by_matmul

Label = int | None

# Any f keeps the clients' guarantee; a rough one serves the field as well as an exact one.
POTENTIAL_SOLVER = ConvergedSolver(max_iterations=40, tolerance=1e-2)


@dataclass(frozen=True)
class SelfTermSettings:
    """Which self term.

    Attributes:
        kind: "history" (against the last generated batches) or "semi_debiased" (Def. 4.3).
        history: H, number of remembered batches.
        p: debiasing share of Def. 4.3; 0 biased, 1 unbiased, 0.2 best in the paper.
    """

    kind: str = "history"
    history: int = 3
    p: float = 0.2

    def __post_init__(self) -> None:
        if self.kind not in ("history", "semi_debiased"):
            raise ConfigError(f"strategy.self_term is history or semi_debiased, not {self.kind!r}.")
        if self.history < 1:
            raise ConfigError(f"strategy.history must be at least 1, not {self.history}.")
        if not 0.0 <= self.p <= 1.0:
            raise ConfigError(f"strategy.p must be in [0, 1], not {self.p}.")


@dataclass(frozen=True)
class SelfPart:
    """What one group of rows contributes.

    Attributes:
        potentials: f for the clients' soft c-transform (`clip=record`), (n,).
        inside: gradient that the clients add inside their clip (`clip=batch`), (n, D).
        outside: gradient that the server adds after averaging, (n + n', D).
    """

    potentials: Tensor
    inside: Tensor
    outside: Tensor


class SelfTerm(ABC):
    """Computes a `SelfPart` per group of rows and remembers what it needs."""

    def extra_rows(self, n: int) -> int:
        """n', rows generated for the self term alone."""
        return 0

    @property
    def memory(self) -> int:
        """How many past batches must be remembered before the first call."""
        return 0

    @abstractmethod
    def __call__(self, rows: Tensor, labels: Sequence[Label], row_labels: Tensor) -> list[SelfPart]:
        """The self parts of G groups of one size, as one batch of problems.

        Args:
            rows: each group's rows, (G, n + n', D).
            labels: each group's label; None for all of them, or for none.
            row_labels: labels of the rows that clients see, (G, n).
        """

    def remember(self, rows: Tensor, label: Label) -> None:  # noqa: B027 (most forget)
        """Take this round's rows into the history."""

    def state(self) -> dict[str, Tensor]:
        """Tensors to resume from."""
        return {}

    def load_state(self, tensors: dict[str, Tensor]) -> None:  # noqa: B027 (most have none)
        """Restore what `state` returned."""


class _Remembering(SelfTerm):
    """Keeps the last H batches of every group."""

    def __init__(self, settings: SelfTermSettings, objective: Objective) -> None:
        self.objective = objective
        self._length = settings.history
        self._past: dict[Label, deque[Tensor]] = {}

    @property
    def memory(self) -> int:
        return self._length

    def remember(self, rows: Tensor, label: Label) -> None:
        self._past.setdefault(label, deque(maxlen=self._length)).append(rows)

    def past(self, labels: Sequence[Label]) -> Tensor:
        """The remembered rows of these groups, (G, H·n, D)."""
        return torch.stack([torch.cat(list(self._past[label])) for label in labels])

    def state(self) -> dict[str, Tensor]:
        return {
            f"{'all' if label is None else label}": torch.stack(list(batches))
            for label, batches in self._past.items()
        }

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        self._past = {
            None if name == "all" else int(name): deque(batches.unbind(), maxlen=self._length)
            for name, batches in tensors.items()
        }


class HistoryField(_Remembering):
    """For `clip=record`: f from X against its own past, and the same field of that past.

    f is the dual potential of the generator's own transport problem, hence independent of the
    data. The field −(1/|S|) Σ_s clip((w_is (x_i − s))_i, Δ), clipped like the clients', cancels
    their mean field where generated and private points have the same distribution.
    """

    def __init__(self, settings: SelfTermSettings, objective: Objective, clip: RecordClip) -> None:
        super().__init__(settings, objective)
        self.clip = clip

    def __call__(self, rows: Tensor, labels: Sequence[Label], row_labels: Tensor) -> list[SelfPart]:
        """Potentials against the remembered rows, and the field that they feel themselves."""
        past, lam = self.past(labels), self.objective.lam
        potentials = potential(rows, past, lam, solver=POTENTIAL_SOLVER)
        # All of it is public: no bound has to hold for one point whatever the others are.
        x, y, f = (values.to(torch.float64) for values in (rows, past, potentials))
        fields = sum_by_matmul(x, y, f, lam, reduced(self.clip.bound))
        empty = torch.zeros(0, 0)
        return [
            SelfPart(f, empty, -field / past.shape[1])
            for f, field in zip(potentials, fields, strict=True)
        ]


class HistoryTransport(_Remembering):
    """For `clip=batch`: −2 ∂_X Ŵ(X, past X), inside the clip."""

    def __call__(self, rows: Tensor, labels: Sequence[Label], row_labels: Tensor) -> list[SelfPart]:
        """The gradient against the remembered rows, to be clipped with the private one."""
        x, past, objective = rows, self.past(labels), self.objective
        if _mixes(labels, objective):
            repeated = row_labels.repeat(1, self._length)
            x = append_labels(x, row_labels, objective.classes, objective.label_weight)
            past = append_labels(past, repeated, objective.classes, objective.label_weight)
        gradient = transport_gradient(
            x, past, objective.ground_cost, objective.lam, solver=solver_named(objective.solver)
        ).gradient
        inside = -2.0 * gradient[..., : rows.shape[-1]]
        empty = torch.zeros(0)
        return [SelfPart(empty, part, torch.zeros_like(part)) for part in inside]


class SemiDebiased(SelfTerm):
    """The paper's −Ŵ(X[0:n], X[n':n+n']) (Def. 4.3): inside the clip for the first n rows.

    The n' extra rows receive their own gradient, clipped separately, without noise: no client
    ever sees a private point through them.
    """

    def __init__(self, settings: SelfTermSettings, objective: Objective, clip: BatchClip) -> None:
        self.settings = settings
        self.objective = objective
        self.clip = clip

    def extra_rows(self, n: int) -> int:
        """n′ = ⌊n·p⌋ (Def. 4.3)."""
        return int(n * self.settings.p)

    def __call__(self, rows: Tensor, labels: Sequence[Label], row_labels: Tensor) -> list[SelfPart]:
        """The gradient against the shifted rows; what falls on the extra rows stays outside."""
        n, x, objective = row_labels.shape[-1], rows, self.objective
        if _mixes(labels, objective):
            every = torch.cat([row_labels, row_labels[:, : rows.shape[1] - n]], dim=1)
            x = append_labels(x, every, objective.classes, objective.label_weight)
        gradients = self_gradient(
            x, n, objective.ground_cost, objective.lam, solver=solver_named(objective.solver)
        ).gradient[..., : rows.shape[-1]]
        empty, parts = torch.zeros(0), []
        for gradient in gradients:
            outside = torch.zeros_like(gradient)
            outside[n:] = self.clip.apply(gradient[n:])
            parts.append(SelfPart(empty, gradient[:n], outside))
        return parts


def _mixes(labels: Sequence[Label], objective: Objective) -> bool:
    """Whether labels enter the cost: groups of one class leave it a constant."""
    return labels[0] is None and objective.label_weight > 0


def self_term(
    settings: SelfTermSettings, objective: Objective, clip: BatchClip | RecordClip
) -> SelfTerm:
    """The self term that goes with a clip.

    Raises:
        ConfigError: `clip=record` with the semi-debiased loss, whose self term couples rows.
    """
    if isinstance(clip, RecordClip):
        if settings.kind != "history":
            raise ConfigError(
                "clip=record takes its potentials from generated history: set "
                "strategy.self_term=history, or clip=batch for the semi-debiased loss."
            )
        return HistoryField(settings, objective, clip)
    if settings.kind == "semi_debiased":
        return SemiDebiased(settings, objective, clip)
    return HistoryTransport(settings, objective)
