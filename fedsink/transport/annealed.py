"""The published solver of DP-Sinkhorn: one symmetric update per value of a falling λ.

This is the schedule of GeomLoss (Feydy 2020, Algorithm 3.5). It is not a converged solver: at
λ = 0.05 in units of cost and factor 0.5, as DP-Sinkhorn runs it, the gradient's cosine to the
exact one is 0.77–0.90. A factor of 0.99 converges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsink.transport.compiled import Kernel
from fedsink.transport.iterations import SinkhornState, SoftMinimum
from fedsink.transport.problem import Points, Problem, Solution, Weights, prepare

Potentials = tuple[Tensor, Tensor, Tensor, Tensor]
"""f and g before the last full update, then f and g behind it."""
# Updates in one call. More would save little (a call costs about as much as an update of 50×75
# pairs) and compile for longer.
_UPDATES = 5
# Nominal seconds of an eager update: launching its operations, and each pair's part.
_SECONDS_PER_UPDATE = 8e-5
_SECONDS_PER_PAIR = 8e-9
# Iterations at each value of a warm start. After one or two, potentials on costs with ties lag
# behind the falling λ, and at its last value an iteration moves them by no more than λ·log 2.
_PER_VALUE = 4


@dataclass(frozen=True)
class AnnealedSolver:
    """Potentials after λ has fallen from the points' diameter to its value, factor by factor.

    For each value ε: f ← (f + softmin_ε(g))/2 and g ← (g + softmin_ε(f))/2, both from the old
    potentials; at the end both are replaced by a full update (not averaged) at λ. Each problem
    of a batch has its own schedule. `converged` is always False, as the schedule reads no
    marginals; see `Solution.marginal_error`.

    The result equals GeomLoss' SamplesLoss("sinkhorn", p=1, blur=λ, scaling, debias=False) with
    the same cost and diameter, and its gradient is that of `source_plan` and `target_plan`. For
    GeomLoss' p = 2 pass diameter², scaling² and λ = blur².

    Attributes:
        scaling: ratio of successive values, in (0, 1).
        diameter: the first value, in units of cost; None: `bounding_diameter` of each problem.
    """

    scaling: float = 0.5
    diameter: float | None = None

    def __call__(
        self, cost: Tensor, lam: float, points: Points, log_a: Weights = None, log_b: Weights = None
    ) -> Solution:
        """Returns the potentials at the end of the schedule.

        Raises ValueError for a scaling outside (0, 1), a negative diameter, or input that `solve`
        refuses.
        """
        if not 0.0 < self.scaling < 1.0:
            raise ValueError(f"The scaling must lie strictly between 0 and 1, got {self.scaling}.")
        problem = prepare(cost, lam, log_a, log_b)
        starts = self.starts(points, log_a, log_b).to(torch.float64)
        values = starts.expand(problem.batch_shape).reshape(-1)
        if not bool((values.isfinite() & (values >= 0.0)).all()):
            raise ValueError(
                f"The diameter must be finite and ≥ 0 in units of cost, got {values.tolist()}."
            )
        return anneal(problem, values.tolist(), self.scaling)

    def starts(self, points: Points, log_a: Weights, log_b: Weights) -> Tensor:
        """Returns the first value of each problem's schedule, (...), or of all schedules, ()."""
        if self.diameter is not None:
            return torch.tensor(self.diameter, dtype=torch.float64)
        return bounding_diameter(*points, log_a, log_b)


def anneal(problem: Problem, starts: list[float], scaling: float) -> Solution:
    """Returns the potentials of a prepared batch, given each problem's first value."""
    schedules = [epsilon_schedule(start, problem.lam, scaling) for start in starts]
    potentials = _compiled(problem, schedules) or follow(SoftMinimum(problem), schedules)
    f_before, g_before, f, g = potentials
    steps = torch.tensor([len(values) for values in schedules], device=f.device)
    never = torch.zeros_like(steps, dtype=torch.bool)
    return problem.solution(f, g, steps, never, f_before, g_before)


def epsilon_schedule(diameter: float, lam: float, scaling: float) -> list[float]:
    """Returns [D, D, D·s, D·s², …, λ] with all middle values above λ (GeomLoss' list, p = 1)."""
    if diameter <= 0.0:  # all points coincide
        return [lam, lam]
    steps = max(0, math.ceil((math.log(lam) - math.log(diameter)) / math.log(scaling)))
    return [diameter, *(diameter * scaling**step for step in range(steps)), lam]


def bounding_diameter(
    x: Tensor, y: Tensor, log_a: Tensor | None = None, log_b: Tensor | None = None
) -> Tensor:
    """Returns the Euclidean diagonal of the box that holds x and y, shape (...)."""
    # GeomLoss' default diameter, without points of weight zero. It depends on the points, private
    # ones included, and so does the length of a schedule from it.
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
    """Returns points (..., n, d) whose padding copies a real point: faster than filling it."""
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


def warm_start(problem: Problem, most_iterations: int) -> SinkhornState:
    """Returns the state after iterations at each value from the cost range to λ by halves."""
    # For λ far below the range it saves hundreds of iterations at fixed λ. Schedules are equally
    # long; one of `most_iterations` or more does not run: then potentials are zero.
    schedules = [epsilon_schedule(span, problem.lam, 0.5) for span in problem.cost_range.tolist()]
    each = min(_PER_VALUE, (most_iterations - 1) // len(schedules[0]))
    state = SinkhornState.begin(problem)
    if each == 0:
        return state
    softmin, f, g = SoftMinimum(problem), state.f, state.g
    for values in zip(*schedules, strict=True):
        alike = len(set(values)) == 1
        value = values[0] if alike else torch.tensor(values, dtype=g.dtype, device=g.device)
        for _ in range(each):
            f = softmin.rows(g, value)
            g = softmin.columns(f, value)
    state.update(f, g, each * len(schedules[0]))
    return state


def follow(softmin: SoftMinimum, schedules: list[list[float]]) -> Potentials:
    """Runs one schedule per problem, by eager code."""
    steps: Sequence[float | Tensor] = schedules[0]  # a step's value, or one per problem (B,)
    waiting = None
    if any(values != schedules[0] for values in schedules):
        # Shorter schedules wait at their first value until the longest has as many steps left.
        longest = max(len(values) for values in schedules)
        waits = [longest - len(values) for values in schedules]
        table = softmin.log_a.new_tensor(
            [[values[0]] * wait + values for wait, values in zip(waits, schedules, strict=True)]
        )
        steps, waiting = table.unbind(1), torch.tensor(waits, device=table.device)
    f = softmin.rows(torch.zeros_like(softmin.log_b), steps[0])
    g = softmin.columns(torch.zeros_like(softmin.log_a), steps[0])
    for step, value in enumerate(steps):
        f_new, g_new = softmin.rows(g, value), softmin.columns(f, value)
        f_new, g_new = f_new.add_(f).mul_(0.5), g_new.add_(g).mul_(0.5)
        if waiting is not None:
            late = (waiting > step).unsqueeze(-1)
            f_new, g_new = torch.where(late, f, f_new), torch.where(late, g, g_new)
        f, g = f_new, g_new
    return f, g, softmin.rows(g, softmin.lam), softmin.columns(f, softmin.lam)


def _compiled(problem: Problem, schedules: list[list[float]]) -> Potentials | None:
    """Runs one schedule per problem, by compiled code; None where the eager code must run."""
    # Every update is f ← w·softmin_ε(g) + (1 − w)·f, and the same for g: w = 1 for the first and
    # the last one, ½ between, and 0 while a problem waits for longer schedules of its batch.
    cost = problem.cost
    updates = max(len(values) for values in schedules) + 2
    seconds = updates * (_SECONDS_PER_UPDATE + _SECONDS_PER_PAIR * cost.numel())
    if min(cost.shape[1:]) < 2 or not _update.wanted(seconds):
        return None
    updates += -updates % _UPDATES
    rows = []
    for values in schedules:
        waiting = updates - len(values) - 2
        falling = [values[0]] * (waiting + 1) + values + [problem.lam]
        rows.append([falling, [0.0] * waiting + [1.0] + [0.5] * len(values) + [1.0]])
    # (2, calls, problems, updates in a call)
    table = torch.tensor(rows, dtype=cost.dtype, device=cost.device).transpose(0, 1)
    calls = table.unflatten(-1, (-1, _UPDATES)).movedim(2, 0)
    floor = cost.new_full((), -math.inf if problem.floor is None else problem.floor)
    cost = cost.contiguous()
    transposed = cost.transpose(-1, -2).contiguous()
    potentials: Potentials | None
    f, g = torch.zeros_like(problem.log_a), torch.zeros_like(problem.log_b)
    potentials = f, g, f, g
    weights = problem.log_a.contiguous(), problem.log_b.contiguous()
    for call in calls:
        # Clones, because the compiler distinguishes views of one tensor from those of another.
        lam, weight = call[0].clone(), call[1].clone()
        potentials = _update.run(cost, transposed, *weights, *potentials[2:], lam, weight, floor)
        if potentials is None:
            return None
    return potentials


@Kernel
def _update(
    cost: Tensor,
    transposed: Tensor,
    log_a: Tensor,
    log_b: Tensor,
    f: Tensor,
    g: Tensor,
    lam: Tensor,
    weight: Tensor,
    floor: Tensor,
) -> Potentials:
    f_before, g_before = f, g
    for value, part_weight in zip(lam.unbind(-1), weight.unbind(-1), strict=True):
        f_before, g_before = f, g
        column = value.unsqueeze(-1)
        part = part_weight.unsqueeze(-1)
        f = part * _softmin(cost, log_b + g_before / column, column, floor) + (1.0 - part) * f
        g = part * _softmin(transposed, log_a + f_before / column, column, floor) + (1.0 - part) * g
    return f_before, g_before, f, g


def _softmin(cost: Tensor, h: Tensor, lam: Tensor, floor: Tensor) -> Tensor:
    scores = h.unsqueeze(-2) - cost / lam.unsqueeze(-1)
    largest = scores.amax(-1, keepdim=True)
    total = torch.maximum(scores - largest, floor).exp().sum(-1)
    return -lam * (total.log() + largest.squeeze(-1))
