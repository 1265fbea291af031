"""The published solver of DP-Sinkhorn: one symmetric update per value of a falling λ.

This is the schedule of GeomLoss (Feydy 2020, Algorithm 3.5). It is not a converged solver: at
λ = 0.05 in units of cost and factor 0.5, as DP-Sinkhorn runs it, the gradient's cosine to the
exact one is 0.77–0.90. A factor of 0.99 converges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedsink.transport.kernels import fused_schedule
from fedsink.transport.kernels.fused_schedule import Potentials
from fedsink.transport.problem import Problem, prepare
from fedsink.transport.solution import Solution
from fedsink.transport.solvers.log_domain import Progress, SoftMinimum


def annealed(
    cost_matrix: Tensor,
    lam: float,
    *,
    diameter: float | Tensor,
    scaling: float = 0.5,
    log_a: Tensor | None = None,
    log_b: Tensor | None = None,
) -> Solution:
    """Return the potentials after λ has fallen from `diameter` to λ by factors of `scaling`.

    For each value ε: f ← (f + softmin_ε(g))/2 and g ← (g + softmin_ε(f))/2, both from the old
    potentials; at the end both are replaced by a full update (not averaged) at λ. Each problem
    of a batch has its own schedule. `converged` is always False: the schedule does not look at
    its marginals; read `marginal_error`.

    The result equals GeomLoss' SamplesLoss("sinkhorn", p=1, blur=λ, scaling, debias=False) with
    the same cost and diameter, and its gradient is that of `source_plan` and `target_plan`. For
    GeomLoss' p = 2 pass diameter², scaling² and λ = blur².

    Args:
        cost_matrix: C, (..., n, m), float32 or float64, finite.
        lam: the last value, λ > 0, in units of cost.
        diameter: the first value, in units of cost, one for all problems or one each (...);
            GeomLoss takes `bounding_diameter` of the points.
        scaling: ratio of successive values, in (0, 1).
        log_a: log-weights (..., n), −∞ for padding; uniform if None.
        log_b: log-weights (..., m), −∞ for padding; uniform if None.

    Raises:
        ValueError: for a scaling outside (0, 1), a negative diameter, or what `solve` refuses.
    """
    if not 0.0 < scaling < 1.0:
        raise ValueError(f"The scaling must lie strictly between 0 and 1, got {scaling}.")
    problem = prepare(cost_matrix, lam, log_a, log_b)
    starts = torch.as_tensor(diameter, dtype=torch.float64).expand(problem.batch_shape).reshape(-1)
    if not bool((starts.isfinite() & (starts >= 0.0)).all()):
        raise ValueError(
            f"The diameter must be finite and ≥ 0 in units of cost, got {starts.tolist()}."
        )
    return anneal(problem, starts.tolist(), scaling)


def anneal(problem: Problem, starts: list[float], scaling: float) -> Solution:
    """Return what `annealed` does, for a prepared problem and one first value per problem."""
    schedules = [epsilon_schedule(start, problem.lam, scaling) for start in starts]
    potentials = fused_schedule.run(problem, schedules)
    if potentials is None:
        potentials = _anneal(problem, schedules)
    steps = torch.tensor([len(values) for values in schedules], device=problem.cost.device)
    return _solution(problem, potentials, steps)


def anneal_unseen(problem: Problem, diameters: Tensor, widest: float) -> Solution:
    """Return what `annealed` does at scaling ½ without a look at a value from the host.

    Args:
        problem: from `problem.bounded`.
        diameters: first value of each problem's schedule, (B,), at most `widest`.
        widest: public; it decides on the number of steps, through most of which problems with
            smaller diameters wait.
    """
    longest = len(epsilon_schedule(widest, problem.lam, 0.5))
    first = torch.where(diameters > 0.0, diameters, problem.lam).to(torch.float64)
    falls = torch.ceil((first.log() - math.log(problem.lam)) / math.log(2.0))
    waiting = longest - 2.0 - falls.clamp_(0.0, longest - 2.0)
    step = torch.arange(longest, device=diameters.device).unsqueeze(-1)
    values = first * torch.exp2(-(step - waiting - 1.0).clamp_(min=0.0))
    # Made on the device: a recording cannot copy from the host.
    table = torch.where(step == longest - 1, problem.lam, values).to(problem.cost)
    return _solution(problem, _follow(problem, table.unbind(), waiting), longest - waiting)


def epsilon_schedule(diameter: float, lam: float, scaling: float) -> list[float]:
    """Return [D, D, D·s, D·s², …, λ] with all middle values above λ (GeomLoss' list, p = 1).

    A diameter of 0 (all points coincide) gives [λ, λ].
    """
    if diameter <= 0.0:
        return [lam, lam]
    steps = max(0, math.ceil((math.log(lam) - math.log(diameter)) / math.log(scaling)))
    return [diameter, *(diameter * scaling**step for step in range(steps)), lam]


def bounding_diameter(
    x: Tensor, y: Tensor, log_a: Tensor | None = None, log_b: Tensor | None = None
) -> Tensor:
    """Return the Euclidean diagonal of the box that holds x and y, shape (...).

    Points of weight zero are left out. It is GeomLoss' default diameter for one problem; note
    that it depends on the points, private ones included, and so does the schedule's length.
    """
    low, high = [], []
    for points, log_weights in ((x, log_a), (y, log_b)):
        lowest = highest = points
        if log_weights is not None:
            real = log_weights.exp() > 0.0
            if bool(real.any(-1).all()):
                lowest = highest = _without_padding(points, real)
            else:
                lowest = points.masked_fill(~real.unsqueeze(-1), math.inf)
                highest = points.masked_fill(~real.unsqueeze(-1), -math.inf)
        low.append(lowest.amin(-2))
        high.append(highest.amax(-2))
    extent = torch.maximum(high[0], high[1]) - torch.minimum(low[0], low[1])
    # Without any point of positive weight the extent is −∞.
    diameter: Tensor = torch.linalg.vector_norm(extent.clamp(min=0.0), dim=-1)
    return diameter


def _without_padding(points: Tensor, real: Tensor) -> Tensor:
    """Return points (..., n, d) with each one that is not real replaced by one that is.

    Copying rows is many times faster than filling them.
    """
    if bool(real.all()):
        return points
    batch, (n, d) = torch.broadcast_shapes(points.shape[:-2], real.shape[:-1]), points.shape[-2:]
    real = real.expand(*batch, n).reshape(-1, n)
    rows = torch.arange(n, device=real.device).expand_as(real)
    rows = torch.where(real, rows, real.long().argmax(-1, keepdim=True))
    if points.dim() > 2:
        rows = rows + n * torch.arange(len(real), device=real.device).unsqueeze(-1)
        points = points.expand(*batch, n, d)
    return points.reshape(-1, d).index_select(0, rows.reshape(-1)).reshape(*batch, n, d)


def warm_start(problem: Problem, most_iterations: int) -> Progress:
    """Return where a schedule from the cost range down to λ by halves ends.

    Where that is longer than `most_iterations`, zero potentials. For λ far below the range it
    saves hundreds of iterations at fixed λ.
    """
    schedules = [epsilon_schedule(span, problem.lam, 0.5) for span in problem.cost_range.tolist()]
    longest = max(len(values) for values in schedules)
    if longest >= most_iterations:
        return Progress.begin(problem)
    _, _, f, g = _anneal(problem, schedules)
    progress = Progress.begin(problem)
    progress.record(f, g, longest)
    return progress


def _solution(problem: Problem, potentials: Potentials, steps: Tensor) -> Solution:
    f_before, g_before, f, g = potentials
    never = torch.zeros_like(steps, dtype=torch.bool)
    return problem.solution(f, g, steps, never, f_before, g_before)


def _anneal(problem: Problem, schedules: list[list[float]]) -> Potentials:
    """Run one schedule per problem; return potentials before and after the last full update."""
    if all(values == schedules[0] for values in schedules):
        return _follow(problem, schedules[0], None)
    longest = max(len(values) for values in schedules)
    # Shorter schedules wait at their first value until the longest has as many steps left.
    table = torch.tensor(
        [[values[0]] * (longest - len(values)) + values for values in schedules],
        dtype=problem.cost.dtype,
        device=problem.cost.device,
    )
    waits = [longest - len(values) for values in schedules]
    return _follow(problem, table.unbind(1), torch.tensor(waits, device=table.device))


def _follow(
    problem: Problem, values: Sequence[float | Tensor], waiting: Tensor | None
) -> Potentials:
    """Run a schedule of one value per step, or of one for each problem (B,).

    Problem b waits for `waiting[b]` steps; None: all of them start at once.
    """
    softmin = SoftMinimum(problem)
    f = softmin.rows(torch.zeros_like(problem.log_b), values[0])
    g = softmin.columns(torch.zeros_like(problem.log_a), values[0])
    for step, value in enumerate(values):
        f_new, g_new = softmin.rows(g, value), softmin.columns(f, value)
        f_new, g_new = f_new.add_(f).mul_(0.5), g_new.add_(g).mul_(0.5)
        if waiting is not None:
            late = (waiting > step).unsqueeze(-1)
            f_new, g_new = torch.where(late, f, f_new), torch.where(late, g, g_new)
        f, g = f_new, g_new
    return f, g, softmin.rows(g, problem.lam), softmin.columns(f, problem.lam)
