"""`fedsink.clients.app:app`, the `ClientApp` of a real node."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict

from fedsink.clients.app import app, client_app, owners_settings
from fedsink.clients.node import close_nodes
from fedsink.clients.node_settings import NodeSettings
from fedsink.protocol.dp_sinkhorn import GradientReply, unpack_replies
from fedsink.protocol.failure_codes import MALFORMED

from ..support.requests import pack_requests

Make = Callable[..., Any]


def deployed(
    kind: str, content: RecordDict, config: dict[str, Any], run_config: dict[str, Any]
) -> Message:
    message = Message(content, dst_node_id=1001, message_type=kind)
    return app(message, Context(1, 1001, config, RecordDict(), run_config))


def test_a_real_node_is_what_its_owners_policy_says(
    policy_file: Callable[..., Path], make_request: Make
) -> None:
    """All records are its own; seed, key, data and policy in a run configuration change nothing."""
    policy = policy_file()
    config: dict[str, Any] = {"policy": str(policy), "partition-id": 1, "num-partitions": 3}
    hostile = {"seed": 7, "policy": "/other.toml", "key_file": "/dev/zero", "partition-id": 0}
    content = make_request().to_record()
    answers = []
    for run_config in ({}, hostile):
        close_nodes()  # a new process answers every message
        reply = deployed("train.dp_sinkhorn", content, config, run_config)
        assert not reply.has_error()
        answers.append(GradientReply.from_record(reply.content).gradient)
    assert torch.equal(*answers)
    assert (policy.parent / "state" / "ledger.sqlite").is_file()
    reply = deployed("query.identity", RecordDict(), config, hostile)
    assert dict(reply.content.config_records["identity"]) == {"client": 1, "protocol": 5}
    settings = owners_settings(Context(1, 1, config, RecordDict(), hostile))
    assert (settings.seed, settings.partition, settings.policy) == (None, None, policy)
    assert settings.clients == 3
    assert settings.device == "cpu"
    config["device"] = "cuda:1"
    hostile["device"] = "cpu"
    assert owners_settings(Context(1, 1, config, RecordDict(), hostile)).device == "cuda:1"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"policy": None}, "started without a policy"),
        ({"policy": 7}, "started without a policy"),
        ({"policy": "/no/such.toml"}, "cannot be read"),
        ({"num-partitions": None}, "num-partitions must be a whole number, not None"),
        ({"num-partitions": 1}, "There is no client 1"),
        ({"partition-id": None}, "partition-id must be a whole number, not None"),
        ({"device": "gpu"}, "A client's device asks for 'gpu', but torch finds cpu"),
    ],
    ids=str,
)
def test_a_node_without_what_it_needs_answers_nothing_and_tells_its_owner(
    policy_file: Callable[..., Path], make_request: Make, changes: dict[str, Any], told: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    config = {"policy": str(policy_file()), "partition-id": 1, "num-partitions": 3, **changes}
    config = {key: value for key, value in config.items() if value is not None}
    messages = {"query.identity": RecordDict(), "train.dp_sinkhorn": make_request().to_record()}
    for kind, content in messages.items():
        with caplog.at_level(logging.WARNING, logger="fedsink.clients"):
            reply = deployed(kind, content, config, {})
        assert (reply.error.code, reply.error.reason) == (MALFORMED, None)
        assert told in caplog.text


def test_a_message_with_several_uses_is_answered_in_order(
    settings: NodeSettings, make_request: Make
) -> None:
    context = Context(1, 1001, {"partition-id": 1}, RecordDict(), {})

    def ask(content: RecordDict) -> list[GradientReply]:
        message = Message(content, dst_node_id=1001, message_type="train.dp_sinkhorn")
        return unpack_replies(client_app(settings)(message, context).content)

    requests = [make_request(round=number) for number in (3, 4, 7)]
    together = ask(pack_requests(requests))
    for request, answer in zip(requests, together, strict=True):
        (alone,) = ask(request.to_record())
        assert torch.equal(answer.gradient, alone.gradient)
    assert not torch.equal(together[0].gradient, together[1].gradient)
