"""Plans without clip and noise: the nodes that answer them, and the answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedsink.clients.answers.dp_sinkhorn import DPSinkhornAnswer
from fedsink.clients.node import Node
from fedsink.clients.node_cohort import NodeCohort
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.policy import PolicyRefusedError
from fedsink.clients.owner.policy_file import read_policy
from fedsink.errors import PrivacyError, ReleaseRefusedError
from fedsink.privacy import JointSchedule, UnprotectedPlan
from fedsink.protocol.dp_sinkhorn import GradientRequest, unpack_requests
from fedsink.protocol.exchange import Content
from fedsink.protocol.failure_codes import REFUSED
from fedsink.transport import Mixed, transport_gradient

from ..support.asking import gradient
from ..support.requests import pack_requests

Make = Callable[..., GradientRequest]
BATCH = UnprotectedPlan(1.0, 50, "batch", JointSchedule())


@pytest.fixture
def request_without_noise(make_request: Make) -> GradientRequest:
    request = replace(make_request(), plan=BATCH)
    return unpack_requests(pack_requests([request]))[0]  # as a message brings it


def test_a_message_cannot_switch_clip_and_noise_off(
    settings: NodeSettings, secret: NodeSettings, request_without_noise: GradientRequest
) -> None:
    for node in (Node(settings, 0), Node(secret, 0)):
        with pytest.raises(ReleaseRefusedError, match="cannot switch clip and noise off"):
            gradient(node, request_without_noise, b"d")
        assert "shard" not in vars(node)  # refused before any record was read
    content = Content(lambda: [request_without_noise], request_without_noise.to_record)
    ((_, answers),) = NodeCohort(settings).answers("train.dp_sinkhorn", [content], [[0, 1]])
    assert answers.failures == {0: REFUSED}


def test_a_policy_always_refuses(
    policy_file: Callable[..., Path], request_without_noise: GradientRequest
) -> None:
    path = policy_file()
    policy = read_policy(path)
    with pytest.raises(PolicyRefusedError, match="no noise and no clip"):
        DPSinkhornAnswer([request_without_noise]).check_policy(policy)
    under = NodeSettings.from_policy(read_policy(path))
    with pytest.raises(PolicyRefusedError):
        gradient(Node(under, 0), request_without_noise, b"d")
    with pytest.raises(PrivacyError, match="never answers without protection"):
        replace(under, unprotected=True)


@pytest.mark.medium
def test_where_the_owner_says_so_the_gradient_is_the_plain_one(
    settings: NodeSettings, secret: NodeSettings, request_without_noise: GradientRequest
) -> None:
    """No ledger is charged: the same request may be answered twice."""
    for owner in (settings, secret):
        node = Node(replace(owner, unprotected=True), 0)
        reply = gradient(node, request_without_noise, b"d")
        assert torch.equal(gradient(node, request_without_noise, b"d"), reply)
        rows, objective = request_without_noise.rows, request_without_noise.objective
        records = node.shard.coordinates(request_without_noise.view)
        classes = torch.nn.functional.one_hot(node.shard.labels, 3) * objective.label_weight
        own = torch.nn.functional.one_hot(request_without_noise.row_labels, 3)
        x = torch.cat([rows, own * objective.label_weight], 1)
        y = torch.cat([records, classes.to(records)], 1)
        found = transport_gradient(x, y, Mixed(0.0), objective.lam).gradient[:, : rows.shape[1]]
        torch.testing.assert_close(reply, 2.0 * found + request_without_noise.self_gradient)
        assert float(reply.norm()) > 1.0  # more than any clip of these tests lets through
