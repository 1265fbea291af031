"""The annealed schedule in compiled code, two symmetric updates to a call."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedsink.transport.kernels.compiled import Kernel
from fedsink.transport.problem import Problem

# Updates in one call. More would save little (a call costs about as much as an update of 50×75
# pairs) and compile for longer.
_UPDATES = 5
# Nominal seconds of an eager update: launching its operations, and each pair's share.
_SECONDS_PER_UPDATE = 8e-5
_SECONDS_PER_PAIR = 8e-9

Potentials = tuple[Tensor, Tensor, Tensor, Tensor]


def run(problem: Problem, schedules: list[list[float]]) -> Potentials | None:
    """Return potentials before and after the last full update, as `annealed` defines it.

    None where the eager code is to run. Every update is f ← w·softmin_ε(g) + (1 − w)·f, and the
    same for g: w = 1 for the first and the last one, ½ between, and 0 while a problem waits for
    those of its batch with longer schedules.
    """
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
        # Clones, because the compiler tells views of one tensor from those of another.
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
    for of_step, share in zip(lam.unbind(-1), weight.unbind(-1), strict=True):
        f_before, g_before = f, g
        column = of_step.unsqueeze(-1)
        part = share.unsqueeze(-1)
        f = part * _softmin(cost, log_b + g_before / column, column, floor) + (1.0 - part) * f
        g = part * _softmin(transposed, log_a + f_before / column, column, floor) + (1.0 - part) * g
    return f_before, g_before, f, g


def _softmin(cost: Tensor, h: Tensor, lam: Tensor, floor: Tensor) -> Tensor:
    scores = h.unsqueeze(-2) - cost / lam.unsqueeze(-1)
    largest = scores.amax(-1, keepdim=True)
    total = torch.maximum(scores - largest, floor).exp().sum(-1)
    return -lam * (total.log() + largest.squeeze(-1))
