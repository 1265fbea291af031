"""Transport losses and their gradients at the points, by the envelope theorem.

No gradient passes through an iteration: at the optimum ∂W/∂x_i = Σ_j P_ij ∂ₓc(x_i, y_j)
(Cao et al. 2021, eq. 5; Feydy 2020, Prop. 3.6).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsink.transport.costs import Cost, SquaredEuclidean
from fedsink.transport.solution import Solution
from fedsink.transport.solvers.solver import ConvergedSolver, Solver

_DEFAULT_SOLVER = ConvergedSolver()


@dataclass(frozen=True)
class TransportGradient:
    """A transport loss, its gradient at the source points, and the potentials behind it.

    Attributes:
        value: W = Σ_i a_i f_i + Σ_j b_j g_j, shape (...), in units of cost.
        gradient: ∂W/∂x_i, shape (..., n, d), of the weighted measure Σ_i a_i δ_{x_i}: with
            uniform weights it carries the factor 1/n.
        solution: the solver's potentials.
    """

    value: Tensor
    gradient: Tensor
    solution: Solution


@dataclass(frozen=True)
class SemiDebiasedGradient:
    """Ŝ with the two halves of its gradient, which different parties may compute.

    Attributes:
        value: Ŝ = 2Ŵ(X[:n], Y) − Ŵ(X[:n], X[n′:n′+n]), in units of cost.
        private_gradient: ∂ 2Ŵ(X[:n], Y)/∂X[:n], shape (n, d): the only half that sees Y.
        self_gradient: −∂ Ŵ(X[:n], X[n′:n′+n])/∂X, shape (n + n′, d).
    """

    value: Tensor
    private_gradient: Tensor
    self_gradient: Tensor

    @property
    def gradient(self) -> Tensor:
        """∂Ŝ/∂X, shape (n + n′, d): the private half added to the first n rows."""
        total = self.self_gradient.clone()
        total[: self.private_gradient.shape[0]] += self.private_gradient
        return total


def transport_gradient(
    x: Tensor,
    y: Tensor,
    cost: Cost,
    lam: float,
    *,
    extra_cost: Tensor | None = None,
    log_a: Tensor | None = None,
    log_b: Tensor | None = None,
    solver: Solver = _DEFAULT_SOLVER,
) -> TransportGradient:
    """Return W_{c,λ}(Σ a_i δ_{x_i}, Σ b_j δ_{y_j}) and ∂W/∂x_i = Σ_j P_ij ∂ₓc(x_i, y_j).

    Args:
        x: points that receive the gradient, (..., n, d).
        y: points of the other measure, (..., m, d).
        cost: c, also with labels appended to both x and y.
        lam: λ > 0, in units of cost.
        extra_cost: added to C, shape expanding to (..., n, m), with no gradient at x. For a
            product channel it is −λ·log Q(ỹ_j | label_i), so that the whole cost is −λ times
            the log-likelihood of image and label (Reshetova et al. 2024, Theorem 1).
        log_a: log-weights (..., n), −∞ for padding; uniform if None.
        log_b: log-weights (..., m), −∞ for padding; uniform if None.
        solver: `ConvergedSolver(...)` or `AnnealedSolver(...)`.

    Raises:
        ValueError: if shapes or types disagree, or the solver refuses its input.
    """
    with torch.no_grad():
        matrix = cost(x, y)
        if extra_cost is not None:
            matrix = matrix + extra_cost
        solution = solver(matrix, lam, points=(x, y), log_a=log_a, log_b=log_b)
        gradient = cost.gradient(x, y, solution.source_plan, sparse=_may_look(solution))
    return TransportGradient(solution.potential_cost, gradient, solution)


def private_gradient(
    x: Tensor,
    y: Tensor,
    cost: Cost,
    lam: float,
    *,
    log_b: Tensor | None = None,
    solver: Solver = _DEFAULT_SOLVER,
) -> TransportGradient:
    """Return 2Ŵ(X[:n], Y) and its gradient at X[:n], (..., n, d): the client's half of ∂Ŝ.

    `x` holds the n first rows only, uniformly weighted; `y` may be padded through log_b.
    """
    half = transport_gradient(x, y, cost, lam, log_b=log_b, solver=solver)
    return TransportGradient(2.0 * half.value, 2.0 * half.gradient, half.solution)


def self_gradient(
    x: Tensor, n: int, cost: Cost, lam: float, *, solver: Solver = _DEFAULT_SOLVER
) -> TransportGradient:
    """Return −Ŵ(X[:n], X[n′:n′+n]) and its gradient at all n + n′ rows of X, (n + n′, d).

    n′ = len(X) − n. Rows n′..n−1 stand on both sides and receive both contributions; with
    n′ = 0 both measures are X itself. No private data enters.

    Raises:
        ValueError: if X has fewer than n or more than 2n rows.
    """
    n_extra = x.shape[-2] - n
    if n < 1 or not 0 <= n_extra <= n:
        raise ValueError(
            f"X must have between n and 2n rows with n ≥ 1, got {x.shape[-2]} rows and n={n}."
        )
    with torch.no_grad():
        source, target = x[..., :n, :], x[..., n_extra:, :]
        solution = solver(cost(source, target), lam, points=(source, target))
        sparse = _may_look(solution)
        gradient = torch.zeros_like(x)
        gradient[..., :n, :] -= cost.gradient(source, target, solution.source_plan, sparse=sparse)
        # The cost is symmetric, so ∂_y c(x, y) is ∂ₓ with the arguments exchanged.
        backward = solution.target_plan.transpose(-1, -2)
        gradient[..., n_extra:, :] -= cost.gradient(target, source, backward, sparse=sparse)
    return TransportGradient(-solution.potential_cost, gradient, solution)


def semi_debiased_gradient(
    x: Tensor,
    y: Tensor,
    n: int,
    n_extra: int,
    cost: Cost,
    lam: float,
    *,
    log_b: Tensor | None = None,
    solver: Solver = _DEFAULT_SOLVER,
) -> SemiDebiasedGradient:
    """Return Ŝ = 2Ŵ(X[:n], Y) − Ŵ(X[:n], X[n′:n′+n]) with its gradient in two halves.

    Cao et al. 2021, Def. 4.3, with n′ = n_extra = ⌊n·p⌋: p = 0 is the biased loss, p = 1 the
    unbiased one, p = 0.2 the paper's choice.

    Args:
        x: generated points, (n + n′, d).
        y: private points, (m, d).
        n: rows of x that meet y.
        n_extra: n′, rows of x that only meet generated ones, 0 ≤ n′ ≤ n.
        cost: c.
        lam: λ > 0, in units of cost.
        log_b: log-weights (m,) of y, −∞ for padding; uniform if None.
        solver: of both problems, as in `transport_gradient`.

    Raises:
        ValueError: if x does not have n + n_extra rows, or n_extra is not in 0..n.
    """
    if x.shape[-2] != n + n_extra:
        raise ValueError(
            f"X must have n + n_extra = {n + n_extra} rows, got {x.shape[-2]}: generate the extra "
            "points in the same batch."
        )
    against_self = self_gradient(x, n, cost, lam, solver=solver)
    against_private = private_gradient(x[..., :n, :], y, cost, lam, log_b=log_b, solver=solver)
    return SemiDebiasedGradient(
        value=against_private.value + against_self.value,
        private_gradient=against_private.gradient,
        self_gradient=against_self.gradient,
    )


def _may_look(solution: Solution) -> bool:
    """Return whether work may depend on values: not where the solver's does not (`FixedSolver`)."""
    return solution.floor is None


def potential(
    x: Tensor,
    history: Tensor,
    lam: float,
    *,
    solver: Solver = _DEFAULT_SOLVER,
    bounded: bool = False,
) -> Tensor:
    """Return the dual potential f of Ŵ(X, history), shape (..., n), of mean zero.

    The cost is ‖x − y‖₂², with `bounded` as it takes it. `history` (..., m, d) holds generated
    points of earlier rounds, so f depends on no private data. A constant added to f changes no
    w_ij.

    Raises:
        ValueError: if the points disagree in shape or type, or are not finite.
    """
    solution = solver(SquaredEuclidean(bounded)(x, history), lam, points=(x, history))
    return solution.f - solution.f.mean(-1, keepdim=True)
