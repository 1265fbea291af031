"""Central mode, client side: the clipped and noised gradient of the generator's weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedsink.clients.gradient import (
    client_batch_gradients,
    refuse_other_view,
)
from fedsink.clients.pool import Pool
from fedsink.clients.shard import Shard
from fedsink.models.pullback import Pullback
from fedsink.privacy import RecordClip, Stream
from fedsink.protocol.parameters import ParameterRequest
from fedsink.transport.record_clip import clipped_pullback


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
    """What `parameter_gradient` adds its noise to, (P,).

    Raises:
        ValueError: the rows do not live in the request's view of this data.
    """
    inner = request.gradient
    pool, samples = Pool([shard]), [sample]
    coordinates = pool.coordinates(inner.view)
    refuse_other_view(inner, coordinates)
    device, clip = coordinates.device, inner.plan.clip
    pull = request.pullback(device)
    if isinstance(clip, RecordClip):
        return _record_total(request, pool, samples, pull)
    inside = client_batch_gradients([inner], pool, slice(0, 1), samples)[0]
    whole = request.padded(inside)
    if request.extra_gradient.numel():
        whole[len(inside) :] = request.extra_gradient.to(whole)
    return clip.apply(pull(whole))


def _record_total(
    request: ParameterRequest, pool: Pool, samples: list[Stream], pull: Pullback
) -> Tensor:
    """Σ_j clip(Jᵀg_j, Δ), (P,) float64."""
    inner = request.gradient
    device = pool.coordinates(inner.view).device
    total = torch.zeros(len(request.weights), dtype=torch.float64, device=device)
    if inner.plan.capacity is None:  # one by one, so that an empty place would cost as much
        layouts = pool.draw([inner], slice(0, 1), samples).in_blocks()
    else:
        layouts = iter([pool.draw_at_most([inner], slice(0, 1), samples)])
    for places in layouts:
        batch = pool.batch(inner, places)
        total += clipped_pullback(
            inner.rows.to(device),
            batch.records[0],
            inner.potentials.to(device),
            inner.objective.lam,
            inner.plan.clip.bound,
            lambda gradient: pull(request.padded(gradient)),
            batch.meets(inner.row_labels.unsqueeze(0))[0],
        )
    return total
