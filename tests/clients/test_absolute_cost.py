"""The cost ‖x − y‖₁ by itself, on each path that computes a client's gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fedsink.clients.dp_sinkhorn import client_gradient, client_total, client_totals
from fedsink.clients.node import Node
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.pool import Pool
from fedsink.privacy import Stream
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.transport import L1, append_labels, transport_gradient

Make = Callable[..., GradientRequest]
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
    together = client_totals([request] * 3, Pool([n.shard for n in nodes]), slice(0, 3), samples)
    fixed = replace(request, plan=replace(request.plan, capacity=40, nominal_records=61))
    for node, total, sample in zip(nodes, together, samples, strict=True):
        alone = expected(request, node)
        torch.testing.assert_close(total, alone, rtol=1e-3, atol=1e-3)
        padded = client_total(fixed, node.shard, sample)
        assert float((padded - alone).norm() / alone.norm()) < 0.02
