from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from fedsink.clients.answers.dp_sinkhorn import (
    DPSinkhornAnswer,
    client_gradient,
    client_total,
    client_totals,
)
from fedsink.clients.node import Node
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.policy_file import read_policy
from fedsink.clients.records.pool import Pool
from fedsink.clients.records.shard import Shard
from fedsink.errors import ConfigError, ReleaseRefusedError
from fedsink.privacy import RecordClip, Stream
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.transport import L1, ConvergedSolver, Mixed, append_labels, transport_gradient
from fedsink.transport.backends import GeomlossSolver

from ...support.asking import gradient
from ...support.numbers import FINITE, HOSTILE, LAM, matrices
from ...support.streams import Silent, Streams, keyed
from ...support.tiny import shard_of

Make = Callable[..., GradientRequest]
CLIPS = ["batch", "record"]
FIXTURES_ARE_PURE = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)


def matches(noise: Tensor, std: float) -> float:
    """Kolmogorov-Smirnov p-value of N(0, std²)."""
    return float(stats.kstest(noise.flatten().numpy(), "norm", args=(0.0, std)).pvalue)


@pytest.mark.medium
@pytest.mark.parametrize("clip", CLIPS)
def test_noise_std_is_the_multiplier_times_the_clips_sensitivity(
    make_request: Make, silent: Streams, clip: str
) -> None:
    """Pitfall 2. Power: two thirds and three halves of the noise are both rejected."""
    rows = torch.randn(500, 8, generator=torch.Generator().manual_seed(1))
    request = make_request(clip=clip, rows=rows, sigma=1.7, bound=0.3, rate=0.5)
    shard = shard_of(size=8)

    def streams(purpose: str) -> Stream:  # the same batch, with and without noise
        return silent(purpose) if purpose == "sample" else Stream(b"key", purpose)

    noise = client_gradient(request, shard, streams) - client_gradient(request, shard, silent)
    std = 1.7 * {"batch": 2 * 0.3, "record": 0.3}[clip]
    assert matches(noise, std) > 1e-3
    assert matches(noise, std * 2 / 3) < 1e-9
    assert matches(noise, std * 3 / 2) < 1e-9


def drawn(shard: Shard, label: int | None, key: bytes, rate: float) -> Tensor:
    """The records of a class that enter the batch under a key: some of them, and not all."""
    own = torch.arange(len(shard)) if label is None else (shard.labels == label).nonzero().flatten()
    batch = own[Stream(key, "sample").uniform(len(own)) < rate]
    assert 0 < len(batch) < len(own)
    return batch


def naive_record_total(request: GradientRequest, records: Tensor, labels: Tensor) -> Tensor:
    """Σ_j clip(g_j, Δ), one record and one row at a time."""
    rows, f = request.rows.double(), request.potentials.double()
    bound, lam = request.plan.clip.bound, request.objective.lam
    total = torch.zeros_like(rows)
    for y, label in zip(records.double(), labels, strict=True):
        mine = (request.row_labels == label).nonzero().flatten()
        if len(mine) == 0:
            continue
        scores = torch.stack([(f[i] - (rows[i] - y).square().sum()) / lam for i in mine])
        weights = torch.exp(scores - scores.max())
        weights = weights / weights.sum()
        contribution = torch.stack([w * (rows[i] - y) for w, i in zip(weights, mine, strict=True)])
        norm = float(contribution.norm())
        total[mine] += contribution * min(1.0, bound / norm)
    return total


@pytest.mark.parametrize(("schedule", "label"), [("joint", None), ("class", 1)])
@pytest.mark.parametrize("bound", [0.2, 100.0])
def test_record_release_without_noise_is_the_naive_sum_over_the_batch(
    make_request: Make, silent: Streams, schedule: str, label: int | None, bound: float
) -> None:
    request = make_request(clip="record", schedule=schedule, label=label, bound=bound, rate=0.4)
    shard = shard_of()
    batch = drawn(shard, label, b"test", 0.4)
    assert len(batch) > 3
    expected = naive_record_total(request, shard.images[batch], shard.labels[batch])
    released = client_gradient(request, shard, silent)
    assert torch.allclose(released.double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("schedule", "label"), [("joint", None), ("class", 1)])
@pytest.mark.parametrize("capacity", [None, 5])
def test_a_clip_of_ones_own_gets_each_contribution(
    make_request: Make, silent: Streams, schedule: str, label: int | None, capacity: int | None
) -> None:
    """One that transforms nothing gives what fedsink's gives, and no gradients give nothing."""

    class Plain(RecordClip):
        name = "plain"

    class Doubled(Plain):
        name = "doubled"

        def transform(self, gradients: Tensor) -> Tensor:
            return 2.0 * gradients

    usual = make_request(clip="record", schedule=schedule, label=label, bound=0.2, rate=0.4)
    plan = replace(usual.plan, capacity=capacity, nominal_records=capacity and 100)

    def released(clip: RecordClip, shard: Shard) -> Tensor:
        return client_gradient(replace(usual, plan=replace(plan, clip=clip)), shard, silent)

    torch.testing.assert_close(
        released(Plain(0.2), shard_of()),
        released(RecordClip(0.2), shard_of()),
        rtol=1e-4,
        atol=1e-6,
    )
    torch.testing.assert_close(
        released(Doubled(0.4), shard_of()), 2 * released(RecordClip(0.2), shard_of()),
        rtol=1e-4, atol=1e-6,
    )  # fmt: skip
    assert not bool(released(Plain(0.2), shard_of(0)).any())


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_a_record_release_is_the_sum_of_those_of_each_record_alone(
    make_request: Make, silent: Streams, scale: float
) -> None:
    """Potentials and tether that looked at records would couple them, and pass by the clip."""
    request, shard = make_request(clip="record", bound=0.2), shard_of(9)
    rows = request.rows.clone()
    rows[0] *= scale  # a stray, for the second scale
    request = replace(request, rows=rows)
    alone = [
        client_gradient(request, Shard(shard.images[j : j + 1], shard.labels[j : j + 1]), silent)
        for j in range(9)
    ]
    assert all(0.0 < float(one.norm()) <= 0.2 for one in alone)
    whole = client_gradient(request, shard, silent)
    torch.testing.assert_close(whole, torch.stack(alone).sum(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("schedule", "label"), [("joint", None), ("class", 1)])
@pytest.mark.parametrize("bound", [0.2, 100.0])
def test_batch_release_without_noise_is_the_clipped_sinkhorn_gradient(
    make_request: Make, silent: Streams, schedule: str, label: int | None, bound: float
) -> None:
    request = make_request(
        schedule=schedule, label=label, bound=bound, rate=0.4, m=0.3, label_weight=1.5, lam=1.0
    )
    shard = shard_of()
    batch = drawn(shard, label, b"test", 0.4)
    rows, records = request.rows.double(), shard.images[batch].double()
    if label is None:
        rows = append_labels(rows, request.row_labels, 3, 1.5)
        records = append_labels(records, shard.labels[batch], 3, 1.5)
    exact = ConvergedSolver(max_iterations=20_000, tolerance=1e-9, domain="log")
    half = transport_gradient(rows, records, Mixed(0.3), 1.0, solver=exact).gradient[:, :4]
    full = 2.0 * half + request.self_gradient
    expected = full * min(1.0, bound / float(full.norm()))
    released = client_gradient(request, shard, silent).double()
    assert float((released - expected).norm() / expected.norm()) < 0.02
    assert float(full.norm()) > 0.2  # so the small bound does clip


def test_labels_keep_classes_apart_in_a_joint_batch(make_request: Make, silent: Streams) -> None:
    """With α_c = 15 a row's mass comes from records of the row's class."""
    request = make_request(
        bound=1e6, label_weight=15.0, row_labels=torch.tensor([0, 0, 1, 1, 2, 2])
    )
    before = client_gradient(request, shard_of(39), silent)
    far = shard_of(39)
    far.images[far.labels == 2] += 3.0
    moved = (client_gradient(request, far, silent) - before).norm(dim=1)
    assert float(moved[4:].min()) > 10 * float(moved[:4].max())


@pytest.mark.medium
@FIXTURES_ARE_PURE
@given(data=st.data())
def test_batch_release_without_noise_has_norm_at_most_the_bound_for_any_batch(
    make_request: Make, silent: Streams, data: st.DataObject
) -> None:
    request = make_request(bound=0.5, rows=data.draw(matrices(FINITE, 3)), lam=data.draw(LAM))
    records = data.draw(matrices(HOSTILE, data.draw(st.integers(0, 4))))
    labels = torch.zeros(len(records), dtype=torch.int64)
    assert float(client_gradient(request, Shard(records, labels), silent).norm()) <= 0.5


@pytest.mark.parametrize("n", [0, 1, 40])
def test_the_bound_holds_whatever_the_self_gradient(
    make_request: Make, silent: Streams, n: int
) -> None:
    """The self gradient is public, but whether it meets records is not."""
    request = make_request(bound=0.5)
    for scale in (1.0, 100.0, 1e6):
        request = replace(request, self_gradient=scale * request.self_gradient)
        assert float(client_gradient(request, shard_of(n), silent).norm()) <= 0.5


def test_the_batch_bound_of_two_deltas_is_reached(make_request: Make, silent: Streams) -> None:
    """A sensitivity of Δ would therefore be wrong for the batch clip."""
    rows = torch.zeros(1, 1)
    request = make_request(bound=0.5, rows=rows, row_labels=torch.zeros(1).long(), label=0)
    request = replace(request, self_gradient=torch.tensor([[-30.0]]))
    with_record = Shard(torch.tensor([[-40.0]]), torch.zeros(1).long())
    without = Shard(torch.zeros(0, 1), torch.zeros(0).long())
    difference = client_gradient(request, with_record, silent) - client_gradient(
        request, without, silent
    )
    assert float(difference.norm()) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.medium
@FIXTURES_ARE_PURE
@given(data=st.data(), clip=st.sampled_from(CLIPS))
def test_whether_it_fails_does_not_depend_on_the_batch(
    make_request: Make, silent: Streams, data: st.DataObject, clip: str
) -> None:
    """Pitfall 1: an error code that only comes with a record tells that the record was drawn."""
    request = make_request(
        clip=clip,
        rows=data.draw(matrices(FINITE, 3)),
        lam=data.draw(LAM),
        m=data.draw(st.sampled_from([0.0, 1.0, 2.0**20])),
        label_weight=data.draw(st.sampled_from([0.0, 15.0, 2.0**20])),
        solver=data.draw(st.sampled_from(["converged", "annealed"])),
    )
    for n in (0, 1, 3):
        records = data.draw(matrices(FINITE, n))
        released = client_gradient(request, Shard(records, torch.arange(n) % 3), silent)
        assert released.shape == (3, 4)
        assert bool(released.isfinite().all())


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("n", [0, 5])
def test_rows_outside_the_view_of_the_data_are_refused_for_any_shard(
    make_request: Make, silent: Streams, clip: str, n: int
) -> None:
    """Pitfall 1, as above."""
    request = make_request(clip=clip, rows=torch.zeros(6, 7))
    with pytest.raises(ValueError, match="view is for records of another shape than the data's"):
        client_gradient(request, shard_of(n), silent)
    request = replace(request, view={"name": "pixel", "shape": [4]})
    with pytest.raises(ValueError, match="rows have 7 coordinates, the records in the request's"):
        client_gradient(request, shard_of(n), silent)


@pytest.mark.parametrize("clip", CLIPS)
def test_an_empty_batch_is_answered_like_any_other(
    make_request: Make, silent: Streams, clip: str
) -> None:
    """Pitfall 4: q·n < 1 is normal."""
    request = make_request(clip=clip, rate=1e-9, bound=0.1)
    released = client_gradient(request, shard_of(), silent)
    expected = torch.zeros(6, 4) if clip == "record" else request.self_gradient
    expected = expected * min(1.0, 0.1 / max(1e-9, float(expected.norm())))
    assert torch.allclose(released, expected, rtol=1e-5)
    noised = client_gradient(request, shard_of(), keyed(b"k"))
    assert noised.shape == (6, 4)
    assert noised.dtype == torch.float32
    assert float(noised.std()) > 0.05


@pytest.mark.parametrize("clip", CLIPS)
def test_a_client_that_lacks_the_class_answers_with_noise_of_the_same_shape(
    make_request: Make, clip: str
) -> None:
    """Pitfall 4: the class schedule holds only if every client replies in every round."""
    request = make_request(clip=clip, schedule="class", label=2)
    shard = shard_of()
    lacking = Shard(shard.images[shard.labels != 2], shard.labels[shard.labels != 2])
    one = client_gradient(request, lacking, keyed(b"k"))
    other = client_gradient(request, shard, keyed(b"k"))
    assert (one.shape, one.dtype) == (other.shape, other.dtype) == ((6, 4), torch.float32)
    assert bool(one.isfinite().all())
    assert float(one.std()) > 0.2
    assert not torch.equal(one, other)


@pytest.mark.parametrize("clip", CLIPS)
def test_the_shape_depends_on_the_request_alone(make_request: Make, clip: str) -> None:
    """Pitfall 1: the published code generates as many rows as the batch has records."""
    request = make_request(clip=clip, rate=0.5)
    shapes = {client_gradient(request, shard_of(n), keyed(b"k")).shape for n in (0, 1, 7, 40, 300)}
    assert shapes == {(6, 4)}


def test_the_release_is_not_divided_by_the_batch(make_request: Make, silent: Streams) -> None:
    """Pitfall 1: twice the records give twice the sum, whatever the batch's size."""
    request = make_request(clip="record")
    once, shard = client_gradient(request, shard_of(), silent), shard_of()
    twice = Shard(shard.images.repeat(2, 1), shard.labels.repeat(2))
    assert torch.allclose(client_gradient(request, twice, silent), 2 * once, rtol=1e-5)


@pytest.mark.parametrize("clip", CLIPS)
def test_the_result_depends_on_private_data_only_through_the_batch(
    make_request: Make, clip: str
) -> None:
    """Records of other classes, and records that were not drawn, leave no trace."""
    request = make_request(clip=clip, schedule="class", label=1, rate=0.5)
    shard = shard_of()
    before = client_gradient(request, shard, keyed(b"k"))
    batch = drawn(shard, 1, b"k", 0.5)
    other = torch.ones(40, dtype=torch.bool)
    other[batch] = False
    changed = Shard(shard.images.clone(), shard.labels)
    changed.images[other] = math.nan
    assert torch.equal(client_gradient(request, changed, keyed(b"k")), before)
    changed.images[batch] += 1.0
    assert not torch.equal(client_gradient(request, changed, keyed(b"k")), before)


def counting(make_request: Make, rate: float, label: int) -> GradientRequest:
    return make_request(
        clip="record", schedule="class", label=label, rate=rate, bound=1.0,
        rows=torch.zeros(1, 4), row_labels=torch.full((1,), label),
    )  # fmt: skip


def counted(request: GradientRequest, n: int, key: bytes) -> int:
    """Number of n records that entered: each adds exactly Δ = 1 along the first axis."""
    shard = Shard(torch.tensor([50.0, 0.0, 0.0, 0.0]).repeat(n, 1), torch.arange(n) % 3)
    return round(-float(client_gradient(request, shard, lambda p: Silent(key, p))[0, 0]))


def test_it_charges_what_the_plans_event_says(make_request: Make) -> None:
    """Pitfall 3: rate, multiplier and uses of the event are those of the computation."""
    rate, rounds = 0.15, 60
    request = counting(make_request, rate, label=1)
    total = sum(counted(request, 300, b"%d" % i) for i in range(rounds))
    draws = 100 * rounds  # 100 records are of the class; the other 200 never enter

    def likely(q: float) -> bool:
        return bool(stats.binomtest(total, draws, q).pvalue > 1e-3)

    assert likely(rate)
    assert not likely(rate * 2 / 3)
    assert not likely(rate * 3 / 2)
    event = request.plan.event
    assert event.count == math.ceil(50 / 3) == request.plan.uses
    assert event.event.sampling_probability == rate
    assert event.event.event.noise_multiplier == 1.0
    assert request.plan.noise_std == 1.0 * request.plan.clip.sensitivity


def test_at_rate_one_every_record_of_the_class_enters(make_request: Make) -> None:
    """Pitfall 4: q = 1."""
    assert counted(counting(make_request, 1.0, label=0), 30, b"k") == 10


# The cost ‖x − y‖₁ by itself, on each path that computes a client's gradient

COST = {"cost": "l1", "label_weight": 2.0, "bound": 1e6}


def expected(request: GradientRequest, node: Node) -> Tensor:
    shard, objective = node.shard, request.objective
    records = shard.coordinates(request.view)
    x = append_labels(request.rows, request.row_labels, 3, objective.label_weight)
    y = append_labels(records, shard.labels, 3, objective.label_weight)
    gradient = transport_gradient(x, y, L1(), objective.lam).gradient
    return 2.0 * gradient[:, : request.rows.shape[1]] + request.self_gradient


def test_a_release_without_noise_is_the_gradient_of_the_absolute_cost(
    settings: NodeSettings, make_request: Make, silent: Callable[[str], Stream]
) -> None:
    request, node = make_request(**COST), Node(settings, 0)
    released = client_gradient(request, node.shard, silent)
    torch.testing.assert_close(released, expected(request, node), rtol=1e-4, atol=1e-4)
    mixed = make_request(**{**COST, "cost": "mixed", "m": 1.0})
    assert float((client_gradient(mixed, node.shard, silent) - released).norm()) > 0.1


def test_cohort_and_fixed_capacity_agree_with_it(
    settings: NodeSettings, make_request: Make
) -> None:
    request = make_request(**COST)
    nodes = [Node(settings, client) for client in range(3)]
    samples = [Stream(b"k", "sample", client) for client in range(3)]
    pool = Pool([node.shard for node in nodes])
    together = client_totals([request], pool, [torch.arange(3)], samples)
    fixed = replace(request, plan=replace(request.plan, capacity=40, nominal_records=61))
    for node, total, sample in zip(nodes, together, samples, strict=True):
        alone = expected(request, node)
        torch.testing.assert_close(total, alone, rtol=1e-3, atol=1e-3)
        padded = client_total(fixed, node.shard, sample)
        assert float((padded - alone).norm() / alone.norm()) < 0.02


# A node solves problems with fedsink's code: libraries are for simulations


@pytest.mark.parametrize("backend", ["geomloss", "keops"])
def test_a_real_node_refuses_a_library_before_anything_is_charged_or_read(
    policy_file: Callable[..., Path],
    make_request: Make,
    install_source: Callable[..., None],
    backend: str,
) -> None:
    install_source(lambda spec, split: pytest.fail("the data were read"))
    node = Node(NodeSettings.from_policy(read_policy(policy_file()), clients=2), 0)
    answer = DPSinkhornAnswer([make_request(solver="annealed", backend=backend)])
    message = f"wants backend={backend}, and a real node solves its problems only by native"
    for ask in (node.reply, node.admit):
        with pytest.raises(ReleaseRefusedError, match=message):
            ask(answer, b"digest")
    assert node.settings.ledger is not None
    assert not node.settings.ledger.exists()


def test_a_simulated_node_computes_by_the_library(
    settings: NodeSettings, make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, calls = make_request(solver="annealed", sigma=1e-3), []
    native = gradient(Node(settings, 0), request, b"digest")
    solve = GeomlossSolver.__call__
    monkeypatch.setattr(
        GeomlossSolver, "__call__", lambda *a, **k: calls.append(1) or solve(*a, **k)
    )
    asked = replace(request, objective=replace(request.objective, backend="geomloss"))
    reply = gradient(Node(settings, 0), asked, b"digest")
    assert calls == [1]
    torch.testing.assert_close(reply, native, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip": "record"}, "backend=geomloss belongs to clip=batch"),
        ({"capacity": 9}, "backend=geomloss has no fixed work"),
    ],
)
def test_a_request_names_no_library_where_none_would_solve_anything(
    make_request: Make, options: dict[str, object], message: str
) -> None:
    capacity = options.get("capacity")
    clip = options.get("clip", "batch")
    request = make_request(solver="annealed", backend="geomloss", clip=clip)
    request = replace(request, plan=replace(request.plan, capacity=capacity))
    with pytest.raises(ConfigError, match=message):
        request.check()


def test_a_request_says_which_backend(make_request: Make) -> None:
    request = make_request(solver="annealed", backend="keops")
    assert GradientRequest.from_record(request.to_record()).objective.backend == "keops"
    with pytest.raises(ConfigError, match='Unknown backend "pot"'):
        replace(request.objective, backend="pot")
