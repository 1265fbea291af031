"""Central mode, client side: the clipped and noised gradient of the generated images.

The client's part of Algorithm 1 of Cao et al. 2021, in the paper's order:

1. sample Y: every record of the shard with probability q (`Pool.draw`, `Pool.draw_at_most`);
2. the cost c_m(X, Y), with labels appended where a round mixes classes (`append_labels`);
3. Sinkhorn's potentials of 2Ŵ_λ(X, Y), Definition 4.3, and their gradient at X, to which the
   data-independent self term of the request is added (`batch_gradients`);
4. clip to Δ (`BatchClip.clip_each`);
5. add Sσ·N(0, I), where S = 2Δ (`PrivacyPlan.release_each`).

`clip=record` replaces steps 2 to 4 by a sum of clipped contributions of records (`clipped_sums`),
whose sensitivity in step 5 is S = Δ.
A node and a cohort of a simulation run the same function of K clients, `client_totals`; a node is
K = 1.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

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
from fedsink.clients.owner.policy import Policy
from fedsink.clients.records.pool import Batch, PlaceLayout, Pool
from fedsink.clients.records.shard import Shard
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError
from fedsink.privacy import BatchClip, PrivacyPlan, RecordClip, Stream
from fedsink.privacy.adjacency import ADD_REMOVE
from fedsink.privacy.clips import Clip, ClipOfRecords
from fedsink.privacy.randomness.noise import Several, Streams
from fedsink.protocol.dp_sinkhorn import GradientRequest, Objective, unpack_requests
from fedsink.transport import (
    GroundCost,
    Solver,
    append_labels,
    batch_gradients,
    clipped_sums,
    fixed_solver,
)
from fedsink.transport.clipped_sums import single_contribution

if TYPE_CHECKING:
    from flwr.app import RecordDict

log = logging.getLogger("fedsink.clients")


class DPSinkhornAnswer(CentralAnswer, BatchedAnswer):
    """``train.dp_sinkhorn``: `client_gradient` of every round."""

    Request = GradientRequest
    name = GradientRequest.name
    limits: ClassVar = {"maximum_images": None}

    @classmethod
    def words(cls) -> tuple[str, ...]:
        """Returns the policy's word for the answer: the name of its mechanism."""
        return ("clipped-gaussian",)

    @classmethod
    def read(cls, record: RecordDict, policy: Policy | None) -> Self:
        """Returns the message's requests."""
        return cls(unpack_requests(record))

    def check_policy(self, policy: Policy) -> None:
        """Refuses too many images, and a library that would solve the node's problems, as well."""
        super().check_policy(policy)
        images = sum(len(request.rows) for request in self.requests)
        policy.check_limit("maximum_images", images, "images")
        for request in self.requests:
            request.objective.refuse_library()

    def check_data(self, data: DataSpec) -> None:
        """Refuses a view and a class list that are not the data's as well."""
        super().check_data(data)
        first = self.requests[0]
        check_view(first.view, first.rows.shape[1], data)
        for request in self.requests:
            if (request.view, request.rows.shape) != (first.view, first.rows.shape):
                raise ValueError("The rounds of one message have one view, and rows of one shape.")
            check_classes(request.objective.classes, data)

    def compute(self, task: Task) -> list[Tensor]:
        """Returns a gradient for each round, (n, D)."""
        return [
            client_gradient(request, task.shard, task.streams(request.round, index))
            for index, request in enumerate(self.requests)
        ]

    def fits(self, other: Self) -> bool:
        """Tells whether plan, objective, view, share and the rows' shapes are the same."""
        return len(self.requests) == len(other.requests) and alike(
            self.requests[0], other.requests[0]
        )

    computes_sums = True

    @classmethod
    def compute_each(cls, asked: Sequence[Asked], pool: Pool, *, summed: bool) -> Tensor:
        """Returns the gradients of all clients, (K, rounds, n, D), or of each sum."""
        released, places = [], [some.places for some in asked]
        for index in range(len(asked[0].answer.requests)):
            requests = [some.answer.requests[index] for some in asked]
            coins = Streams.joined([some.streams("sample", index) for some in asked])
            totals = client_totals(requests, pool, places, coins, summed=summed)
            released.append(released_each(requests[0], totals, asked, index, summed=summed))
        return torch.stack(released, dim=1)

    @classmethod
    def canaries(cls, plan: PrivacyPlan, records: int = 1) -> list[Neighbours]:
        """Returns records each of which moves every round by all of S, along its own axis.

        In round t they move two rows by v_t = (cos θ_t, sin θ_t), which differs from round to
        round: noise that is used twice cancels in a difference, and the record does not.

        - `clip=record`: the potentials weigh the rows by w ∝ v_t: from 0 to Δv_t.
        - `clip=batch`: a self gradient of −2Δv_t, and rows that pull more: from −Δv_t to +Δv_t.
        """
        clip = ClipOfRecords.expect(plan.clip)
        if plan.adjacency != ADD_REMOVE:
            raise ConfigError(f"train.{cls.name} has no canaries under adjacency={plan.adjacency}.")
        if records > 1 and not clip.per_record:
            raise ConfigError("Canaries of one run would share one clip=batch: use clip=record.")
        far, apart = 4.0 * clip.bound, torch.zeros(2, records)
        requests = []
        for number in range(plan.rounds):
            angle = torch.tensor((number + 0.5) / plan.rounds * math.pi / 2.0)
            v = torch.stack([angle.cos(), angle.sin()])
            request = GradientRequest(
                round=number + 1,
                label=None,
                plan=plan,
                objective=Objective(lam=1.0, classes=1, label_weight=0.0),
                view={"name": "pixel", "shape": [records]},
                rows=apart if clip.per_record else far * v.unsqueeze(1),
                row_labels=torch.zeros(2, dtype=torch.int64),
                potentials=v.log(),
                self_gradient=apart if clip.per_record else -2.0 * clip.bound * v.unsqueeze(1),
            )
            requests.append(request)
        canaries = -far * torch.eye(records) if clip.per_record else torch.zeros(1, 1)
        absent, present = (
            Shard(points, torch.zeros(len(points), dtype=torch.int64))
            for points in (canaries[:0], canaries)
        )
        return [Neighbours("one record", requests, absent, present)]


def alike(one: GradientRequest, two: GradientRequest) -> bool:
    """Tells whether plan, objective, view, share and the rows' shapes are the same."""
    return (
        one.rows.shape == two.rows.shape
        and (one.label is None) == (two.label is None)
        and (one.plan, one.objective, one.view, one.share, one.fixed_point)
        == (two.plan, two.objective, two.view, two.share, two.fixed_point)
    )


def client_gradient(
    request: GradientRequest, shard: Shard, stream: Callable[[str], Stream]
) -> Tensor:
    """Executes one round of the Poisson-subsampled Gaussian mechanism at one client.

    Every record of the requested class enters the batch Y independently with probability q.
    With `clip=batch` (Cao et al. 2021, Alg. 1) the release is clip(G, Δ) + N(0, (2Δσ)² I) with
    G = ∂_X 2Ŵ_λ(X, Y) + the data-independent self gradient of the request. With `clip=record`
    it is Σ_j clip(g_j, Δ) + N(0, (σΔ)² I), where record j contributes
    g_j = (w_ij (x_i − y_j))_i with w_ij = softmax_i((f_i − c(x_i, y_j))/λ); X and f are public.
    The release is (n, D) float32; a request that spreads the noise over several clients gets int64
    with a part of it (`IntegerGaussian`). `stream` maps a purpose ("sample", "noise") to this
    round's keyed randomness.

    Guarantees:
        The result depends on private data only through the clipped sum that is noised.
        Its shape depends only on the request.
        An empty batch is answered like any other.
        No failure depends on the batch.
        The charge is that of its plan's event: one subsampled use for records of the
        requested class, none for any other.
        With a capacity, the operations after the draw depend only on the request.
    """
    total = client_total(request, shard, stream("sample"))  # steps 1 to 4
    return request.release(request.plan.clip.vouch(total), stream("noise"))


def client_total(request: GradientRequest, shard: Shard, sample: Stream) -> Tensor:
    """Returns the total that `client_gradient` adds noise to, (n, D); raises like it."""
    return client_totals([request], Pool([shard]), [torch.zeros(1).long()], [sample])[0]


def client_totals(
    requests: Sequence[GradientRequest],
    pool: Pool,
    clients: Sequence[Tensor],
    coins: Several,
    *,
    summed: bool = False,
) -> Tensor:
    """Returns the totals of K clients that `client_gradient` adds noise to: steps 1 to 4.

    They are (K, n, D), float64 for `clip=record`, else float32; or one of all clients of each
    request where they are `summed`. Requests are checked, and have one plan, objective and view,
    and rows of one shape. `clients` are the numbers, in the pool, of those that each request asks,
    `coins` the stream of each client's sample.
    """
    first = requests[0]
    refuse_other_view(first, pool.coordinates(first.view))
    clip = ClipOfRecords.expect(first.plan.clip)
    if isinstance(clip, BatchClip):
        # Algorithm 1 as published: Y, Sinkhorn's gradient at X, and one clip of all of it to Δ.
        return _batch_totals(clip, requests, pool, clients, coins, summed)
    counts = torch.tensor([len(some) for some in clients])
    asked = torch.arange(len(requests)).repeat_interleave(counts)  # the request of each client
    # One clip a record: f comes with the request, so that no record moves another's weights.
    device = pool.device
    whose = torch.arange(len(requests)) if summed else asked  # the request of each total
    rows, potentials = (_stacked(requests, whose, name).to(device) for name in _PUBLIC)
    row_labels = _stacked(requests, whose, "row_labels")
    totals = torch.zeros(rows.shape, dtype=torch.float64, device=device)
    radius = pool.norm_bound(first.view)
    for of_class, places in _problems(requests, pool, clients, asked, coins, summed):  # sample Y
        own, into = of_class.to(device), places.clients.to(device).unsqueeze(-1)
        totals[into, own] = record_sums(  # weights, gradient and clip of each record
            first, rows[into, own], potentials[into, own],
            row_labels[places.clients][:, of_class], pool.batch(first, places), radius,
        )  # fmt: skip
    return totals


_PUBLIC = ("rows", "potentials")


def released_each(
    request: Any, totals: Tensor, asked: Sequence[Asked], index: int = 0, *, summed: bool
) -> Tensor:
    """Returns the totals of clients, or of sums of them, with their noise; see `compute_each`."""
    clip: Clip = request.plan.clip
    if not summed:
        noise = Streams.joined([some.streams("noise", index) for some in asked])
        released: Tensor = request.release_each(clip.vouch(totals), noise)
        return released
    sums = []
    for total, some in zip(totals, asked, strict=True):
        stream = None
        if some.noise_of:
            [stream] = replace(some, clients=some.clients[:1]).streams("noise", index).each()
        sums.append(request.release_sum(clip.vouch(total), stream, some.noise_of))
    return torch.stack(sums)


def refuse_other_view(request: GradientRequest, coordinates: Tensor) -> None:
    """Raises ValueError unless the request's rows have as many coordinates as the records."""
    if coordinates.shape[1] != request.rows.shape[1]:
        raise ValueError(
            f"The rows have {request.rows.shape[1]} coordinates, the records in the request's "
            f"view {coordinates.shape[1]}."
        )


def record_sums(
    request: GradientRequest,
    rows: Tensor,
    potentials: Tensor,
    row_labels: Tensor,
    batch: Batch,
    radius: float,
) -> Tensor:
    """Returns Σ_j clip(g_j, Δ) of each of K batches, (K, n, D) float64; see `clipped_sums`."""
    lam, clip, mask = request.objective.lam, request.plan.clip, batch.meets(row_labels)
    if clip.own:  # its transform wants the contributions one by one
        sums = []
        for x, f, records, allowed in zip(
            rows.double(), potentials.double(), batch.records.double(), mask, strict=True
        ):
            each = x.new_zeros(len(records), *x.shape)
            for j, y in enumerate(records):
                each[j] = single_contribution(x, y, f, lam, math.inf, allowed[:, j])
            sums.append(RecordClip.expect(clip).sum(each).total)
        return torch.stack(sums)
    return clipped_sums(
        rows,
        batch.records,
        potentials,
        lam,
        clip.bound,
        mask=mask,
        radius=radius,
    )


def _problems(
    requests: Sequence[GradientRequest],
    pool: Pool,
    clients: Sequence[Tensor],
    asked: Tensor,
    coins: Several,
    summed: bool,
) -> Iterator[tuple[Tensor, PlaceLayout]]:
    """Yields the numbers of rows, and the places of the records that may meet these rows.

    With a capacity all rows meet all places, whatever the classes of the records. Without one
    each sample takes the places it needs, each class apart where a request mixes classes. Summed
    samples of all clients of a request are one.
    """
    first = requests[0]
    everywhere = torch.arange(len(first.rows))
    if first.plan.capacity is not None:
        places = pool.draw_at_most(requests, clients, coins)
        if not summed:
            yield everywhere, places
            return
        for number in range(len(requests)):
            own = asked == number
            flat = (part[own].reshape(1, -1) for part in (places.indices, places.present))
            yield everywhere, PlaceLayout(torch.tensor([number]), *flat)
        return
    sample = pool.draw(requests, clients, coins)
    sample = sample.summed(asked, len(requests)) if summed else sample
    if first.label is not None or not _is_one(requests):
        for places in sample.in_buckets():
            yield everywhere, places
        return
    labels = pool.classes_of(first.objective.classes, sample)
    for label in first.row_labels.unique():
        of_class = torch.nonzero(first.row_labels == label).flatten()
        for places in sample.of(labels == label).in_buckets():
            yield of_class, places


def _batch_totals(
    clip: BatchClip,
    requests: Sequence[GradientRequest],
    pool: Pool,
    clients: Sequence[Tensor],
    coins: Several,
    summed: bool,
) -> Tensor:
    """Returns the clipped gradient of each client, or their sum for each request."""
    if not summed:
        return clip.clip_each(client_batch_gradients(requests, pool, clients, coins))
    # A client whose batch is empty has the self gradient: so many of them, and the others' rest.
    empty = clip.clip_each(torch.stack([r.self_gradient for r in requests]).to(pool.device))
    count = torch.tensor([len(some) for some in clients], device=pool.device)
    totals = empty.double() * count[:, None, None]
    for number, _, gradients in _batch_problems(requests, pool, clients, coins):
        totals[number] += (clip.clip_each(gradients) - empty[number]).double().sum(0)
    return totals


def client_batch_gradients(
    requests: Sequence[GradientRequest], pool: Pool, clients: Sequence[Tensor], coins: Several
) -> Tensor:
    """Returns ∂_X 2Ŵ_λ(X_k, Y_k) plus the self gradient of each client, unclipped, (K, n, D).

    A client whose batch is empty keeps the self gradient. With a capacity every client's problem
    has the same size and the same number of iterations, so that no duration tells its batch.
    """
    own = [
        request.self_gradient.expand(len(some), -1, -1)
        for request, some in zip(requests, clients, strict=True)
    ]
    all_of_them = torch.cat(own).to(pool.device)
    for _, whose, gradients in _batch_problems(requests, pool, clients, coins):
        all_of_them[whose.to(pool.device)] = gradients
    return all_of_them


def _batch_problems(
    requests: Sequence[GradientRequest], pool: Pool, clients: Sequence[Tensor], coins: Several
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yields the number of a request, some of its clients among all, and their gradients."""
    fixed = requests[0].plan.capacity is not None
    drawn: Any = (pool.draw_at_most if fixed else pool.draw)(requests, clients, coins)
    radius, start = pool.norm_bound(requests[0].view), 0
    for number, (request, some) in enumerate(zip(requests, clients, strict=True)):
        for layout in drawn.in_blocks(slice(start, start + len(some))):
            batch = pool.batch(request, layout)
            if fixed:
                gradients = gradients_at_fixed_work(request, batch, radius)
            else:
                gradients = _gradients_as_they_come(request, batch)
            yield number, start + layout.clients, gradients
        start += len(some)


def gradients_at_fixed_work(request: GradientRequest, batch: Batch, radius: float) -> Tensor:
    """Returns the gradients of one request's clients, with the same work whatever their batches."""
    try:
        solver = fixed_solver(request.objective.solver, **_public_bounds(request, radius))
        return _gradients(request, batch, request.objective.ground_cost, solver)
    except (ValueError, RuntimeError, ArithmeticError):
        # Bounds beyond the range of floats or of λ are public: every batch gets this result.
        log.warning("a transport problem is out of range; its gradient counts as zero")
        return _zeros(request, batch)


def _gradients_as_they_come(request: GradientRequest, batch: Batch) -> Tensor:
    """Returns the gradients of one request's clients, none of whose batches is empty."""
    try:
        return _gradients(request, batch, *request.objective.transport)
    except (ValueError, RuntimeError, ArithmeticError):
        # Costs beyond the range of floats or of λ. An error would tell the server that the batch
        # was not empty. So the gradient becomes zero, as in the clip for one that is not finite.
        if len(batch.records) == 1:
            log.warning("a transport problem could not be solved; its gradient counts as zero")
            return _zeros(request, batch)
    # Only some client's costs were; the others have their gradients.
    parts = zip(batch.records, batch.labels, batch.present, strict=True)
    alone = [Batch(y[has][None], labels[has][None], has[has][None]) for y, labels, has in parts]
    return torch.cat([_gradients_as_they_come(request, single) for single in alone])


def _gradients(request: GradientRequest, batch: Batch, cost: GroundCost, solver: Solver) -> Tensor:
    """Returns steps 2 and 3 for each batch: cost, potentials, gradient at X plus the self term."""
    objective, y = request.objective, batch.records
    x, own = request.rows.to(y.device), request.self_gradient.to(y.device)
    if weight := _label_weight(request):
        x = append_labels(x, request.row_labels.to(y.device), objective.classes, weight)
        y = append_labels(y, batch.labels, objective.classes, weight)
    return batch_gradients(x, y, own, batch.present, cost, objective.lam, solver)


def _zeros(request: GradientRequest, batch: Batch) -> Tensor:
    return batch.records.new_zeros(len(batch.records), *request.self_gradient.shape)


def _label_weight(request: GradientRequest) -> float:
    """Returns α_c where a batch mixes classes and labels enter the cost, else 0."""
    return request.objective.label_weight if request.label is None else 0.0


def _public_bounds(request: GradientRequest, radius: float) -> dict[str, float]:
    """Returns bounds on costs of rows with records in a ball of `radius`, and on any distance."""
    rows, objective, weight = request.rows, request.objective, _label_weight(request)
    row_norm = float(torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).amax())
    mixed = request.label is None
    distance = objective.diameter((row_norm + radius) / 2.0, labels=mixed)
    # ‖v‖₁ ≤ √D‖v‖₂ for the coordinates, and 2α_c for the labels.
    absolute = math.sqrt(rows.shape[1]) * (row_norm + radius) + 2.0 * weight
    squared = distance * distance + objective.m * absolute
    return {
        "largest_cost": absolute if objective.cost == "l1" else squared,
        "diameter": objective.diameter(max(row_norm, radius), labels=mixed),
    }


def _stacked(requests: Sequence[GradientRequest], whose: Tensor, name: str) -> Tensor:
    """Returns an array of the request `whose[k]` for each k, (len(whose), ...)."""
    if _is_one(requests):
        values: Tensor = getattr(requests[0], name)
        return values.expand(len(whose), *values.shape)
    return torch.stack([getattr(request, name) for request in requests])[whose]


def _is_one(requests: Sequence[GradientRequest]) -> bool:
    return all(request is requests[0] for request in requests)
