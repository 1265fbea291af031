"""Central mode, client side: the clipped and noised gradient of the generator's weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedsink.clients.gradient import batch_gradient, refuse_other_view, sampled
from fedsink.clients.padded import PaddedBatch, padded_batch_gradient
from fedsink.clients.shard import Shard
from fedsink.privacy import RecordClip, Stream
from fedsink.protocol import GradientRequest
from fedsink.protocol.parameters import ParameterRequest
from fedsink.transport.record_pullback import clipped_pullback


def parameter_gradient(
    request: ParameterRequest, shard: Shard, stream: Callable[[str], Stream]
) -> Tensor:
    """One use of the Poisson-subsampled Gaussian mechanism at one client, at θ instead of X.

    With J = ∂X/∂θ of the generator in the request, `clip=batch` releases
    clip(JᵀG, Δ) + N(0, (2Δσ)² I), where G = ∂_X 2Ŵ_λ(X, Y) + the data-independent gradients of
    the request (Cao et al. 2021, Alg. 1, clipped one step later). `clip=record` releases
    Σ_j clip(Jᵀg_j, Δ) + N(0, (σΔ)² I), the g_j as in `client_gradient`: DP-SGD (Abadi et al.
    2016) of the record-separable loss. Sampling, clips and noise are those of `client_gradient`,
    and so is the accounting; the noise lives in P instead of n·D coordinates.

    Args:
        request: checked request; generator, X and f are public.
        shard: the private records.
        stream: maps a purpose ("sample", "noise") to this round's keyed randomness.

    Returns:
        (P,) float32.

    Guarantees:
        - Any two shards' totals before the noise differ by at most the clip's sensitivity,
          whatever weights, latents and rows the server sends.
        - Its shape depends on the request alone.
        - An empty batch is answered like any other.
        - Every coordinate gets independent noise of the standard deviation of the request's plan.
        - With a capacity, the operations after the draw depend on the request alone.

    Raises:
        ValueError: the rows do not live in the request's view of this data.
    """
    total = parameter_total(request, shard, stream("sample"))
    return request.gradient.own_plan.release(total, stream("noise"))


def parameter_total(request: ParameterRequest, shard: Shard, sample: Stream) -> Tensor:
    """What `parameter_gradient` releases but for its noise, (P,).

    Raises:
        ValueError: the rows do not live in the request's view of this data.
    """
    asked = request.gradient
    coordinates = shard.coordinates(asked.view)
    refuse_other_view(asked, coordinates)
    rows, clip = asked.rows.to(coordinates.device), asked.plan.clip
    batch = _draw(asked, shard, sample)
    pull = request.pullback(coordinates.device)
    if isinstance(clip, RecordClip):
        return clipped_pullback(
            rows,
            batch.records,
            asked.potentials.to(rows.device),
            asked.objective.lam,
            clip.bound,
            lambda gradient: pull(request.padded(gradient)),
            batch.meets(asked.row_labels),
        )
    if asked.plan.capacity is None:
        inside = batch_gradient(asked, rows, batch.records, batch.labels)
    else:
        inside = padded_batch_gradient(asked, rows, batch)
    whole = request.padded(inside)
    if request.extra_gradient.numel():
        whole[len(rows) :] = request.extra_gradient.to(whole)
    return clip.apply(pull(whole))


def _draw(asked: GradientRequest, shard: Shard, sample: Stream) -> PaddedBatch:
    """The Poisson sample, in the plan's number of places or in as many as it takes."""
    if asked.plan.capacity is not None:
        return PaddedBatch.draw(asked, asked.plan.capacity, shard, sample)
    records, labels = sampled(asked, shard, sample)
    everywhere = torch.ones(len(labels), dtype=torch.bool, device=labels.device)
    return PaddedBatch(records, labels, everywhere, shard.norm_bound(asked.view))
