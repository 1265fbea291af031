"""Central mode, client side: the clipped and noised gradient of the generated images."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from fedsink.clients.padded import PaddedBatch, padded_batch_gradient, padded_record_total
from fedsink.clients.shard import Shard
from fedsink.privacy import PoissonSampler, RecordClip, Stream
from fedsink.protocol import GradientRequest
from fedsink.transport import (
    append_labels,
    clipped_record_field,
    solver_named,
    transport_gradient,
)

log = logging.getLogger("fedsink.clients")


def client_gradient(
    request: GradientRequest, shard: Shard, stream: Callable[[str], Stream]
) -> Tensor:
    """One use of the Poisson-subsampled Gaussian mechanism at one client.

    Every record of the requested class enters the batch Y independently with probability q.
    With `clip=batch` (Cao et al. 2021, Alg. 1) the release is clip(G, Δ) + N(0, (2Δσ)² I) with
    G = ∂_X 2Ŵ_λ(X, Y) + the data-independent self gradient of the request. With `clip=record`
    it is Σ_j clip(g_j, Δ) + N(0, (σΔ)² I), where record j contributes
    g_j = (w_ij (x_i − y_j))_i with w_ij = softmax_i((f_i − c(x_i, y_j))/λ). A request that
    spreads the noise over n clients gets the n-th part of its variance (`NoiseShare`).

    Args:
        request: checked request; X and f are public.
        shard: the private records.
        stream: maps a purpose ("sample", "noise") to this round's keyed randomness.

    Returns:
        (n, D) float32.

    Guarantees:
        The result depends on private data only through the clipped sum that is noised.
        Its shape depends on the request alone.
        An empty batch is answered like any other.
        Whether it fails does not depend on the batch.
        It charges what its own plan's event says: one subsampled use for records of the
        requested class, none for any other.
        With a capacity, the operations after the draw depend on the request alone.

    Raises:
        ValueError: the rows do not live in the request's view of this data.
    """
    return request.own_plan.release(client_total(request, shard, stream("sample")), stream("noise"))


def client_total(request: GradientRequest, shard: Shard, sample: Stream) -> Tensor:
    """What `client_gradient` releases but for its noise, (n, D).

    Raises:
        ValueError: the rows do not live in the request's view of this data.
    """
    coordinates = shard.coordinates(request.view)
    refuse_other_view(request, coordinates)
    rows = request.rows.to(coordinates.device)
    if request.plan.capacity is not None:
        return _padded_total(request, request.plan.capacity, shard, rows, sample)
    return _total(request, shard, rows, sample)


def refuse_other_view(request: GradientRequest, coordinates: Tensor) -> None:
    """Raise ValueError unless the request's rows have as many coordinates as the records."""
    if coordinates.shape[1] != request.rows.shape[1]:
        raise ValueError(
            f"The rows have {request.rows.shape[1]} coordinates, the records in the request's "
            f"view {coordinates.shape[1]}."
        )


def _padded_total(
    request: GradientRequest, capacity: int, shard: Shard, rows: Tensor, stream: Stream
) -> Tensor:
    """What is released but for its noise, of a sample in `capacity` places."""
    batch = PaddedBatch.draw(request, capacity, shard, stream)
    clip = request.plan.clip
    if isinstance(clip, RecordClip):
        return padded_record_total(request, rows, batch)
    return clip.apply(padded_batch_gradient(request, rows, batch))


def _total(request: GradientRequest, shard: Shard, rows: Tensor, stream: Stream) -> Tensor:
    """What is released but for its noise, of a sample as large as it comes."""
    records, labels = sampled(request, shard, stream)
    if isinstance(request.plan.clip, RecordClip):
        return _record_total(request, rows, records, labels)
    return request.plan.clip.apply(batch_gradient(request, rows, records, labels))


def sampled(request: GradientRequest, shard: Shard, stream: Stream) -> tuple[Tensor, Tensor]:
    """The Poisson sample of the request's class: coordinates (b, D) and labels (b,)."""
    coordinates = shard.coordinates(request.view)
    candidates = shard.members(request.label)
    batch = candidates[PoissonSampler(request.plan.rate).draw(len(candidates), stream)]
    labels = shard.labels[batch]
    if request.objective.classes == 1:  # unconditional: every record is of the one class
        labels = torch.zeros_like(labels)
    return coordinates[batch], labels


def _record_total(
    request: GradientRequest, rows: Tensor, records: Tensor, labels: Tensor
) -> Tensor:
    """Σ_j clip(g_j, Δ): every record meets only the rows of its own class."""
    bound, lam = request.plan.clip.bound, request.objective.lam
    total = torch.zeros(rows.shape, dtype=torch.float64)
    for label in request.row_labels.unique():
        mine = request.row_labels == label
        total[mine] = clipped_record_field(
            rows[mine], records[labels == label], request.potentials[mine], lam, bound
        )
    return total


def batch_gradient(
    request: GradientRequest, rows: Tensor, records: Tensor, labels: Tensor
) -> Tensor:
    """∂_X 2Ŵ_λ(X, Y) plus the self gradient, before the clip."""
    if len(records) == 0:
        return request.self_gradient
    objective = request.objective
    try:
        if request.label is None and objective.label_weight > 0:
            rows = append_labels(
                rows, request.row_labels, objective.classes, objective.label_weight
            )
            records = append_labels(records, labels, objective.classes, objective.label_weight)
        gradient = transport_gradient(
            rows,
            records,
            objective.ground_cost,
            objective.lam,
            solver=solver_named(objective.solver),
        ).gradient
    except (ValueError, RuntimeError, ArithmeticError):
        # Costs beyond the range of floats or of λ. An error would tell the server that the batch
        # was not empty; the clip makes zero of a gradient that is not finite, and so does this.
        log.warning("a transport problem could not be solved; its gradient counts as zero")
        return torch.zeros_like(request.self_gradient)
    return 2.0 * gradient[:, : request.rows.shape[1]] + request.self_gradient
