"""Central mode, client side: the clipped and noised gradient of the generator's weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

from fedsink.clients.answers.base import (
    Asked,
    BatchedAnswer,
    Neighbours,
    Task,
    check_classes,
    check_view,
)
from fedsink.clients.answers.central import CentralAnswer
from fedsink.clients.answers.dp_sinkhorn import (
    DPSinkhornAnswer,
    alike,
    client_batch_gradients,
    refuse_other_view,
    released_each,
)
from fedsink.clients.owner.policy import Policy
from fedsink.clients.records.pool import Pool
from fedsink.clients.records.shard import Shard
from fedsink.data.spec import DataSpec
from fedsink.models.weights import Pullback
from fedsink.privacy import BatchClip, PrivacyPlan, Stream
from fedsink.privacy.clips import ClipOfRecords
from fedsink.privacy.randomness.noise import Several, Streams
from fedsink.transport.clipped_sums import clipped_pullback
from fedsink_papers.parameter_gradient.request import ParameterReply, ParameterRequest

if TYPE_CHECKING:
    from flwr.app import RecordDict


class ParameterGradientAnswer(CentralAnswer, BatchedAnswer):
    """``train.parameter_gradient``: `parameter_gradient` of one round.

    Guarantees:
        Under a policy no generator is imported or built that the policy does not allow.
    """

    name = ParameterRequest.name
    limits: ClassVar = {"maximum_images": None, "maximum_parameters": 10_000_000}

    def __init__(self, requests: Sequence[ParameterRequest]) -> None:
        [self.request] = requests
        super().__init__([self.request.gradient])
        self.size = self.values = self.request.weights.numel()

    @classmethod
    def read(cls, record: RecordDict, policy: Policy | None) -> Self:
        """The message's one round; its generator is not looked up."""
        return cls([ParameterRequest.from_record(record)])

    def check_policy(self, policy: Policy) -> None:
        """Refuses many images or weights, libraries, and generators that are not allowed."""
        super().check_policy(policy)
        policy.check_limit("maximum_images", len(self.request.latents), "images")
        self.request.gradient.objective.refuse_library()
        policy.check_limit("maximum_parameters", self.request.weights.numel(), "weights")
        policy.check_generator(self.request.architecture.get("name"))

    def check_data(self, data: DataSpec) -> None:
        """Refuses a view, a class list and a generator that do not fit the data as well."""
        super().check_data(data)
        inner = self.request.gradient
        check_view(inner.view, inner.rows.shape[1], data)
        check_classes(inner.objective.classes, data)
        self.request.check()

    def compute(self, task: Task) -> list[Tensor]:
        """The gradient of the weights, (P,)."""
        streams = task.streams(self.request.gradient.round)
        return [parameter_gradient(self.request, task.shard, streams)]

    def record(self, reply: Mapping[str, Tensor]) -> RecordDict:
        """The gradient, and nothing else."""
        return ParameterReply(reply[self.parts[0]]).to_record()

    def fits(self, other: Self) -> bool:
        """Tells whether the requests at the rows fit together and have equally many weights."""
        return self.values == other.values and alike(self.request.gradient, other.request.gradient)

    computes_sums = True

    @classmethod
    def compute_each(cls, asked: Sequence[Asked], pool: Pool, *, summed: bool) -> Tensor:
        """The gradients of all clients, (K, 1, P), or of each sum."""
        requests, places = [some.answer.request for some in asked], [some.places for some in asked]
        coins = Streams.joined([some.streams("sample") for some in asked])
        totals = parameter_totals(requests, pool, places, coins)
        if summed:
            parts = totals.split([len(some) for some in places])
            totals = torch.stack([part.sum(0, dtype=torch.float64) for part in parts])
        inner = requests[0].gradient
        return released_each(inner, totals, asked, summed=summed).unsqueeze(1)

    @classmethod
    def canaries(cls, plan: PrivacyPlan, records: int = 1) -> list[Neighbours]:
        """The record of ``train.dp_sinkhorn``, at a generator of points with four weights of 1.

        All of them count a row, two with its latent, which is another in every round.
        """
        cls.refuse_one_run(records)
        options = {"latent_dim": 1, "hidden": [1], "batch_norm": False, "output": "linear"}
        architecture = {"name": "mlp", "shape": [1], "classes": 1, "options": options}
        [pair] = DPSinkhornAnswer.canaries(plan)
        requests = [
            ParameterRequest(
                request, architecture, torch.ones(4), torch.full((2, 1), float(request.round))
            )
            for request in pair.requests
        ]
        return [pair._replace(requests=requests)]


def parameter_gradient(
    request: ParameterRequest, shard: Shard, stream: Callable[[str], Stream]
) -> Tensor:
    """Executes one round of the Poisson-subsampled Gaussian mechanism, at θ instead of X.

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
        (P,) float32; int64 where the noise is shared.

    Guarantees:
        - Any two shards' totals before the noise differ by at most the clip's sensitivity,
          whatever weights, latents and rows the server sends.
        - Its shape depends only on the request.
        - An empty batch is answered like any other.
        - Every coordinate gets independent noise of the standard deviation of the request's plan.
        - With a capacity, the operations after the draw depend only on the request.

    Raises:
        ValueError: the rows do not live in the request's view of this data.
    """
    total = parameter_total(request, shard, stream("sample"))
    return request.gradient.release(request.gradient.plan.clip.vouch(total), stream("noise"))


def parameter_total(request: ParameterRequest, shard: Shard, sample: Stream) -> Tensor:
    """Returns the total that `parameter_gradient` adds noise to, (P,); see `parameter_totals`."""
    return parameter_totals([request], Pool([shard]), [torch.zeros(1).long()], [sample])[0]


def parameter_totals(
    requests: Sequence[ParameterRequest], pool: Pool, clients: Sequence[Tensor], coins: Several
) -> Tensor:
    """Returns the totals of K clients that `parameter_gradient` adds noise to.

    Clients that share a request share the generator's forward pass.

    Args:
        requests: checked, as for `client_totals`; of one size.
        pool: the clients' records.
        clients: numbers, in the pool, of the clients that each request asks.
        coins: the stream of each client's sample.

    Returns:
        (K, P), float64 for `clip=record`, else float32.

    Raises:
        ValueError: the rows do not live in the request's view of this data.
    """
    inner = [request.gradient for request in requests]
    refuse_other_view(inner[0], pool.coordinates(inner[0].view))
    clip = ClipOfRecords.expect(inner[0].plan.clip)
    pulls = {id(r): r.pullback(pool.device) for r in {id(r): r for r in requests}.values()}
    each = [(r, k) for r, some in zip(requests, clients, strict=True) for k in some]
    if isinstance(clip, BatchClip):
        inside = client_batch_gradients(inner, pool, clients, coins)
        totals = [
            _batch_total(request, rows, clip, pulls[id(request)])
            for (request, _), rows in zip(each, inside, strict=True)
        ]
    else:
        streams = coins.each() if isinstance(coins, Streams) else coins
        totals = [
            _record_total(request, pool, client, [stream], pulls[id(request)])
            for (request, client), stream in zip(each, streams, strict=True)
        ]
    return torch.stack(totals)


def _batch_total(
    request: ParameterRequest, inside: Tensor, clip: BatchClip, pull: Pullback
) -> Tensor:
    """clip(JᵀG, Δ), (P,)."""
    whole = request.padded(inside)
    if request.extra_gradient.numel():
        whole[len(inside) :] = request.extra_gradient.to(whole)
    return clip.apply(pull(whole))


def _record_total(
    request: ParameterRequest, pool: Pool, client: Tensor, coins: list[Stream], pull: Pullback
) -> Tensor:
    """Σ_j clip(Jᵀg_j, Δ), (P,) float64."""
    inner = request.gradient
    device = pool.device
    total = torch.zeros(len(request.weights), dtype=torch.float64, device=device)
    if inner.plan.capacity is None:  # one by one, so that an empty place would cost as much
        layouts = pool.draw([inner], [client.view(1)], coins).in_blocks(slice(0, 1))
    else:
        layouts = iter([pool.draw_at_most([inner], [client.view(1)], coins)])
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
