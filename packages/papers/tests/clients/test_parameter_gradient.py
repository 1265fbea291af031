from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fedsink_papers.parameter_gradient.answer import (
    ParameterGradientAnswer,
    parameter_gradient,
    parameter_total,
)
from fedsink_papers.parameter_gradient.request import ParameterRequest, architecture_of
from flwr.app import Context, Message, RecordDict
from opacus import GradSampleModule
from torch import Tensor

from fedsink.clients.answers.dp_sinkhorn import DPSinkhornAnswer, client_batch_gradients
from fedsink.clients.app import client_app
from fedsink.clients.node import Node, open_node
from fedsink.clients.node_cohort import NodeCohort
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.ledger.ledger import Ledger
from fedsink.clients.owner.policy import PolicyRefusedError
from fedsink.clients.owner.policy_file import read_policy
from fedsink.clients.records.pool import Pool
from fedsink.clients.records.shard import Shard
from fedsink.data.partition import Dirichlet
from fedsink.errors import ReleaseRefusedError
from fedsink.models import Generator, build
from fedsink.models.weights import flat_weights
from fedsink.privacy import ReproducibleKey, Stream
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.exchange import Content
from fedsink.protocol.failure_codes import REFUSED
from fedsink.protocol.packing import digest
from tests.support.asking import weights_gradient
from tests.support.requests import GRID, shared
from tests.support.tiny import CLASSES, RECORDS, SIZE, shard_of

P = 64
Make = Callable[..., ParameterRequest]
Operations = Callable[[Callable[[], object]], list[tuple[Any, ...]]]


def generator_of(batch_norm: bool = False) -> Generator:
    return build(
        "mlp", (SIZE,), CLASSES, generator=torch.Generator().manual_seed(4),
        latent_dim=2, hidden=[6], output="linear", batch_norm=batch_norm,
    )  # fmt: skip


@pytest.fixture
def ask(make_request: Callable[..., GradientRequest]) -> Make:
    """A request for six rows and `extra` others; keywords are those of `make_request`."""

    def make(
        *, extra: int = 0, batch_norm: bool = False, plan: dict[str, Any] | None = None, **more: Any
    ) -> ParameterRequest:
        generator = generator_of(batch_norm)
        asked = make_request(**more)
        asked = replace(asked, plan=replace(asked.plan, **(plan or {})))
        random = torch.Generator().manual_seed(8)
        z = torch.rand(6 + extra, 2, generator=random)
        labels = torch.arange(extra) % CLASSES
        with torch.no_grad():
            rows = generator(z, torch.cat([asked.row_labels, labels]))[:6]
        request = ParameterRequest(
            replace(asked, rows=rows), architecture_of(generator), flat_weights(generator).detach(),
            z, labels, torch.randn(extra, SIZE, generator=random),
        )  # fmt: skip
        request.check()
        return request

    return make


def total(request: ParameterRequest, shard: Shard) -> Tensor:
    return parameter_total(request, shard, Stream(b"k", "sample"))


def record_fields(request: ParameterRequest, shard: Shard) -> Tensor:
    """The g_j written out, (m, n, D)."""
    asked = request.gradient
    fields = torch.zeros(len(shard), *asked.rows.shape)
    for j, (y, label) in enumerate(zip(shard.images, shard.labels, strict=True)):
        mine = asked.row_labels == label
        x = asked.rows[mine]
        scores = (asked.potentials[mine] - (x - y).square().sum(1)) / asked.objective.lam
        fields[j, mine] = torch.softmax(scores, 0).unsqueeze(1) * (x - y)
    return fields


def clipped(gradients: Tensor, bound: float) -> Tensor:
    norms = gradients.norm(dim=1)
    assert 0 < int((norms > bound).sum()) < len(gradients)
    return (gradients * (bound / norms).clamp(max=1.0).unsqueeze(1)).sum(0)


def test_per_record_gradients_are_those_of_opacus(ask: Make) -> None:
    """Record j is sample j of the loss Σ_i ⟨g_ij, x_i⟩: all n rows are generated for it."""
    request, shard = ask(clip="record", bound=3.0), shard_of(9)
    generator, fields = generator_of(), record_fields(request, shard)
    inputs = torch.cat(
        [request.latents, torch.eye(CLASSES)[request.gradient.row_labels]], dim=1
    ).expand(len(shard), -1, -1)
    module = GradSampleModule(generator.layers, loss_reduction="sum")
    (module(inputs) * fields).sum().backward()
    samples = torch.cat([p.grad_sample.flatten(1) for p in module.parameters()], dim=1)
    found = total(request, shard)
    torch.testing.assert_close(found.float(), clipped(samples, 3.0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_per_record_gradients_are_those_of_one_record_at_a_time(
    ask: Make, batch_norm: bool
) -> None:
    """Plain autograd; with BatchNorm the other rows of the batch count as well."""
    request = ask(clip="record", bound=3.0, batch_norm=batch_norm, extra=3)
    generator, shard, gradients = generator_of(batch_norm), shard_of(9), []
    for field in record_fields(request, shard):
        generator.zero_grad()
        labels = torch.cat([request.gradient.row_labels, request.extra_labels])
        (generator(request.latents, labels)[:6] * field).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in generator.parameters()]))  # type: ignore[union-attr]
    expected = clipped(torch.stack(gradients), 3.0)
    torch.testing.assert_close(total(request, shard).float(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("extra", [0, 3])
def test_the_batch_gradient_is_clipped_in_the_weights(ask: Make, extra: int) -> None:
    """Data-independent gradients of the rows and of the extra rows are inside the clip."""
    for bound, small in ((1e4, False), (0.5, True)):
        request, shard = ask(clip="batch", bound=bound, extra=extra), shard_of(9)
        asked, generator = request.gradient, generator_of()
        sample = [Stream(b"k", "sample")]
        inside = client_batch_gradients([asked], Pool([shard]), [torch.zeros(1).long()], sample)[0]
        labels = torch.cat([asked.row_labels, request.extra_labels])
        points = generator(request.latents, labels)
        points.backward(torch.cat([inside, request.extra_gradient]))
        whole = torch.cat([p.grad.flatten() for p in generator.parameters()])  # type: ignore[union-attr]
        assert (float(whole.norm()) > bound) == small
        expected = whole * min(1.0, bound / float(whole.norm()))
        torch.testing.assert_close(total(request, shard), expected, rtol=1e-4, atol=1e-4)


HOSTILE: list[dict[str, Tensor]] = [
    {},
    {"weights": torch.full((P,), 1e18)},
    {"weights": torch.full((P,), 3e38)},
    {"weights": torch.zeros(P)},
    {"weights": 1e8 * torch.randn(P, generator=torch.Generator().manual_seed(0))},
    {"latents": torch.full((6, 2), -3e38)},
    {"rows": torch.full((6, SIZE), 1e18)},
    {"rows": torch.full((6, SIZE), 3e38)},
    {"potentials": torch.tensor([0.0, math.nan, math.inf, -1e38, 1.0, -math.inf])},
    {"self_gradient": torch.full((6, SIZE), 3e38)},
]


def hostile(request: ParameterRequest, change: dict[str, Tensor]) -> ParameterRequest:
    mine = {key: value for key, value in change.items() if hasattr(request, key)}
    rest = {key: value for key, value in change.items() if key not in mine}
    request = replace(request, gradient=replace(request.gradient, **rest), **mine)
    return request


@pytest.mark.medium
@pytest.mark.parametrize("capacity", [None, 12])
@pytest.mark.parametrize("clip", ["record", "batch"])
@pytest.mark.parametrize("change", HOSTILE, ids=lambda change: next(iter(change), "honest"))
def test_totals_of_neighbours_differ_by_at_most_the_sensitivity(
    ask: Make, clip: str, change: dict[str, Tensor], capacity: int | None
) -> None:
    """Δ for a record more (sum of clipped records), 2Δ for any two shards (clipped batch)."""
    nominal = {"capacity": capacity, "nominal_records": None if capacity is None else 40}
    request = hostile(ask(clip=clip, bound=0.25, plan=nominal), change)
    sensitivity = request.gradient.plan.sensitivity
    largest = 0.0
    for scale in (1e-3, 1.0, 100.0):
        shard = shard_of(9, scale=scale)
        everybody = total(request, shard).double()
        assert bool(everybody.isfinite().all())
        others = [shard_of(0), shard_of(5, scale=scale)] if clip == "batch" else []
        keep = torch.arange(len(shard)) != 3
        others.append(Shard(shard.images[keep], shard.labels[keep]))
        for other in others:
            moved = float((everybody - total(request, other).double()).norm())
            assert moved <= sensitivity
            largest = max(largest, moved)
    if not change:
        assert largest > 0.5 * sensitivity * (1.0 if clip == "record" else 0.5)


@pytest.mark.medium
@pytest.mark.parametrize("share", [1, 4])
@pytest.mark.parametrize("clip", ["record", "batch"])
def test_every_coordinate_gets_independent_noise_of_the_plans_scale(
    ask: Make, clip: str, share: int
) -> None:
    """With keyed noise, so it cannot fail by chance: 400 releases of 64 coordinates."""
    request = ask(clip=clip, bound=0.5, sigma=1.5)
    request = replace(request, gradient=shared(request.gradient, share))
    shard, key = shard_of(2), ReproducibleKey(3)
    clean, noises = total(request, shard), []
    for number in range(400):

        def stream(purpose: str, number: int = number) -> Stream:
            return Stream(b"k", purpose) if purpose == "sample" else key.stream(
                purpose, client=0, round=number
            )  # fmt: skip

        released = parameter_gradient(request, shard, stream)
        dtype = torch.float32 if share == 1 else torch.int64
        assert (released.dtype, released.shape) == (dtype, clean.shape)
        values = released if share == 1 else GRID.decoded(released)
        noises.append(values.double() - clean)
    noise = torch.stack(noises)
    std = 1.5 * (0.5 if clip == "record" else 1.0) / math.sqrt(share)
    assert float(noise.std()) == pytest.approx(std, rel=0.02)
    spread = noise.std(0) / std
    assert 0.85 < float(spread.min()) < float(spread.max()) < 1.15
    correlation = torch.corrcoef(noise.T) - torch.eye(noise.shape[1])
    assert float(correlation.abs().max()) < 0.25


@pytest.mark.parametrize("clip", ["record", "batch"])
def test_an_empty_batch_is_answered_like_any_other(ask: Make, clip: str) -> None:
    request = ask(clip=clip, schedule="class", label=1, extra=2)
    for shard in (shard_of(0), shard_of(4, classes=1), shard_of(9)):
        released = parameter_gradient(request, shard, lambda purpose: Stream(b"k", purpose))
        assert released.shape == (P,)
        assert bool(released.isfinite().all())
    nothing = total(request, shard_of(4, classes=1))  # holds no record of class 1
    assert torch.equal(nothing, total(request, shard_of(0)))
    assert bool(nothing.any()) == (clip == "batch")  # the data-independent gradient
    assert not torch.equal(nothing, total(request, shard_of(9)))


@pytest.mark.medium
@pytest.mark.parametrize("clip", ["record", "batch"])
def test_with_a_capacity_the_operations_do_not_depend_on_the_sample(
    ask: Make, operations: Operations, clip: str
) -> None:
    fixed, free = (
        ask(clip=clip, rate=0.5, extra=2, plan=plan)
        for plan in ({"capacity": 5, "nominal_records": 40}, {})
    )
    shard = shard_of(40)

    def traces(request: ParameterRequest) -> list[list[tuple[Any, ...]]]:
        total(request, shard)  # computed once for all requests
        keys = [b"%d" % number for number in range(3)]
        return [
            operations(lambda k=k: parameter_total(request, shard, Stream(k, "sample")))
            for k in keys
        ]

    first, *others = traces(fixed)
    assert len(first) > 50
    assert all(trace == first for trace in others)
    first, *others = traces(free)
    assert any(trace != first for trace in others)  # so the test above can fail


@pytest.mark.parametrize("clip", ["record", "batch"])
def test_many_clients_at_once_are_answered_as_one_by_one(
    ask: Make, settings: NodeSettings, clip: str
) -> None:
    many = replace(settings, partition=Dirichlet(0.2), clients=11)
    requests = [ask(clip=clip, rate=0.5, extra=2)] * 2
    requests[1] = replace(requests[1], weights=requests[1].weights + 1.0)
    contents = [Content(lambda r=r: [r], r.to_record) for r in requests]
    clients = [range(0, 11, 2), range(1, 11, 2)]
    kind = "train.parameter_gradient"
    found = list(NodeCohort(many).answers(kind, contents, clients))
    assert sorted(k for _, answers in found for k in answers.clients) == list(range(11))
    for number, answers in found:
        request = requests[number]
        message = digest("train.parameter_gradient", request.to_record())
        for client, reply in zip(answers.clients, answers.replies, strict=True):
            expected = weights_gradient(Node(many, client), request, message)
            torch.testing.assert_close(reply[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("clip", ["record", "batch"])
def test_a_sum_is_that_of_all_clients_but_for_its_noise(
    ask: Make, settings: NodeSettings, clip: str
) -> None:
    many = replace(settings, partition=Dirichlet(0.2), clients=11)
    request = ask(clip=clip, rate=0.5, extra=2)
    inner = replace(request.gradient, plan=request.gradient.plan.with_noise(1e-12))
    content = Content.received(replace(request, gradient=inner).to_record())
    totals = []
    for each in (many, replace(many, pooled=True)):
        found = NodeCohort(each).answers("train.parameter_gradient", [content], [range(11)])
        totals.append(torch.cat([answers.replies for _, answers in found]).sum(0))
    torch.testing.assert_close(*totals, rtol=1e-4, atol=1e-4)


def test_a_node_answers_charges_and_answers_the_same_again(ask: Make, secret: NodeSettings) -> None:
    request, node = ask(clip="record", rate=0.5), Node(secret, 0)
    first = weights_gradient(node, request, b"1" * 32)
    assert torch.equal(weights_gradient(node, request, b"1" * 32), first)
    assert secret.ledger is not None
    Ledger(secret.ledger)  # it is on the disk
    other = replace(request, weights=request.weights + 1.0)
    with pytest.raises(ReleaseRefusedError):  # the round has been used with other weights
        weights_gradient(node, other, b"2" * 32)


def test_one_content_sent_as_two_messages_is_answered_once(ask: Make, secret: NodeSettings) -> None:
    """Two functions of the data under one noise and one charge would show their difference."""
    content = ask(clip="record", rate=0.5).to_record()
    context = Context(1, 1001, {"partition-id": 0, "num-partitions": 3}, RecordDict(), {})
    for kind, refused in (("train.parameter_gradient", False), ("train.dp_sinkhorn", True)):
        message = Message(content, dst_node_id=1001, message_type=kind)
        reply = client_app(secret)(message, context)
        assert reply.has_error() == refused
    assert reply.error.code == REFUSED


def test_a_node_refuses_what_its_policy_does_not_name(
    ask: Make, policy_file: Callable[..., Path]
) -> None:
    """Before the generator is built and before a record is read."""
    path = policy_file()
    request = ask(clip="record")
    node = open_node(NodeSettings.from_policy(read_policy(path)), 0)
    with pytest.raises(PolicyRefusedError, match=r"allow\.mechanisms: .* parameter_gradient"):
        weights_gradient(node, replace(request, architecture={"name": "no such"}), b"1" * 32)
    assert "shard" not in vars(node)
    allowed = path.read_text().replace('"clipped-gaussian"', '"parameter_gradient"')
    path.write_text(allowed)
    policy = read_policy(path)
    ParameterGradientAnswer([request]).check_policy(policy)
    with pytest.raises(PolicyRefusedError, match=r"allow\.mechanisms: .* clipped-gaussian"):
        DPSinkhornAnswer([request.gradient]).check_policy(policy)
    with pytest.raises(PolicyRefusedError, match=r"allow\.maximum_images: .* 13 images"):
        ParameterGradientAnswer([ask(clip="record", extra=7)]).check_policy(policy)
    with pytest.raises(PolicyRefusedError, match=r"minimum_noise_multiplier"):
        ParameterGradientAnswer([ask(clip="record", sigma=0.1)]).check_policy(policy)
    problem = replace(request.gradient.objective, solver="annealed", backend="geomloss")
    by_library = replace(request, gradient=replace(request.gradient, objective=problem))
    with pytest.raises(ReleaseRefusedError, match="backend=geomloss, and a real node solves its"):
        ParameterGradientAnswer([by_library]).check_policy(policy)
    path.write_text(f"{allowed}maximum_parameters = {P - 1}\n")
    with pytest.raises(PolicyRefusedError, match=rf"maximum_parameters: .* {P} weights"):
        ParameterGradientAnswer([request]).check_policy(read_policy(path))
    path.write_text(f"{allowed}maximum_parameters = {P}\n")
    node = Node(NodeSettings.from_policy(read_policy(path)), 0)
    assert weights_gradient(node, request, b"1" * 32).shape == (P,)


def test_a_policy_for_parameter_gradients_states_the_limits_of_central_mode(
    policy_file: Callable[..., Path],
) -> None:
    path = policy_file()
    text = path.read_text().replace('"clipped-gaussian", "laplace", "randomized-response"',
                                    '"parameter_gradient"')  # fmt: skip
    path.write_text(text)
    assert read_policy(path).allowed.mechanisms == ("parameter_gradient",)
    path.write_text(text.replace("maximum_images = 12", ""))
    with pytest.raises(ValueError, match="maximum_images is missing"):
        read_policy(path)


def test_a_node_refuses_a_request_that_does_not_fit(ask: Make, settings: NodeSettings) -> None:
    request, node = ask(clip="record"), Node(settings, 0)
    with pytest.raises(ValueError, match="weights must be 64 finite float32"):
        weights_gradient(node, replace(request, weights=request.weights * math.nan), b"1" * 32)
    fewer = replace(request.gradient.objective, classes=2)
    unfit = replace(request, gradient=replace(request.gradient, objective=fewer))
    with pytest.raises(ValueError, match="has 2 classes, the data 3"):
        weights_gradient(node, unfit, b"1" * 32)
    assert "shard" not in vars(node)
    assert len(weights_gradient(node, request, b"1" * 32)) == P
    assert RECORDS > len(node.shard) > 0
