"""The annealed schedule and its gradient by KeOps: reductions over formulas, no n×m numbers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedsink.errors import ConfigError
from fedsink.transport.costs import L1, Cost, Mixed, SquaredEuclidean
from fedsink.transport.solvers.annealed import epsilon_schedule
from fedsink.transport.solvers.annealed_problem import AnnealedProblem


def keops(problem: AnnealedProblem) -> tuple[Tensor, Tensor]:
    """Return W and ∂W/∂x with O((n + m)·d) memory, for the costs of this package.

    Raises:
        ConfigError: for a cost without a symbolic form.
    """
    x, y, lam = problem.x.detach(), problem.y.detach(), problem.lam
    log_a, log_b = problem.log_weights

    def softmin(points: Tensor, others: Tensor, weights: Tensor, g: Tensor, eps: float) -> Tensor:
        scores = _symbolic((weights + g / eps).unsqueeze(-1), 0)
        scores = scores - _cost(points, others, problem.cost) / eps
        reduced: Tensor = scores.logsumexp(dim=1)
        return -eps * reduced.squeeze(-1)

    schedule = epsilon_schedule(problem.diameter, lam, problem.scaling)
    f = softmin(x, y, log_b, log_b.new_zeros(len(y)), schedule[0])
    g = softmin(y, x, log_a, log_a.new_zeros(len(x)), schedule[0])
    for eps in schedule:
        f, g = (
            0.5 * (f + softmin(x, y, log_b, g, eps)),
            0.5 * (g + softmin(y, x, log_a, f, eps)),
        )
    g_before = g
    f, g = softmin(x, y, log_b, g, lam), softmin(y, x, log_a, f, lam)
    rows = _symbolic((f + lam * log_a).unsqueeze(-1), 1)
    columns = _symbolic((g_before + lam * log_b).unsqueeze(-1), 0)
    plan = ((rows + columns - _cost(x, y, problem.cost)) / lam).exp()
    gradient: Tensor = (plan * _derivative(x, y, problem.cost)).sum(dim=1)
    return (log_a.exp() * f).sum() + (log_b.exp() * g).sum(), gradient


def _symbolic(values: Tensor, axis: int) -> Any:
    from pykeops.torch import LazyTensor

    return LazyTensor(values.unsqueeze(axis).contiguous())


def _parts(cost: Cost) -> tuple[float, float]:
    """Return (q, m) of q‖x − y‖₂² + m‖x − y‖₁."""
    if isinstance(cost, L1):
        return 0.0, 1.0
    if isinstance(cost, SquaredEuclidean):
        return 1.0, 0.0
    if isinstance(cost, Mixed):
        return 1.0, cost.m
    raise ConfigError(f"The keops backend has no symbolic form of {cost}: use native or geomloss.")


def _cost(x: Tensor, y: Tensor, cost: Cost) -> Any:
    q, m = _parts(cost)
    difference = _symbolic(x, 1) - _symbolic(y, 0)
    if q == 0.0:
        return difference.abs().sum(-1)
    squared = (difference**2).sum(-1)
    return squared if m == 0.0 else squared + m * difference.abs().sum(-1)


def _derivative(x: Tensor, y: Tensor, cost: Cost) -> Any:
    q, m = _parts(cost)
    difference = _symbolic(x, 1) - _symbolic(y, 0)
    if q == 0.0:
        return difference.sign()
    return 2.0 * difference if m == 0.0 else 2.0 * difference + m * difference.sign()
