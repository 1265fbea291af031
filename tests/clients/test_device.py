"""A client on a GPU: every path there, with the replies of the CPU. See `support/stand_in.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
import torch
from fedsink_papers.parameter_gradient.request import ParameterRequest, architecture_of
from torch import Tensor

from fedsink.clients.node import Node, close_nodes
from fedsink.clients.node_cohort import NodeCohort
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.records import pool
from fedsink.data.maps import (
    DctDirection,
    L1Ball,
    L2Ball,
    NonNegativeDirection,
    PixelRange,
    PooledPower,
)
from fedsink.errors import ConfigError
from fedsink.models import build
from fedsink.models.weights import flat_weights
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.exchange import Content
from fedsink.protocol.privatize_once import LocalPlan, PrivatizeRequest

from ..support.asking import gradient, privatized, weights_gradient
from ..support.requests import pack_requests
from ..support.tiny import CLASSES, RECORDS, SIZE

Gpu = Callable[[], AbstractContextManager[Any]]
Make = Callable[..., GradientRequest]

CASES: dict[str, dict[str, Any]] = {
    "record, class by class": {"clip": "record", "label": 1},
    "record, all classes": {"clip": "record", "rate": 0.5},
    "record, capacity": {"clip": "record", "rate": 0.5, "capacity": 9},
    "record, class by class, capacity": {"clip": "record", "label": 1, "capacity": 9},
    "batch, as they come": {"rate": 0.5, "solver": "annealed"},
    "batch, converged": {"rate": 0.5, "lam": 5.0},
    "batch, class by class": {"label": 1, "solver": "annealed"},
    "batch, labels in the cost": {"rate": 0.5, "label_weight": 2.0, "solver": "annealed"},
    "batch, L1": {"rate": 0.5, "cost": "l1", "solver": "annealed"},
    "batch, capacity": {"rate": 0.5, "capacity": 9, "solver": "annealed", "m": 1.0},
    "batch, capacity, converged": {"rate": 0.5, "capacity": 9, "label_weight": 2.0},
}


def request_of(make: Make, case: dict[str, Any]) -> GradientRequest:
    options = dict(case)
    capacity = options.pop("capacity", None)
    if options.get("label") is not None:
        options["schedule"] = "class"
    asked = make(**options)
    plan = replace(asked.plan, capacity=capacity, nominal_records=capacity and RECORDS)
    return replace(asked, plan=plan)


def ask_cohort(settings: NodeSettings, request: GradientRequest, clients: Sequence[int]) -> Tensor:
    content = Content(lambda: [request], lambda: pack_requests([request]))
    ((_, answers),) = NodeCohort(settings).answers("train.dp_sinkhorn", [content], [clients])
    assert answers.failures == {}
    return answers.replies


def on_gpu(settings: NodeSettings) -> NodeSettings:
    close_nodes()
    return replace(settings, device="cuda")


@pytest.mark.medium
@pytest.mark.quick("record, *", "batch, capacity*")
@pytest.mark.parametrize("case", CASES)
def test_a_node_on_a_gpu_answers_what_it_answers_on_the_cpu(
    settings: NodeSettings, make_request: Make, gpu: Gpu, case: str
) -> None:
    request = request_of(make_request, CASES[case])
    expected = gradient(Node(settings, 0), request, b"")
    with gpu() as mode:
        node = Node(on_gpu(settings), 0)
        reply = gradient(node, request, b"")
        assert node.shard.images.device.type == node.shard.labels.device.type == "cuda"
        assert node.shard.coordinates(request.view).device.type == "cuda"
    assert mode.operations > 10
    assert (reply.device.type, type(reply)) == ("cpu", Tensor)
    assert torch.equal(reply, expected)


@pytest.mark.medium
@pytest.mark.parametrize(
    "case",
    ["record, all classes", "record, class by class, capacity", "batch, as they come",
     "batch, capacity"],
)  # fmt: skip
def test_a_cohort_on_a_gpu_answers_what_it_answers_on_the_cpu(
    settings: NodeSettings, make_request: Make, gpu: Gpu, case: str
) -> None:
    request = request_of(make_request, CASES[case])
    clients = [0] if request.label is not None else [0, 1, 2]
    expected = ask_cohort(settings, request, clients)
    with gpu() as mode:
        replies = ask_cohort(on_gpu(settings), request, clients)
    assert mode.operations > 10
    assert (replies.device.type, type(replies)) == ("cpu", Tensor)
    assert torch.equal(replies, expected)


@pytest.mark.medium
@pytest.mark.parametrize("case", ["record, capacity", "record, all classes", "batch, capacity"])
def test_gradients_of_weights_are_computed_on_the_gpu(
    settings: NodeSettings, make_request: Make, gpu: Gpu, case: str
) -> None:
    model = build(
        "mlp", (SIZE,), CLASSES, generator=torch.Generator().manual_seed(4),
        latent_dim=2, hidden=[6], output="linear",
    )  # fmt: skip
    request = ParameterRequest(
        request_of(make_request, CASES[case]), architecture_of(model),
        flat_weights(model).detach(), torch.rand(8, 2), torch.zeros(2, dtype=torch.int64),
        torch.zeros(2, SIZE),
    )  # fmt: skip
    with gpu() as mode:
        reply = weights_gradient(Node(on_gpu(settings), 0), request, b"")
    assert mode.operations > 10
    assert (reply.device.type, reply.shape) == ("cpu", request.weights.shape)
    assert bool(reply.isfinite().all())


SHAPE = (1, 4, 4)
PLANS = {
    "laplace": LocalPlan("laplace", DctDirection(SHAPE, 3), 3.0, 0.0, 2.0, CLASSES),
    "laplace, L1 ball": LocalPlan("laplace", L1Ball(SHAPE, 2.0), 3.0),
    "laplace, cells": LocalPlan("laplace", PooledPower(SHAPE, 2), 3.0),
    "gaussian": LocalPlan("gaussian", NonNegativeDirection(SHAPE, 2, 2), 3.0, 1e-5, 2.0, CLASSES),
    "gaussian, L2 ball": LocalPlan("gaussian", L2Ball(SHAPE, 2.0), 3.0, 1e-5),
    "gaussian, pixels": LocalPlan("gaussian", PixelRange(SHAPE, "l2"), 3.0, 1e-5),
}


@pytest.mark.parametrize("plan", PLANS)
def test_records_are_privatized_on_the_gpu(
    settings: NodeSettings, install_source: Callable[..., None], gpu: Gpu, plan: str
) -> None:
    def pictures(spec: Any, split: str) -> tuple[Tensor, Tensor]:
        random = torch.Generator().manual_seed(2)
        return torch.rand(RECORDS, *SHAPE, generator=random), torch.arange(RECORDS) % CLASSES

    install_source(pictures)
    settings = replace(settings, data=replace(settings.data, shape=SHAPE))
    request = PrivatizeRequest(PLANS[plan], 0, RECORDS)
    expected = privatized(Node(settings, 0), request, b"")
    with gpu() as mode:
        reply = privatized(Node(on_gpu(settings), 0), request, b"")
    assert mode.operations > 5
    assert {reply.values.device.type, reply.labels.device.type} == {"cpu"}
    assert torch.equal(reply.values, expected.values)
    assert torch.equal(reply.labels, expected.labels)


def test_the_fingerprint_does_not_depend_on_the_device(settings: NodeSettings, gpu: Gpu) -> None:
    expected = Node(settings, 1)._fingerprint
    with gpu():
        assert Node(on_gpu(settings), 1)._fingerprint == expected


def test_a_tensor_left_on_the_cpu_is_noticed(
    settings: NodeSettings, make_request: Make, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that forgets the device fails here as it would on a GPU."""
    request = request_of(make_request, CASES["record, capacity"])

    def forgetful(self: pool.Batch, row_labels: Tensor) -> Tensor:
        return row_labels.unsqueeze(-1) == self.labels.unsqueeze(-2)

    monkeypatch.setattr(pool.Batch, "meets", forgetful)
    with gpu(), pytest.raises(RuntimeError, match="same device"):
        gradient(Node(on_gpu(settings), 0), request, b"")


@pytest.mark.parametrize("device", ["cuda", "cuda:7", "tpu"])
def test_a_device_that_is_not_there_is_refused_at_the_start(
    settings: NodeSettings, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    told = f"A client's device asks for '{device}', but torch finds cpu and no CUDA device here"
    with pytest.raises(ConfigError, match=told):
        Node(replace(settings, device=device), 0)


def test_the_devices_that_are_there_are_named(
    settings: NodeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"'cuda:2', but torch finds cpu, cuda, cuda:0, cuda:1"):
        Node(replace(settings, device="cuda:2"), 0)
