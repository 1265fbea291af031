"""With a capacity, neither work nor reply tells how many records were sampled."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsink.clients.answers.dp_sinkhorn import (
    client_gradient,
    gradients_at_fixed_work,
    record_sums,
)
from fedsink.clients.records.pool import Batch, Pool
from fedsink.clients.records.shard import Shard
from fedsink.privacy import Stream, domain
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.requests import pack_replies
from fedsink.transport import AnnealedSolver, Mixed, append_labels, transport_gradient

from ..support.numbers import LAM, PUBLIC_AND_PRIVATE, matrices
from ..support.streams import Silent
from ..support.tiny import shard_of

Make = Callable[..., GradientRequest]
Operations = Callable[[Callable[[], object]], list[tuple[Any, ...]]]

RECORDS, CAPACITY = 40, 12
SIZES = {"empty": 0, "one": 1, "typical": 6, "full": CAPACITY, "overflowing": 30}
KINDS = [
    ("record", "joint", "converged"),
    ("record", "class", "converged"),
    ("batch", "joint", "converged"),
    ("batch", "class", "converged"),
    ("batch", "joint", "annealed"),
    ("batch", "class", "annealed"),
]


class Chosen(Silent):
    """The first `size` candidates are sampled at any rate up to 0.9, and no noise is added."""

    def __init__(self, size: int) -> None:
        super().__init__(b"test", "chosen")
        self.size = size

    def uniform(self, *shape: int) -> Tensor:
        values = super().uniform(*shape)
        sampled = torch.arange(values.numel()) < self.size
        return torch.where(sampled, 1e-9 * values, 0.9 + 0.1 * values)


def answer(request: GradientRequest, shard: Shard, size: int) -> Tensor:
    return client_gradient(request, shard, lambda _: Chosen(size))


def drawn(request: GradientRequest, shard: Shard, stream: Stream) -> Batch:
    """A sample in the plan's number of places."""
    pool = Pool([shard])
    return pool.batch(request, pool.draw_at_most([request], [torch.zeros(1).long()], [stream]))


@pytest.fixture
def ask(make_request: Make) -> Make:
    """A request with a capacity."""

    def make(
        clip: str, schedule: str, solver: str = "converged", capacity: int | None = CAPACITY,
        **changes: Any,
    ) -> GradientRequest:  # fmt: skip
        label = None if schedule == "joint" else 0
        request = make_request(
            clip=clip, schedule=schedule, solver=solver, label=label,
            **{"rate": 0.5, "bound": 1.0, "m": 0.3, "label_weight": 1.5, "lam": 1.0, **changes},
        )  # fmt: skip
        plan = dataclasses.replace(request.plan, capacity=capacity, nominal_records=RECORDS)
        return dataclasses.replace(request, plan=plan)

    return make


def traces(
    request: GradientRequest, operations: Operations, sizes: list[int]
) -> list[list[tuple[Any, ...]]]:
    """Operations of whole answers, the draw included, for samples of these sizes."""
    # All of one class, so that a class schedule's samples can be as large.
    shard = shard_of(classes=1)
    answer(request, shard, 0)  # the coordinates of all records are computed once
    return [operations(lambda size=size: answer(request, shard, size)) for size in sizes]


@pytest.mark.medium
@pytest.mark.parametrize(("clip", "schedule", "solver"), KINDS)
def test_the_operations_do_not_depend_on_the_sample(
    ask: Make, operations: Operations, clip: str, schedule: str, solver: str
) -> None:
    found = traces(ask(clip, schedule, solver), operations, list(SIZES.values()))
    assert len(found[0]) > 30
    assert all(trace == found[0] for trace in found)


@pytest.mark.parametrize(("clip", "schedule", "solver"), KINDS)
def test_without_a_capacity_they_do(
    ask: Make, operations: Operations, clip: str, schedule: str, solver: str
) -> None:
    """Shows that the test above can fail."""
    empty, one, typical = traces(ask(clip, schedule, solver, capacity=None), operations, [0, 1, 6])
    assert empty != one != typical != empty


@pytest.mark.medium
@pytest.mark.parametrize(("clip", "schedule", "solver"), KINDS)
def test_the_operations_on_a_drawn_batch_do_not_depend_on_the_shard(
    ask: Make, operations: Operations, clip: str, schedule: str, solver: str
) -> None:
    request = ask(clip, schedule, solver)
    seen = []
    for shard in (shard_of(0), shard_of(1), shard_of(7), shard_of(RECORDS), shard_of(400)):
        batch, radius = (
            drawn(request, shard, Stream(b"k", "sample")),
            shard.norm_bound(request.view),
        )

        def total(batch: Batch = batch, radius: float = radius) -> Tensor:
            if clip == "batch":
                return gradients_at_fixed_work(request, batch, radius)
            x, f, labels = (v[None] for v in (request.rows, request.potentials, request.row_labels))
            return record_sums(request, x, f, labels, batch, radius)

        seen.append(operations(total))
    assert all(trace == seen[0] for trace in seen)


HOSTILE: list[dict[str, Any]] = [
    {"rows": torch.full((6, 4), 3e38)},
    {"rows": torch.full((6, 4), 1e18)},
    {"rows": 1e6 * torch.randn(6, 4, generator=torch.Generator().manual_seed(0))},
    {"lam": domain.REGULARISATION.low},
    {"lam": 1e-6},
    {"lam": domain.REGULARISATION.high},
    {"m": domain.COST_WEIGHT.high},
    {"label_weight": domain.LABEL_WEIGHT.high},
    {"label_weight": 1e5},
    {"bound": domain.CLIP_BOUND.low},
    {"potentials": torch.full((6,), 1e30)},
    {"potentials": torch.tensor([0.0, math.nan, math.inf, -1e38, 1.0, -math.inf])},
]


@pytest.mark.medium
@pytest.mark.parametrize(("clip", "solver"), [(c, s) for c, _, s in KINDS[::2]])
@pytest.mark.parametrize("change", HOSTILE, ids=lambda change: next(iter(change)))
def test_hostile_requests_are_answered_alike_too(
    ask: Make, operations: Operations, clip: str, solver: str, change: dict[str, Any]
) -> None:
    change = dict(change)
    potentials = change.pop("potentials", None)
    request = ask(clip, "joint", solver, **change)
    if potentials is not None:
        request = dataclasses.replace(request, potentials=potentials)
    empty, typical, full = traces(request, operations, [0, 6, CAPACITY])
    assert empty == typical == full
    assert bool(answer(request, shard_of(), 6).isfinite().all())


@pytest.mark.medium
def test_a_hostile_view_is_answered_alike(ask: Make, operations: Operations) -> None:
    """Its weights differ as much as any may."""
    random = torch.Generator().manual_seed(0)
    shard = Shard(torch.rand(RECORDS, 1, 4, 4, generator=random), torch.arange(RECORDS) % 3)
    view = {"name": "dct", "shape": [1, 4, 4], "radius": 2, "frequency_weight": 2.0**-20}
    for clip in ("record", "batch"):
        request = dataclasses.replace(ask(clip, "joint"), view=view)
        answer(request, shard, 0)
        empty, full = (
            operations(lambda r=request, s=size: answer(r, shard, s)) for size in (0, CAPACITY)
        )
        assert empty == full
        assert bool(answer(request, shard, 6).isfinite().all())


@pytest.mark.parametrize(("clip", "schedule", "solver"), KINDS)
def test_replies_have_one_shape_type_and_size(
    ask: Make, clip: str, schedule: str, solver: str
) -> None:
    request = ask(clip, schedule, solver)
    replies = set()
    for n in (0, 5, RECORDS):
        for size in SIZES.values():
            reply = answer(request, shard_of(n), size)
            content = pack_replies([reply])
            sizes = tuple(
                len(array.data)
                for record in content.array_records.values()
                for array in record.values()
            )
            replies.add((tuple(reply.shape), reply.dtype, sizes, str(content.config_records)))
    assert len(replies) == 1


def medians(calls: list[Callable[[], object]], runs: int) -> list[float]:
    """CPU time of each call in seconds, measured in turns."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(runs):
        for call, taken in zip(calls, seconds, strict=True):
            start = time.process_time()
            call()
            taken.append(time.process_time() - start)
    return [statistics.median(taken) for taken in seconds]


@pytest.mark.medium
@pytest.mark.quick("0.02-record-converged", "1.0-batch-converged")
@pytest.mark.parametrize(("clip", "solver"), [(c, s) for c, _, s in KINDS[::2]])
@pytest.mark.parametrize("lam", [1.0, 0.02])
def test_the_time_does_not_depend_on_the_sample(
    ask: Make, clip: str, solver: str, lam: float
) -> None:
    """Also at a λ at which most exponentials underflow; underflow takes many times longer."""
    rows = torch.randn(20, 64, generator=torch.Generator().manual_seed(1))
    request = ask(clip, "joint", solver, rows=rows, capacity=60, lam=lam)
    shard = shard_of(200, size=64)
    calls = [lambda size=size: answer(request, shard, size) for size in (0, 20, 60, 150)]
    for runs in (40, 160):  # a busy machine gets a second, longer try
        taken = medians(calls, runs)
        if max(taken) < 1.5 * min(taken):
            break
    else:
        pytest.fail(f"the times of an empty to an overflowing sample are {taken}")
    if clip == "batch":  # without a capacity an empty sample is answered at once
        free = dataclasses.replace(request, plan=dataclasses.replace(request.plan, capacity=None))
        empty, full = medians([lambda: answer(free, shard, 0), lambda: answer(free, shard, 60)], 20)
        assert full > 2.0 * empty


@pytest.mark.parametrize("schedule", ["joint", "class"])
@pytest.mark.parametrize("bound", [0.2, 100.0])
@pytest.mark.parametrize("size", [0, 1, 6, CAPACITY])
def test_a_record_release_is_that_of_the_ordinary_path(
    ask: Make, schedule: str, bound: float, size: int
) -> None:
    """Also by the slow path: at radius 256 of four coordinates λ = 1e-6 rules out matmuls."""
    for lam in (1.0, 1e-6):
        padded = answer(ask("record", schedule, bound=bound, lam=lam), shard_of(), size)
        free = ask("record", schedule, bound=bound, lam=lam, capacity=None)
        torch.testing.assert_close(padded, answer(free, shard_of(), size), rtol=1e-5, atol=1e-6)
        assert (float(padded.norm()) > 0.1) == (size > 0)


@pytest.mark.parametrize("schedule", ["joint", "class"])
@pytest.mark.parametrize("size", [0, 1, 6, CAPACITY])
def test_a_converged_batch_release_is_that_of_the_ordinary_path(
    ask: Make, schedule: str, size: int
) -> None:
    padded = answer(ask("batch", schedule, bound=1e6), shard_of(), size)
    free = answer(ask("batch", schedule, bound=1e6, capacity=None), shard_of(), size)
    assert float((padded - free).norm() / free.norm()) < 0.02


@pytest.mark.parametrize("size", [1, 6, CAPACITY])
def test_an_annealed_batch_release_has_a_public_diameter(ask: Make, size: int) -> None:
    request, shard = ask("batch", "joint", "annealed", bound=1e6), shard_of()
    rows = append_labels(request.rows, request.row_labels, 3, 1.5)
    records = append_labels(shard.images[:size], shard.labels[:size], 3, 1.5)
    farthest = max(256.0 * (1 + 2**-10), float(request.rows.norm(dim=1).max()))
    solver = AnnealedSolver(diameter=math.hypot(2 * farthest, math.sqrt(2) * 1.5))
    half = transport_gradient(rows, records, Mixed(0.3), 1.0, solver=solver).gradient
    expected = 2 * half[:, :4] + request.self_gradient
    torch.testing.assert_close(answer(request, shard, size), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("clip", ["batch", "record"])
def test_an_overflowing_sample_is_cut_down_to_the_capacity(ask: Make, clip: str) -> None:
    """Records far along one axis contribute Δ each, and at most 12 of 30 do."""
    far = torch.zeros(RECORDS, 4)
    far[:, 0] = 50.0
    shard = Shard(far, torch.zeros(RECORDS).long())
    one = {"rows": torch.zeros(1, 4), "row_labels": torch.zeros(1).long()}
    for size in SIZES.values():
        request = ask("record", "class", **one)
        kept = -float(answer(request, shard, size)[0, 0])
        assert kept == pytest.approx(min(size, CAPACITY), rel=1e-4)
    batch = drawn(ask(clip, "class"), shard, Chosen(30))
    assert bool(batch.present.all())
    assert torch.equal(batch.records[0], far[:CAPACITY])


@pytest.mark.parametrize("capacity", [None, CAPACITY])
@pytest.mark.parametrize("clip", ["batch", "record"])
def test_an_unconditional_request_uses_every_record_as_one_class(
    ask: Make, clip: str, capacity: int | None
) -> None:
    one_class = {"classes": 1, "row_labels": torch.zeros(6).long(), "label_weight": 0.0}
    request, shard = ask(clip, "joint", capacity=capacity, **one_class), shard_of()
    merged = Shard(shard.images, torch.zeros_like(shard.labels))
    assert torch.equal(answer(request, shard, 6), answer(request, merged, 6))


@pytest.mark.medium
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=120, deadline=None
)
@given(
    data=st.data(), clip=st.sampled_from(["batch", "record"]), capacity=st.sampled_from([None, 5])
)
def test_removing_a_record_moves_the_release_by_at_most_the_sensitivity(
    ask: Make, data: st.DataObject, clip: str, capacity: int | None
) -> None:
    """Pitfall 2. λ, rows, potentials and records are hostile, or all but λ ordinary.

    Every record is sampled, and no sample overflows.
    """
    finite, entries = data.draw(PUBLIC_AND_PRIVATE)
    request = ask(
        clip,
        data.draw(st.sampled_from(["joint", "class"])),
        data.draw(st.sampled_from(["converged", "annealed"])),
        capacity=capacity,
        rows=data.draw(matrices(finite, 3)),
        lam=data.draw(LAM),
        bound=0.5,
    )
    potentials = torch.tensor(data.draw(st.lists(entries, min_size=3, max_size=3)))
    request = dataclasses.replace(request, potentials=potentials)
    records = data.draw(matrices(entries, data.draw(st.integers(1, 4))))
    labels = torch.zeros(len(records), dtype=torch.int64)
    kept = torch.arange(len(records)) != data.draw(st.integers(0, len(records) - 1))
    whole = answer(request, Shard(records, labels), 5).double()
    less = answer(request, Shard(records[kept], labels[kept]), 5).double()
    assert float((whole - less).norm()) <= request.plan.clip.sensitivity * (1 + 1e-5)
