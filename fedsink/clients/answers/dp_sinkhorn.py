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
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

from fedsink.clients.answers.base import BatchedAnswer, Neighbours, Task, check_classes, check_view
from fedsink.clients.answers.central import CentralAnswer
from fedsink.clients.owner.policy import Policy
from fedsink.clients.records.pool import Batch, PlaceLayout, Pool, Sample
from fedsink.clients.records.shard import Shard
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError
from fedsink.privacy import BatchClip, PrivacyPlan, RecordClip, Stream
from fedsink.privacy.adjacency import ADD_REMOVE
from fedsink.privacy.clips import ClipOfRecords
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

    @classmethod
    def compute_each(
        cls, answers: Sequence[Self], tasks: Sequence[Task], pool: Pool, clients: slice
    ) -> Tensor:
        """Returns the gradients of all clients, (K, rounds, n, D)."""
        released = []
        for index in range(len(answers[0].requests)):
            requests = [answer.requests[index] for answer in answers]
            samples, noise = (
                [t.stream(purpose, r.round, index) for t, r in zip(tasks, requests, strict=True)]
                for purpose in ("sample", "noise")
            )
            totals = client_totals(requests, pool, clients, samples)
            clipped = requests[0].plan.clip.vouch(totals)
            released.append(requests[0].release_each(clipped, noise))
        return torch.stack(released, dim=1)

    @property
    def computes_sums(self) -> bool:  # type: ignore[override]
        """True for a record clip with shared noise: the total over clients is one clipped sum."""
        return self.plan.clip.per_record and self.requests[0].fixed_point is not None

    def compute_sum(
        self, tasks: Sequence[Task], pool: Pool, clients: slice, noise_of: int
    ) -> Tensor:
        """Returns the sum of a block's gradients of every round, (rounds, n, D)."""
        sums = []
        for index, request in enumerate(self.requests):
            samples = [task.stream("sample", request.round, index) for task in tasks]
            total = client_totals([request] * len(tasks), pool, clients, samples, pooled=True)
            noise = tasks[0].stream("noise", request.round, index)
            sums.append(request.release_sum(request.plan.clip.vouch(total), noise, noise_of))
        return torch.stack(sums)

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
    return client_totals([request], Pool([shard]), slice(0, 1), [sample])[0]


def client_totals(
    requests: Sequence[GradientRequest],
    pool: Pool,
    part: slice,
    samples: Sequence[Stream],
    *,
    pooled: bool = False,
) -> Tensor:
    """Returns the totals of K clients that `client_gradient` adds noise to: steps 1 to 4.

    They are (K, n, D), float64 for `clip=record`, else float32; or (1, n, D) where all clients are
    `pooled`, that is added up, which share one request of `clip=record`. Requests are checked, and
    have one plan, objective and view, and rows of one shape. `part` are the clients' places among
    the pool's, `samples` the stream of each client's sample.
    """
    first = requests[0]
    refuse_other_view(first, pool.coordinates(first.view))
    clip = ClipOfRecords.expect(first.plan.clip)
    if isinstance(clip, BatchClip):
        # Algorithm 1 as published: Y, Sinkhorn's gradient at X, and one clip of all of it to Δ.
        return clip.clip_each(client_batch_gradients(requests, pool, part, samples))
    # One clip a record: f comes with the request, so that no record moves another's weights.
    problems = _problems(requests, pool, part, samples, pooled)
    requests = requests[:1] if pooled else requests
    device = pool.coordinates(first.view).device
    rows, potentials = (_stacked(requests, name, device) for name in ("rows", "potentials"))
    row_labels = _stacked(requests, "row_labels", torch.device("cpu"))
    totals = torch.zeros(rows.shape, dtype=torch.float64, device=device)
    for of_class, places in problems:  # sample Y with rate q
        own, whose = of_class.to(device), places.clients.to(device).unsqueeze(-1)
        totals[whose, own] = record_sums(  # weights, gradient and clip of each record
            first, rows[whose, own], potentials[whose, own],
            row_labels[places.clients][:, of_class], pool.batch(first, places),
            pool.norm_bound(first.view),
        )  # fmt: skip
    return totals


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
    part: slice,
    samples: Sequence[Stream],
    pooled: bool,
) -> Iterator[tuple[Tensor, PlaceLayout]]:
    """Yields the numbers of rows, and the places of the records that may meet these rows.

    With a capacity all rows meet all places, whatever the classes of the records. Without one
    each sample takes the places it needs, each class apart where a request mixes classes. Pooled
    samples of all clients are one.
    """
    first = requests[0]
    everywhere = torch.arange(len(first.rows))
    if first.plan.capacity is not None:
        places = pool.draw_at_most(requests, part, samples)
        yield everywhere, places.pooled() if pooled else places
        return
    sample = pool.draw(requests, part, samples)
    sample = sample.pooled() if pooled else sample
    if first.label is not None or not _is_one_request(requests):
        for places in sample.in_buckets():
            yield everywhere, places
        return
    labels = pool.classes_of(first.objective.classes, sample)
    for label in first.row_labels.unique():
        of_class = torch.nonzero(first.row_labels == label).flatten()
        for places in sample.of(labels == label).in_buckets():
            yield of_class, places


def client_batch_gradients(
    requests: Sequence[GradientRequest], pool: Pool, part: slice, samples: Sequence[Stream]
) -> Tensor:
    """Returns ∂_X 2Ŵ_λ(X_k, Y_k) plus the self gradient of each client, unclipped, (K, n, D).

    A client whose batch is empty keeps the self gradient. With a capacity every client's problem
    has the same size and the same number of iterations, so that no duration tells its batch.
    """
    first = requests[0]
    device = pool.coordinates(first.view).device
    gradients = _stacked(requests, "self_gradient", device).to(device, copy=True)
    if first.plan.capacity is not None:
        radius = pool.norm_bound(first.view)
        places = pool.draw_at_most(requests, part, samples)
        for request, clients in _by_request(requests):
            own = PlaceLayout(clients, places.indices[clients], places.present[clients])
            batch = pool.batch(request, own)
            gradients[clients.to(device)] = gradients_at_fixed_work(request, batch, radius)
        return gradients
    sample = pool.draw(requests, part, samples)
    for request, clients in _by_request(requests):
        place_of = torch.full((len(requests),), -1).index_put(
            (clients,), torch.arange(len(clients))
        )
        belongs = place_of[sample.owners] >= 0
        of_request = Sample(sample.indices[belongs], place_of[sample.owners[belongs]], len(clients))
        for places in of_request.in_blocks():
            whose = clients[places.clients].to(device)
            gradients[whose] = _gradients_as_they_come(request, pool.batch(request, places))
    return gradients


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


def _stacked(requests: Sequence[GradientRequest], name: str, device: torch.device) -> Tensor:
    """Returns one array of each client's request, (K, ...); a shared array is sent once."""
    if _is_one_request(requests):
        values: Tensor = getattr(requests[0], name).to(device)
        return values.expand(len(requests), *values.shape)
    return torch.stack([getattr(request, name) for request in requests]).to(device)


def _is_one_request(requests: Sequence[GradientRequest]) -> bool:
    return all(request is requests[0] for request in requests)


def _by_request(requests: Sequence[GradientRequest]) -> Iterator[tuple[GradientRequest, Tensor]]:
    """Yields each different request, and the clients that got it."""
    clients: dict[int, list[int]] = {}
    for client, request in enumerate(requests):
        clients.setdefault(id(request), []).append(client)
    for whose in clients.values():
        yield requests[whose[0]], torch.tensor(whose)
