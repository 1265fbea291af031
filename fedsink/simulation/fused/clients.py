"""The clipped gradients of all clients at once, of samples in a fixed number of places."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedsink.errors import ConfigError
from fedsink.privacy import BatchClip, RecordClip
from fedsink.protocol import Objective
from fedsink.simulation.fused import transport
from fedsink.transport.problem import bounded
from fedsink.transport.record_clip import matmul_keeps_the_bound, reduced, sum_by_matmul


def record_totals(
    x: Tensor, y: Tensor, f: Tensor, mask: Tensor | None, lam: float, bound: float
) -> Tensor:
    """Σ_j clip(g_j, Δ) of each of K problems, (K, n, D) float64; see `oblivious_record_field`.

    The caller has asked `refuse_wide` first.

    Args:
        x: rows, (K, n, D).
        y: records in B places, (K, B, D).
        f: potentials of the rows, (K, n).
        mask: which rows a record may choose, (K, n, B) bool; None: all of them.
        lam: λ > 0, in units of cost.
        bound: Δ > 0.
    """
    x64, y64, f64 = (values.to(torch.float64) for values in (x, y, f))
    return sum_by_matmul(x64, y64, f64, lam, reduced(bound), mask)


def refuse_wide(clip: RecordClip, lam: float, radius: float, places: int, dimension: int) -> None:
    """Refuse a plan whose records may not be summed by matmul, whatever the rows.

    Args:
        clip: Δ.
        lam: λ.
        radius: public bound on the norms of rows and records.
        places: records in one sum, at most.
        dimension: D.

    Raises:
        ConfigError: rounding could exceed the clip's slack.
    """
    reach = torch.tensor([2.0 * radius * radius], dtype=torch.float64)
    # A centred potential is at most the largest cost, (2r)².
    potential = 2.0 * reach
    if not bool(
        matmul_keeps_the_bound(reach, potential, places, dimension, lam, reduced(clip.bound))
    ):
        raise ConfigError(
            f"With λ = {lam:g}, Δ = {clip.bound:g} and records of norm up to {radius:g} rounding "
            "could exceed a record's bound: use engine=local, which sums record by record."
        )


def batch_totals(
    x: Tensor,
    y: Tensor,
    own: Tensor,
    present: Tensor,
    objective: Objective,
    clip: BatchClip,
    radius: float,
) -> Tensor:
    """clip(∂_X 2Ŵ_λ(X, Y_k) + self gradient, Δ) of each client, (K, n, D).

    The annealed schedule begins at a public bound on distances, as in `clients.padded`.

    Args:
        x: rows, (K, n, D), with labels appended where records have them.
        y: records in B places, (K, B, D) likewise.
        own: self gradient at the rows, (K, n, D) without labels.
        present: which places hold a record, (K, B) bool.
        objective: the transport problem.
        clip: Δ.
        radius: public bound on the norms of rows and records, without labels.
    """
    counted = present | ~present.any(-1, keepdim=True)
    log_b = torch.where(counted, -counted.sum(-1, keepdim=True).to(y.dtype).log(), -math.inf)
    labels = math.sqrt(2.0) * objective.label_weight if x.shape[-1] > own.shape[-1] else 0.0
    diameter = math.hypot(2.0 * radius, labels)
    problem = bounded(
        transport.costs(x, y, objective.m), objective.lam, None, log_b, diameter * diameter
    )
    longest = transport.most_steps(diameter, objective.lam)
    starts = y.new_full((len(x),), diameter, dtype=torch.float64)
    plan = transport.annealed(problem, starts, longest).source_plan
    found = 2.0 * transport.cost_gradient(x, y, plan, objective.m)[..., : own.shape[-1]] + own
    gradients = torch.where(present.any(-1)[:, None, None], found, own)
    clipped: Tensor = clip.apply_each(gradients)
    return clipped
