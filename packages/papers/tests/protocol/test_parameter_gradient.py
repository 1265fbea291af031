from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from fedsink_papers.parameter_gradient import request as parameters
from fedsink_papers.parameter_gradient.request import (
    ParameterReply,
    ParameterRequest,
    architecture_of,
)
from flwr.app import ConfigRecord, RecordDict

from fedsink.errors import ModelError
from fedsink.models import Generator, build
from fedsink.models.weights import flat_weights
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.packing import digest, pack, unpack

OPTIONS = {"latent_dim": 3, "hidden": [5], "output": "linear", "batch_norm": False}


def generator_of(dimension: int, classes: int) -> Generator:
    return build("mlp", (dimension,), classes, **OPTIONS)


@pytest.fixture
def request_(make_request: Callable[..., GradientRequest]) -> ParameterRequest:
    """The rows of `make_request`, and two others."""
    asked = make_request()
    generator = generator_of(asked.rows.shape[1], asked.objective.classes)
    return ParameterRequest(
        asked, architecture_of(generator), flat_weights(generator).detach(),
        torch.rand(len(asked.rows) + 2, 3), torch.zeros(2, dtype=torch.int64),
        torch.ones(2, asked.rows.shape[1]),
    )  # fmt: skip


def test_a_request_round_trips(request_: ParameterRequest) -> None:
    read = ParameterRequest.from_record(request_.to_record())
    read.check()
    assert read.architecture == request_.architecture
    for name in ("weights", "latents", "extra_labels", "extra_gradient"):
        assert torch.equal(getattr(read, name), getattr(request_, name))
    ours, theirs = read.gradient, request_.gradient
    assert (ours.plan, ours.objective, ours.view) == (theirs.plan, theirs.objective, theirs.view)
    assert torch.equal(ours.rows, theirs.rows)


def test_every_part_is_in_the_digest(request_: ParameterRequest) -> None:
    """All noise under one digest belongs to one message."""
    moved = [
        replace(request_, weights=request_.weights + 1),
        replace(request_, latents=request_.latents + 1),
        replace(request_, extra_labels=request_.extra_labels + 1),
        replace(request_, extra_gradient=request_.extra_gradient + 1),
        replace(request_, architecture={**request_.architecture, "name": "other"}),
        replace(request_, gradient=replace(request_.gradient, rows=request_.gradient.rows + 1)),
    ]
    digests = {digest("train.parameter_gradient", one.to_record()) for one in (request_, *moved)}
    assert len(digests) == 1 + len(moved)


def test_the_generator_is_the_one_that_was_described(request_: ParameterRequest) -> None:
    generator = request_.generator
    assert architecture_of(generator) == request_.architecture
    assert sum(p.numel() for p in generator.parameters()) == len(request_.weights)


def test_its_pullback_is_that_of_all_rows(request_: ParameterRequest) -> None:
    n, d = request_.gradient.rows.shape
    v = torch.arange(n * d, dtype=torch.float32).reshape(n, d)
    generator = generator_of(d, request_.gradient.objective.classes)
    labels = torch.cat([request_.gradient.row_labels, request_.extra_labels])
    points = generator(request_.latents, labels)
    points[:n].backward(v)
    expected = torch.cat([p.grad.flatten() for p in generator.parameters()])  # type: ignore[union-attr]
    assert request_.padded(v).shape == (n + 2, d)
    scale = 2.0 if request_.gradient.view["name"] == "pixel" and points.ndim > 2 else 1.0
    torch.testing.assert_close(request_.pullback()(request_.padded(v)), scale * expected)


def changed(request: ParameterRequest, **options: Any) -> dict[str, Any]:
    return {**request.architecture, "options": {**request.architecture["options"], **options}}


WRONG: list[tuple[Callable[[ParameterRequest], dict[str, Any]], str]] = [
    (lambda r: {"architecture": {**r.architecture, "name": "vae"}}, "'vae' is unknown"),
    (lambda r: {"architecture": changed(r, depth=3)}, "mlp has no option 'depth'"),
    (lambda r: {"architecture": changed(r, hidden="wide")}, "generator cannot be built"),
    (lambda r: {"architecture": changed(r, hidden=[-1])}, "generator cannot be built"),
    (lambda r: {"architecture": {}}, "generator cannot be built: 'name'"),
    (lambda r: {"architecture": {**r.architecture, "more": 1}}, "unknown entry 'more'"),
    (lambda r: {"architecture": changed(r, hidden=[6])}, "weights must be .* finite float32"),
    (lambda r: {"architecture": {**r.architecture, "classes": 7}}, "weights must be"),
    (lambda r: {"weights": r.weights[:-1]}, "weights must be .* finite float32"),
    (lambda r: {"weights": r.weights.double()}, "weights must be .*float64"),
    (lambda r: {"weights": r.weights * math.inf}, "weights must be .* finite float32"),
    (lambda r: {"weights": r.weights + 2.0**21}, "weights must be .* finite float32"),
    (lambda r: {"latents": r.latents[:1]}, "Latents must be at least"),
    (lambda r: {"latents": r.latents[:, :2]}, "Latents must be at least"),
    (lambda r: {"latents": r.latents * math.nan}, "Latents must be at least"),
    (lambda r: {"latents": r.latents + 2.0**21}, "Latents must be at least"),
    (lambda r: {"extra_labels": r.extra_labels[:1]}, "labels of the other rows must be 2 integ"),
    (lambda r: {"extra_labels": r.extra_labels.float()}, "labels of the other rows must be 2 int"),
    (lambda r: {"extra_labels": r.extra_labels - 1}, "labels of the other rows must be below"),
    (lambda r: {"extra_labels": r.extra_labels + 99}, "labels of the other rows must be below"),
    (lambda r: {"extra_gradient": r.extra_gradient[:1]}, "gradient of the other rows must be 2×"),
    (lambda r: {"extra_gradient": r.extra_gradient / 0}, "gradient of the other rows must be 2×"),
    (
        lambda r: {"extra_gradient": r.extra_gradient * 2.0**41},
        "gradient of the other rows must be",
    ),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_parts_that_do_not_fit_are_refused(
    request_: ParameterRequest, change: Callable[..., dict[str, Any]], message: str
) -> None:
    sent = ParameterRequest.from_record(replace(request_, **change(request_)).to_record())
    with pytest.raises(ValueError, match=message):
        sent.check()


def test_nothing_is_built_before_its_weights_are_counted(
    request_: ParameterRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a message of some kilobytes would ask for gigabytes."""

    def build(*arguments: object, **options: object) -> None:
        raise AssertionError("a generator was built")

    monkeypatch.setattr(parameters, "build", build)
    with pytest.raises(ValueError, match=r"weights must be .* finite float32"):
        replace(request_, architecture=changed(request_, hidden=[1_000_000_000])).check()
    with pytest.raises(AssertionError):
        replace(request_, architecture=changed(request_, latent_law="normal")).check()


def test_a_generator_for_other_records_is_refused(request_: ParameterRequest) -> None:
    asked = request_.gradient
    other = generator_of(asked.rows.shape[1] + 1, asked.objective.classes)
    wrong = replace(
        request_, architecture=architecture_of(other), weights=flat_weights(other).detach()
    )
    with pytest.raises(ValueError, match="are not those of the view"):
        wrong.check()
    more = generator_of(asked.rows.shape[1], asked.objective.classes + 1)
    wrong = replace(
        request_, architecture=architecture_of(more), weights=flat_weights(more).detach()
    )
    with pytest.raises(ValueError, match=r"The generator has .* classes, the request"):
        wrong.check()


@pytest.mark.parametrize("part", ["weights", "latents", "extra_labels", "extra_gradient", "rows"])
def test_a_message_that_lacks_a_part_is_malformed(request_: ParameterRequest, part: str) -> None:
    fields, arrays = unpack(request_.to_record())
    del arrays[part]
    with pytest.raises(ValueError, match=r"Malformed (parameter|gradient) request"):
        ParameterRequest.from_record(pack(fields, arrays))


@pytest.mark.parametrize("latents", [torch.tensor(1.0), torch.zeros(6), torch.zeros(6, 2, 1)])
def test_latents_are_a_matrix(request_: ParameterRequest, latents: torch.Tensor) -> None:
    """The policy's limit on their number is checked before anything else."""
    with pytest.raises(ValueError, match="Malformed parameter request: its latents are no matrix"):
        ParameterRequest.from_record(replace(request_, latents=latents).to_record())


@pytest.mark.parametrize("architecture", [None, 3, "mlp", [], [["name", "mlp"]]])
def test_an_architecture_is_a_table(request_: ParameterRequest, architecture: object) -> None:
    record: RecordDict = request_.to_record()
    fields = json.loads(str(record.config_records["fields"]["json"]))
    fields["architecture"] = architecture
    record["fields"] = ConfigRecord({"json": json.dumps(fields)})
    with pytest.raises(ValueError, match="Malformed parameter request"):
        ParameterRequest.from_record(record)


def test_a_generator_with_more_than_parameters_is_refused() -> None:
    generator = generator_of(4, 3)
    generator.register_buffer("running", torch.zeros(3))
    with pytest.raises(ModelError, match="generator=mlp has a state beside its parameters"):
        architecture_of(generator)


def test_a_reply_round_trips_and_others_are_refused() -> None:
    gradient = torch.arange(5.0)
    read = ParameterReply.from_record(ParameterReply(gradient).to_record())
    assert torch.equal(read.gradient, gradient)
    for arrays in ({}, {"gradient": torch.zeros(2, 3)}):
        with pytest.raises(ValueError, match="Malformed parameter reply"):
            ParameterReply.from_record(pack({}, arrays))
