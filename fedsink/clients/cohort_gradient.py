"""Central mode for many clients at once: their clipped gradients, before the noise."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsink.clients.gradient import batch_gradient, client_total, refuse_other_view
from fedsink.clients.pool import Pool, blocks, buckets
from fedsink.privacy import RecordClip, Stream
from fedsink.protocol import GradientRequest
from fedsink.transport import (
    append_labels,
    solver_named,
    transport_gradient,
)
from fedsink.transport.record_cohort import clipped_record_fields


def cohort_totals(
    request: GradientRequest, pool: Pool, part: slice, samples: Sequence[Stream]
) -> Tensor:
    """What `gradient.client_total` is for each client of a part of the pool, stacked.

    A sample of fixed capacity is there to be handled apart from all others, and is.

    Args:
        request: checked; the same for all clients.
        pool: the clients' records.
        part: which of the pool's clients.
        samples: the stream of each client's sample.

    Returns:
        (k, n, D), float64 for `clip=record`, else float32; equal up to rounding.

    Raises:
        ValueError: the rows do not live in the request's view of this data.
    """
    if request.plan.capacity is not None:
        shards = pool.shards[part]
        each = [client_total(request, s, stream) for s, stream in zip(shards, samples, strict=True)]
        return torch.stack(each)
    coordinates = pool.coordinates(request.view)
    refuse_other_view(request, coordinates)
    chosen, owners = pool.draw(request, part, samples)
    records, labels = coordinates[chosen], pool.labels[chosen]
    if request.objective.classes == 1:  # unconditional: every record is of the one class
        labels = torch.zeros_like(labels)
    if isinstance(request.plan.clip, RecordClip):
        return _record_totals(request, records, labels, owners, len(samples))
    gradients = _batch_gradients(request, records, labels, owners, len(samples))
    return request.plan.clip.apply_each(gradients)


def _record_totals(
    request: GradientRequest, records: Tensor, labels: Tensor, owners: Tensor, clients: int
) -> Tensor:
    """Σ_j clip(g_j, Δ) of each client: every record meets only the rows of its own class."""
    rows, bound, lam = request.rows, request.plan.clip.bound, request.objective.lam
    totals = torch.zeros((clients, *rows.shape), dtype=torch.float64)
    for label in request.row_labels.unique():
        mine = request.row_labels == label
        of_label = labels == label
        candidates = records[of_label]
        for whose, places, present in buckets(owners[of_label], clients):
            totals[whose.unsqueeze(-1), torch.nonzero(mine).T] = clipped_record_fields(
                rows[mine], candidates[places], request.potentials[mine], lam, bound,
                present=present,
            )  # fmt: skip
    return totals


def _batch_gradients(
    request: GradientRequest, records: Tensor, labels: Tensor, owners: Tensor, clients: int
) -> Tensor:
    """∂_X 2Ŵ_λ(X, Y_k) plus the self gradient, before the clip, (clients, n, D)."""
    objective, rows = request.objective, request.rows
    gradients = request.self_gradient.expand(clients, *rows.shape).clone()
    x, y = rows, records
    if request.label is None and objective.label_weight > 0:
        x = append_labels(x, request.row_labels, objective.classes, objective.label_weight)
        y = append_labels(y, labels, objective.classes, objective.label_weight)
    for whose, places, present in blocks(owners, clients):
        weights = -torch.log(present.sum(-1, keepdim=True).to(y.dtype))
        try:
            found = transport_gradient(
                x,
                y[places].masked_fill(~present.unsqueeze(-1), 0.0),
                objective.ground_cost,
                objective.lam,
                log_b=weights.expand(present.shape).masked_fill(~present, -torch.inf),
                solver=solver_named(objective.solver),
            ).gradient
        except (ValueError, RuntimeError, ArithmeticError):  # somebody's; the others have theirs
            for client, indices, real in zip(whose, places, present, strict=True):
                own = indices[real]
                gradients[client] = batch_gradient(request, rows, records[own], labels[own])
            continue
        gradients[whose] += 2.0 * found[..., : rows.shape[1]]
    return gradients
