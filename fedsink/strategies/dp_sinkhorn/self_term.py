"""The self term of the Sinkhorn divergence: generated points against generated points.

Nothing here touches private data; all of it may be published.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsink.errors import ConfigError
from fedsink.privacy import BatchClip, Clip
from fedsink.protocol.dp_sinkhorn import Objective
from fedsink.registry import Registry
from fedsink.strategies.dp_sinkhorn.rows import Layout, SelfParts
from fedsink.strategies.losses import Loss, find_loss
from fedsink.transport import (
    ConvergedSolver,
    append_labels,
    potential,
    self_gradient,
    transport_gradient,
)
from fedsink.transport.clipped_sums import reduced, sum_by_matmul
from fedsink.values import checks

# Any f keeps the clients' guarantee; a rough one serves the field as well as an exact one.
POTENTIAL_SOLVER = ConvergedSolver(max_iterations=40, tolerance=1e-2)


@dataclass(frozen=True)
class SelfTermSettings:
    """Public options of the self term.

    Attributes:
        kind: "history" (against the last generated batches) or "semi_debiased" (Definition 4.3 of
            Cao et al. 2021).
        history: H, number of remembered batches.
        p: debiasing fraction of Definition 4.3; 0 biased, 1 unbiased, 0.2 best in the paper.
        tether: k, a factor on the usual squared distance beyond which a row is drawn back
            (`History`); None draws nothing back.
    """

    kind: str = "history"
    history: int = 3
    p: float = 0.2
    tether: float | None = None

    @property
    def debiased(self) -> float:
        """n′/n, rows that are generated for only the self term, as a fraction of the others."""
        return self.p if self_term_named(self.kind).extra_rows else 0.0

    def __post_init__(self) -> None:
        self_term_named(self.kind)
        checks.count("strategy.history", self.history)
        checks.within("strategy.p", self.p, "[0, 1]")
        if self.tether is not None:
            checks.positive("strategy.tether", self.tether, also="null or ")

    def check_clip(self, clip: Clip) -> None:
        """Refuses a clip that the self term does not go with: semi-debiased, it couples rows."""
        if clip.per_record and not self_term_named(self.kind).of_records:
            raise ConfigError(
                "clip=record takes its potentials from generated history: set "
                "strategy.self_term=history, or clip=batch for the semi-debiased loss."
            )
        if not clip.per_record and self.tether is not None:
            raise ConfigError(
                "strategy.tether is for clip=record: with clip=batch transport gives every row its "
                f"fraction of the records. Set strategy.tether=null, not {self.tether:g}."
            )


class SelfTerm(Loss):
    """Computes the self parts of groups of rows, and remembers past rows where it needs them.

    Args:
        settings: public options.
        objective: the transport problem.
        clip: the clip of the clients.
        layout: the layout of a round.
        like: a tensor of the rows' type, device and dimension D, (..., D).

    Attributes:
        of_records: True where it goes with `clip=record`, whose potentials it gives.
        extra_rows: True where `strategy.p` of the rows are generated for it alone.
        memory: number of past batches that must be remembered before the first call.
    """

    of_records: ClassVar[bool] = False
    extra_rows: ClassVar[bool] = False
    memory: int = 0

    def __init__(
        self,
        settings: SelfTermSettings,
        objective: Objective,
        clip: Clip,
        layout: Layout,
        like: Tensor,
    ) -> None:
        self.settings, self.objective, self.clip, self.layout = settings, objective, clip, layout

    @abstractmethod
    def __call__(self, rows: Tensor, kinds: Tensor, row_labels: Tensor) -> SelfParts:
        """Returns the self parts of G groups of one size, as one batch of problems.

        Args:
            rows: the rows of each group, (G, n + n′, D).
            kinds: the kind of each group, (G,), as `Layout.group_kinds`; each has its own history.
            row_labels: labels of the rows, (G, n + n′).
        """

    def remember(self, rows: Tensor, kinds: Tensor) -> None:
        """Takes the groups' rows (G, n, D) into their histories; no kind comes twice."""

    def fill(self, generate: Callable[[Tensor, int], Tensor]) -> None:
        """Fills the histories before the first round with rows of the untrained generator.

        Args:
            generate: returns rows (G, n, D) of groups of given kinds (G,), for the number of a
                batch.
        """

    def with_labels(self, points: Tensor, labels: Tensor) -> Tensor:
        """Returns points, with labels appended where a group mixes classes and they enter c."""
        classes, weight = self.objective.classes, self.objective.label_weight
        if not self.layout.mixed or weight == 0.0:
            return points
        return append_labels(points, labels, classes, weight, check=False)


class History(SelfTerm):
    """The last H batches of every kind of group, the oldest first, in the records' place.

    `clip=batch`: −2 ∂_X Ŵ(X, past X), inside the clip.

    `clip=record`: f from X against its own past, and the same field of that past. f is the dual
    potential of the generator's own transport problem, hence independent of the data. The field
    −(1/|S|) Σ_s clip((w_is (x_i − s))_i, Δ), clipped like the clients', cancels their mean field
    where generated and private points have the same distribution.

    A row far from all records is chosen by none of them, and its own past pushes it further away:
    it is lost. With a tether k its self term is (x_i − m)/n instead, where ‖x_i − m‖² > k·d², m the
    median of the past by coordinates and d² the median of the past's squared distances to m. This
    is for classes of one form: where a class has several, rare ones are drawn back as well.
    """

    of_records: ClassVar[bool] = True

    def __init__(
        self,
        settings: SelfTermSettings,
        objective: Objective,
        clip: Clip,
        layout: Layout,
        like: Tensor,
    ) -> None:
        super().__init__(settings, objective, clip, layout, like)
        self.memory = settings.history
        self._past = like.new_zeros(layout.kinds, self.memory, layout.group_rows, like.shape[-1])
        kinds = ["all"] if layout.mixed else range(layout.classes)
        self._names = [f"history.{kind}" for kind in kinds]

    def remember(self, rows: Tensor, kinds: Tensor) -> None:
        newer = self._past.index_select(0, kinds)[:, 1:]
        self._past.index_copy_(0, kinds, torch.cat([newer, rows.unsqueeze(1)], dim=1))

    def past(self, kinds: Tensor) -> Tensor:
        """Returns the remembered rows of groups of these kinds, (G, H·n, D)."""
        return self._past.index_select(0, kinds).flatten(1, 2)

    def fill(self, generate: Callable[[Tensor, int], Tensor]) -> None:
        kinds = torch.arange(self.layout.kinds, device=self._past.device)
        for number in range(self.memory):
            self.remember(generate(kinds, number).to(self._past), kinds)

    def state(self) -> dict[str, Tensor]:
        return dict(zip(self._names, self._past.to("cpu", copy=True), strict=True))

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        for past, name in zip(self._past, self._names, strict=True):
            past.copy_(tensors[name])

    def __call__(self, rows: Tensor, kinds: Tensor, row_labels: Tensor) -> SelfParts:
        past, lam = self.past(kinds), self.objective.lam
        if not self.clip.per_record:
            x = self.with_labels(rows, row_labels)
            past = self.with_labels(past, row_labels.repeat(1, self.memory))
            cost, solver = self.objective.transport
            gradient = transport_gradient(x, past, cost, lam, solver=solver).gradient
            inside = -2.0 * gradient[..., : rows.shape[-1]]
            return SelfParts(rows.new_zeros(len(rows), 0), inside, torch.zeros_like(inside))
        potentials = potential(rows, past, lam, solver=POTENTIAL_SOLVER)
        # All of it is public: no bound has to hold for one point whatever the others are.
        x, y, f = (values.to(torch.float64) for values in (rows, past, potentials))
        outside = -sum_by_matmul(x, y, f, lam, reduced(self.clip.bound)) / past.shape[1]
        if self.settings.tether is not None:
            strays, back = _strays(x, y, self.settings.tether)
            outside = torch.where(strays.unsqueeze(-1), back, outside)
        return SelfParts(potentials, rows.new_zeros(len(rows), 0, 0), outside)


def _strays(rows: Tensor, past: Tensor, tether: float) -> tuple[Tensor, Tensor]:
    """Returns which rows are far from the past, (G, n), and their gradient back, (G, n, D)."""
    centre = past.median(dim=1, keepdim=True).values
    usual = (past - centre).square().sum(-1).median(dim=1, keepdim=True).values
    away = rows - centre
    return away.square().sum(-1) > tether * usual, away / rows.shape[1]


class SemiDebiased(SelfTerm):
    """The paper's −Ŵ(X[0:n], X[n':n+n']) (Definition 4.3): inside the clip for the first n rows.

    The n' extra rows receive their own gradient, clipped separately, without noise: no client
    ever sees a private point through them.
    """

    extra_rows: ClassVar[bool] = True

    def __call__(self, rows: Tensor, kinds: Tensor, row_labels: Tensor) -> SelfParts:
        n, (cost, solver) = self.layout.group_rows, self.objective.transport
        x = self.with_labels(rows, row_labels)
        gradient = self_gradient(x, n, cost, self.objective.lam, solver=solver).gradient
        gradient = gradient[..., : rows.shape[-1]]
        outside = torch.zeros_like(gradient)
        if self.layout.extra:
            outside[:, n:] = BatchClip(self.clip.bound).clip_each(gradient[:, n:])
        return SelfParts(rows.new_zeros(len(rows), 0), gradient[:, :n], outside)


def self_term(
    settings: SelfTermSettings, objective: Objective, clip: Clip, layout: Layout, like: Tensor
) -> SelfTerm:
    """Returns the self term that goes with a clip, for rows of the type of `like`, (…, D)."""
    settings.check_clip(clip)
    return self_term_named(settings.kind)(settings, objective, clip, layout, like)


SELF_TERMS: Registry[type[SelfTerm]] = Registry(
    "strategy.self_term",
    {"history": History, "semi_debiased": SemiDebiased},
    group="fedsink.losses",
)
"""Self terms by name."""


def self_term_named(name: object) -> type[SelfTerm]:
    """Returns the self term that `strategy.self_term` names, or raises ConfigError."""
    return find_loss(SELF_TERMS, "strategy.self_term", name, SelfTerm)  # type: ignore[type-abstract]
