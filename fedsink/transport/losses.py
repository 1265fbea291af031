"""Transport losses and their gradients at the points, by the envelope theorem.

No gradient passes through an iteration: at the optimum ∂W/∂x_i = Σ_j P_ij ∂ₓc(x_i, y_j)
(Feydy 2020, Prop. 3.6).
"""

from __future__ import annotations

import math
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


def transport_gradient(
    x: Tensor,
    y: Tensor,
    cost: Cost,
    lam: float,
    *,
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
        log_a: log-weights (..., n), −∞ for padding; uniform if None.
        log_b: log-weights (..., m), −∞ for padding; uniform if None.
        solver: `ConvergedSolver(...)` or `AnnealedSolver(...)`.

    Raises:
        ValueError: if shapes or types disagree, or the solver refuses its input.
    """
    with torch.no_grad():
        solution = solver(cost(x, y), lam, points=(x, y), log_a=log_a, log_b=log_b)
        gradient = cost.gradient(x, y, solution.source_plan, sparse=_may_look(solution))
    return TransportGradient(solution.potential_cost, gradient, solution)


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


def batch_gradients(
    x: Tensor, y: Tensor, own: Tensor, present: Tensor, cost: Cost, lam: float, solver: Solver
) -> Tensor:
    """Return ∂_X 2Ŵ_λ(X_k, Y_k) + G_k for each of K batches, shape (K, n, d).

    A batch without records gives G_k alone: a problem of the same size is solved, and its result
    dropped. With a `FixedSolver` the operations depend on shapes and public numbers alone.

    Args:
        x: generated points, (K, n, d′) or (n, d′) for all; labels may stand behind d coordinates.
        y: private records in B ≥ 1 places, (K, B, d′), finite also in empty places.
        own: G, the data-independent part of the gradient, (K, n, d) or (n, d).
        present: which places hold a record, (K, B) bool; they weigh alike.
        cost: c.
        lam: λ > 0, in units of cost.
        solver: what solves the problems.

    Raises:
        ValueError, RuntimeError, ArithmeticError: costs beyond the range of floats or of λ. With a
            solver that looks at the costs this depends on the records.
    """
    some = present.any(-1, keepdim=True)
    counted = present | ~some
    log_b = torch.where(counted, -counted.sum(-1, keepdim=True).to(y.dtype).log(), -math.inf)
    field = transport_gradient(x, y, cost, lam, log_b=log_b, solver=solver).gradient
    return torch.where(some.unsqueeze(-1), 2.0 * field[..., : own.shape[-1]] + own, own)


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
