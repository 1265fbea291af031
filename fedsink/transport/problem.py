"""Transport problems as the solvers' loops take them, the interface of solvers, and solutions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

Points = tuple[Tensor, Tensor]
"""x (..., n, d) and y (..., m, d)."""
Weights = Tensor | None
"""Log-weights of points, (..., n), −∞ for padding; uniform if None."""

# Far below the resolution of a sum whose largest term is 1.
_FLOORS = {torch.float32: -60.0, torch.float64: -300.0}


class Solver(Protocol):
    """Anything that solves for potentials, given the cost matrix and the points behind it."""

    def __call__(
        self, cost: Tensor, lam: float, points: Points, log_a: Weights = None, log_b: Weights = None
    ) -> Solution:
        """Returns the solution of W(a, b) for a cost matrix C (..., n, m) and λ = lam."""
        ...


@dataclass(frozen=True)
class Solution:
    r"""Dual potentials of entropic transport, W = min_π ⟨C, π⟩ + λ·KL(π ‖ a⊗b).

    Four numbers must not be confused: `primal_cost`, `regularised_cost`, `dual_cost` and
    `potential_cost`. They agree with each other only as said at each of them.

    Attributes:
        f: potential on the source points, (..., n), in units of cost; 0 where a_i = 0, here and
            below, except after a `FixedSolver` or a `KeopsSolver`.
        g: potential on the target points, (..., m), in units of cost; 0 where b_j = 0.
        cost_matrix: C, (..., n, m); entries of zero-weight points are set to 0.
        lam: the entropic regularisation λ in units of cost (never blur).
        log_a: log-weights of the source points, (..., n), −∞ for padding.
        log_b: log-weights of the target points, (..., m), −∞ for padding.
        iterations: Sinkhorn iterations done, an integer per problem (...).
        converged: True where the marginal error was measured below the tolerance, and the
            potentials are fine enough to tell (see `solve` on resolution), (...).
        f_before: the potential that produced g, where that is not f (annealed solver).
        g_before: the potential that produced f, where that is not g (annealed solver).
        floor: the smallest exponent of a plan's entry, None where they are not cut off.
        plans: source and target plan, where a library gave them in another form.
    """

    f: Tensor
    g: Tensor
    cost_matrix: Tensor
    lam: float
    log_a: Tensor
    log_b: Tensor
    iterations: Tensor
    converged: Tensor
    f_before: Tensor | None = None
    g_before: Tensor | None = None
    floor: float | None = None
    plans: tuple[Any, Any] | None = None

    @property
    def plan(self) -> Tensor:
        """P_ij = a_i b_j exp((f_i + g_j − C_ij)/λ), shape (..., n, m)."""
        return self._plan_of(self.f, self.g)

    @property
    def source_plan(self) -> Tensor:
        """The plan whose rows produced f: P_ij = a_i b_j exp((f_i + g⁻_j − C_ij)/λ).

        It is the plan of the gradient with respect to the source points. For the annealed
        solver its rows sum to a_i exactly; for `solve` it is `plan`.
        """
        if self.plans is not None:
            return self.plans[0]
        return self._plan_of(self.f, self.g if self.g_before is None else self.g_before)

    @property
    def target_plan(self) -> Tensor:
        """The plan whose columns produced g: P_ij = a_i b_j exp((f⁻_i + g_j − C_ij)/λ).

        It is the plan of the gradient with respect to the target points; its columns sum to
        b_j exactly.
        """
        if self.plans is not None:
            return self.plans[1]
        return self._plan_of(self.f if self.f_before is None else self.f_before, self.g)

    @property
    def marginal_error(self) -> Tensor:
        """Σ_i |Σ_j P_ij − a_i| + Σ_j |Σ_i P_ij − b_j|, shape (...)."""
        plan = self.plan
        rows = (plan.sum(-1) - self.log_a.exp()).abs().sum(-1)
        columns = (plan.sum(-2) - self.log_b.exp()).abs().sum(-1)
        return rows + columns

    @property
    def primal_cost(self) -> Tensor:
        """⟨C, P⟩ = Σ_ij C_ij P_ij, shape (...): the cost of the plan, without entropy."""
        return (self.cost_matrix * self.plan).sum((-1, -2))

    @property
    def regularised_cost(self) -> Tensor:
        """⟨C, P⟩ + λ·KL(P ‖ a⊗b), shape (...).

        KL(P ‖ Q) = Σ P log(P/Q) − ΣP + ΣQ, and P/(a⊗b) = exp((f ⊕ g − C)/λ). It exceeds
        `dual_cost` by Σ_i f_i(Σ_j P_ij − a_i) + Σ_j g_j(Σ_i P_ij − b_j), which is 0 when the
        marginals hold.
        """
        plan = self.plan
        potentials = self.f.unsqueeze(-1) + self.g.unsqueeze(-2)
        mass = self.log_a.exp().sum(-1) * self.log_b.exp().sum(-1)
        return (plan * potentials).sum((-1, -2)) + self.lam * (mass - plan.sum((-1, -2)))

    @property
    def dual_cost(self) -> Tensor:
        """Σ_i a_i f_i + Σ_j b_j g_j − λ(Σ_ij P_ij − Σ_ij a_i b_j), shape (...).

        A lower bound of W at any potentials (weak duality), equal to it at the optimum.
        """
        mass = self.log_a.exp().sum(-1) * self.log_b.exp().sum(-1)
        return self.potential_cost - self.lam * (self.plan.sum((-1, -2)) - mass)

    @property
    def potential_cost(self) -> Tensor:
        """Σ_i a_i f_i + Σ_j b_j g_j, shape (...): the loss that GeomLoss reports.

        Equal to `dual_cost` whenever the plan has mass one, so after every iteration of
        `solve`; the annealed schedule leaves a difference. It needs no n×m work.
        """
        return (self.log_a.exp() * self.f).sum(-1) + (self.log_b.exp() * self.g).sum(-1)

    def _plan_of(self, f: Tensor, g: Tensor) -> Tensor:
        # The potentials meet the cost before the division by λ: what cancels, cancels exactly.
        rows = f + self.lam * self.log_a
        columns = g + self.lam * self.log_b
        exponent = (rows.unsqueeze(-1) - self.cost_matrix).add_(columns.unsqueeze(-2))
        # No entry of a coupling exceeds 1. Without the clamp, rounding in potentials far above λ
        # (see `solve` on resolution) could overflow here.
        return exponent.mul_(1.0 / self.lam).clamp_(self.floor, 0.0).exp_()


@dataclass(frozen=True)
class Problem:
    """Costs and weights with one leading batch dimension, as the loops of all solvers take them.

    Points of weight zero (padding) have zero cost and are left out by their weight. A measure of
    nothing but padding is replaced by a uniform one, so that no loop meets 0/0; `solution` sets its
    potentials to zero again.
    """

    cost: Tensor  # C, (B, n, m), zero in padded rows and columns
    lam: float  # λ in units of cost
    log_a: Tensor  # working log-weights, (B, n)
    log_b: Tensor  # and (B, m)
    real_rows: Tensor | None  # which points are no padding, None if all are real
    real_columns: Tensor | None
    cost_range: Tensor  # max C − min C over the real entries of each problem, (B,)
    largest: Tensor  # max |C| over them, or a bound on it, (B,)
    batch_shape: torch.Size  # the caller's batch dimensions, which B flattens
    given_log_a: Tensor  # the caller's log-weights, in its batch shape
    given_log_b: Tensor
    floor: float | None = None  # smallest exponent, where they are cut off (see `bounded`)

    def solution(
        self,
        f: Tensor,
        g: Tensor,
        iterations: Tensor,
        converged: Tensor,
        f_before: Tensor | None = None,
        g_before: Tensor | None = None,
    ) -> Solution:
        """Returns the result in the caller's batch shape, with zero potentials at padding."""
        shape, empty = self.batch_shape, None  # empty: a measure has no real point, (B,)
        for real in (self.real_rows, self.real_columns):
            if real is not None:
                lacking = ~real.any(-1)
                empty = lacking if empty is None else empty | lacking

        def potential(values: Tensor, real: Tensor | None) -> Tensor:
            values = values if real is None else values.masked_fill(~real, 0.0)
            values = values if empty is None else values.masked_fill(empty.unsqueeze(-1), 0.0)
            return values.reshape(*shape, values.shape[-1])

        if empty is not None:
            iterations = iterations.masked_fill(empty, 0)
            converged = converged & ~empty
        return Solution(
            f=potential(f, self.real_rows),
            g=potential(g, self.real_columns),
            cost_matrix=self.cost.reshape(*shape, *self.cost.shape[1:]),
            lam=self.lam,
            log_a=self.given_log_a,
            log_b=self.given_log_b,
            iterations=iterations.reshape(shape),
            converged=converged.reshape(shape),
            f_before=None if f_before is None else potential(f_before, self.real_rows),
            g_before=None if g_before is None else potential(g_before, self.real_columns),
            floor=self.floor,
        )

    def part(self, indices: Tensor) -> Problem:
        """Returns some problems of the batch, by their numbers (k,), as a batch of their own."""
        log_a, log_b = self.log_a[indices], self.log_b[indices]
        return replace(
            self,
            cost=self.cost[indices],
            log_a=log_a,
            log_b=log_b,
            real_rows=None if self.real_rows is None else self.real_rows[indices],
            real_columns=None if self.real_columns is None else self.real_columns[indices],
            cost_range=self.cost_range[indices],
            largest=self.largest[indices],
            batch_shape=torch.Size([len(indices)]),
            given_log_a=log_a,
            given_log_b=log_b,
        )


def prepare(cost_matrix: Tensor, lam: float, log_a: Weights, log_b: Weights) -> Problem:
    """Returns a solver's input, validated (ValueError), with one batch dimension."""
    if (
        cost_matrix.dim() < 2
        or cost_matrix.numel() == 0
        or cost_matrix.dtype not in (torch.float32, torch.float64)
    ):
        raise ValueError(
            "The cost matrix must have shape (..., n, m) with n, m ≥ 1 in float32 or float64, got "
            f"shape {tuple(cost_matrix.shape)} of {cost_matrix.dtype}."
        )
    if not (math.isfinite(lam) and lam > 0.0):
        raise ValueError(
            f"The regularisation λ must be a positive finite number in units of cost, got {lam}."
        )
    shape = cost_matrix.shape[:-2]
    n, m = cost_matrix.shape[-2:]
    cost = cost_matrix.detach().reshape(-1, n, m)
    given_a, rows, real_rows = _weights(log_a, n, "log_a", cost, shape)
    given_b, columns, real_columns = _weights(log_b, m, "log_b", cost, shape)
    if real_rows is None and real_columns is None:
        low, high = torch.aminmax(cost.flatten(1), dim=1)
    else:
        real = torch.ones_like(cost, dtype=torch.bool)
        real = real if real_rows is None else real & real_rows.unsqueeze(-1)
        real = real if real_columns is None else real & real_columns.unsqueeze(-2)
        cost = cost.masked_fill(~real, 0.0)
        lacking = ~real.any(-1).any(-1)  # their smallest and largest real entries count as 0
        low = cost.masked_fill(~real, math.inf).amin((-1, -2)).masked_fill(lacking, 0.0)
        high = cost.masked_fill(~real, -math.inf).amax((-1, -2)).masked_fill(lacking, 0.0)
    lowest, highest = float(low.amin()), float(high.amax())
    if not (math.isfinite(lowest) and math.isfinite(highest)):
        raise ValueError(
            f"The cost matrix must be finite, got values from {lowest} to {highest}: check the "
            "points."
        )
    largest = max(abs(lowest), abs(highest))
    if largest / lam > math.sqrt(torch.finfo(cost.dtype).max):
        raise ValueError(
            f"λ = {lam} is too small for costs up to {largest:g} in {cost.dtype}: raise λ or "
            "rescale the points."
        )
    return Problem(
        cost=cost,
        lam=float(lam),
        log_a=rows,
        log_b=columns,
        real_rows=real_rows,
        real_columns=real_columns,
        cost_range=high - low,
        largest=torch.maximum(low.abs(), high.abs()),
        batch_shape=shape,
        given_log_a=given_a,
        given_log_b=given_b,
    )


def bounded(
    cost_matrix: Tensor, lam: float, log_a: Weights, log_b: Weights, largest_cost: float
) -> Problem:
    """Returns a solver's input with one batch dimension, without reading a cost or a weight.

    Which loops run, how long they run and whether this raises depends only on λ and
    `largest_cost`, a public bound on C. Padding is left out by its weight; its costs must be
    finite. Both measures need a point of positive weight. Wrong costs or weights give a wrong
    result.

    Exponents are cut off where they no longer matter, padding included: exp takes many times longer
    where its result underflows, so the time would depend on the costs.
    """
    if not 1e-30 <= lam <= 1e30:
        raise ValueError(f"λ must lie in 1e-30..1e30 for a fixed amount of work, got {lam}.")
    if not largest_cost / lam <= math.sqrt(torch.finfo(cost_matrix.dtype).max):
        raise ValueError(
            f"λ = {lam} is too small for costs up to {largest_cost:g} in {cost_matrix.dtype}: "
            "raise λ or rescale the points."
        )
    shape = cost_matrix.shape[:-2]
    n, m = cost_matrix.shape[-2:]
    cost = cost_matrix.detach().reshape(-1, n, m)

    def weights(given: Tensor | None, points: int) -> Tensor:
        uniform = cost.new_full((), -math.log(points))
        return (uniform if given is None else given.detach().to(cost)).expand(*shape, points)

    rows, columns = weights(log_a, n), weights(log_b, m)
    return Problem(
        cost=cost,
        lam=float(lam),
        log_a=rows.reshape(-1, n),
        log_b=columns.reshape(-1, m),
        real_rows=None,
        real_columns=None,
        cost_range=cost.new_full(cost.shape[:1], largest_cost),
        largest=cost.new_full(cost.shape[:1], largest_cost),
        batch_shape=shape,
        given_log_a=rows,
        given_log_b=columns,
        floor=_FLOORS[cost.dtype],
    )


def _weights(
    given: Tensor | None, points: int, name: str, cost: Tensor, shape: torch.Size
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns weights as the caller sees them, as the loops use them, and what is no padding."""
    if given is None:
        uniform = cost.new_full((cost.shape[0], points), -math.log(points))
        return uniform.reshape(*shape, points), uniform, None
    try:
        full = given.detach().to(cost).expand(*shape, points)
    except RuntimeError:
        raise ValueError(
            f"{name} must have a shape that expands to {(*shape, points)}, got "
            f"{tuple(given.shape)}."
        ) from None
    log_weights = full.reshape(-1, points)
    mass = log_weights.exp()
    real = mass > 0.0
    has_padding = not bool(real.all())
    total = mass.sum(-1)
    wrong = ~((total - 1.0).abs() <= 1e-3)
    if has_padding:
        wrong &= real.any(-1) | log_weights.isnan().any(-1)
    if bool(wrong.any()):
        raise ValueError(
            f"The weights exp({name}) must sum to 1 in each problem, got a sum of "
            f"{float(total[wrong][0]):g}: subtract their logsumexp."
        )
    if not has_padding:
        return full, log_weights, None
    # A measure of nothing but padding gets uniform weights; its potentials are erased at the end.
    empty = ~real.any(-1, keepdim=True)
    working = log_weights.masked_fill(~real, -math.inf).masked_fill(empty, -math.log(points))
    return full, working, real
