"""Transport on fixed shapes without a look at a value from the host, so that it can be recorded.

The same iterations as in `fedsink.transport`, in the log domain. Where those stop early or begin at
a value of the points, selects take the place of branches.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedsink.transport import ConvergedSolver, Solution, SquaredEuclidean, epsilon_schedule
from fedsink.transport.log_domain import SoftMinimum
from fedsink.transport.problem import Problem, bounded

# `sinkhorn.solve` looks at the marginal error after every third iteration.
_CHECK_EVERY = 3


def costs(x: Tensor, y: Tensor, m: float) -> Tensor:
    """Return ‖x_i − y_j‖₂² + m‖x_i − y_j‖₁, shape (B, n, k), for x (B, n, d) and y (B, k, d)."""
    x_norms, y_norms = x.square().sum(-1), y.square().sum(-1)
    products = torch.matmul(x, y.transpose(-1, -2))
    squared = (x_norms.unsqueeze(-1) + y_norms.unsqueeze(-2)).sub_(products, alpha=2.0)
    squared.clamp_(min=0.0)
    return squared if m == 0.0 else squared.add_(torch.cdist(x, y, p=1.0), alpha=m)


def cost_gradient(x: Tensor, y: Tensor, plan: Tensor, m: float) -> Tensor:
    """Return Σ_j P_ij [2(x_i − y_j) + m·sign(x_i − y_j)], (B, n, d), as `costs.Mixed` does."""
    field = SquaredEuclidean().gradient(x, y, plan)
    if m == 0.0:
        return field
    x, y, plan = x.contiguous(), y.contiguous(), plan.contiguous()
    # See `pairwise.sign_field`, which may choose another kernel when it was called often.
    return field.add_(torch.ops.aten._cdist_backward(plan, x, y, 1.0, plan), alpha=m)


def rough_potential(x: Tensor, past: Tensor, lam: float, solver: ConvergedSolver) -> Tensor:
    """Return what `transport.potential` does for each problem of a batch, (B, n).

    All iterations are run; a problem keeps the potential at which it met the tolerance. Problems
    with costs beyond 1000 λ begin at zero, where `solve` begins at an annealed schedule.

    Args:
        x: points, (B, n, d).
        past: generated points of earlier rounds, (B, m, d).
        lam: λ > 0, in units of cost.
        solver: its tolerance and number of iterations.
    """
    problem = bounded(costs(x, past, 0.0), lam, None, None, 0.0)
    softmin = SoftMinimum(problem)
    weights = problem.log_a.exp()
    f = kept = softmin.rows(torch.zeros_like(problem.log_b), lam)
    met = torch.zeros_like(f[:, :1], dtype=torch.bool)
    for iteration in range(1, solver.max_iterations + 1):
        f_next = softmin.rows(softmin.columns(f, lam), lam)
        if iteration % _CHECK_EVERY == 0 or iteration == solver.max_iterations:
            error = (weights * torch.expm1((f - f_next) / lam).abs()).sum(-1, keepdim=True)
            kept = torch.where(met, kept, f)
            met = met | (error <= solver.tolerance)
        f = f_next
    return kept - kept.mean(-1, keepdim=True)


def annealed(problem: Problem, diameter: Tensor, longest: int) -> Solution:
    """Return what `transport.annealed` does at scaling ½, with the diameters on the device.

    Args:
        problem: from `problem.bounded`.
        diameter: first value of each problem's schedule, (B,).
        longest: steps of the longest schedule there can be; see `most_steps`.
    """
    table, waiting = _schedules(diameter, problem.lam, longest)
    table = table.to(problem.cost)
    softmin = SoftMinimum(problem)
    f = softmin.rows(torch.zeros_like(problem.log_b), table[0])
    g = softmin.columns(torch.zeros_like(problem.log_a), table[0])
    for step, value in enumerate(table):
        late = (waiting > step).unsqueeze(-1)
        f_new = torch.where(late, f, 0.5 * (f + softmin.rows(g, value)))
        g = torch.where(late, g, 0.5 * (g + softmin.columns(f, value)))
        f = f_new
    lam = problem.lam
    never = torch.zeros_like(waiting, dtype=torch.bool)
    return problem.solution(
        softmin.rows(g, lam), softmin.columns(f, lam), longest - waiting, never, f, g
    )


def most_steps(diameter: float, lam: float) -> int:
    """Return how many values the schedule of scaling ½ from `diameter` to λ has."""
    return len(epsilon_schedule(diameter, lam, 0.5))


def _schedules(diameter: Tensor, lam: float, longest: int) -> tuple[Tensor, Tensor]:
    """Return `epsilon_schedule` of each problem at its end, (longest, B), and how long it waits."""
    first = torch.where(diameter > 0.0, diameter, lam).to(torch.float64)
    falls = torch.ceil((first.log() - math.log(lam)) / math.log(2.0)).clamp_(0.0, longest - 2.0)
    waiting = longest - 2.0 - falls
    step = torch.arange(longest, device=diameter.device).unsqueeze(-1)
    values = first * torch.exp2(-(step - waiting - 1.0).clamp_(min=0.0))
    # Nothing is copied from the host here: a recording could not.
    return torch.where(step == longest - 1, lam, values), waiting
