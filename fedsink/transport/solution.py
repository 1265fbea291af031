"""The result of a solver: dual potentials and the numbers that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


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
