from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.common.serde import message_to_proto
from PIL import Image
from torch import Tensor

from fedsink.clients.app import app, client_app, owners_settings
from fedsink.clients.node import Node, close_nodes
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.policy_file import read_policy
from fedsink.data.maps import PointBall
from fedsink.data.sources import notes
from fedsink.data.spec import DataSpec
from fedsink.privacy import PrivacyPlan
from fedsink.protocol.dp_sinkhorn import Objective
from fedsink.protocol.failure_codes import FAILED, MALFORMED, REFUSED, RUN_TAKEN
from fedsink.protocol.packing import pack, unpack
from fedsink.protocol.privatize_once import LocalPlan, PrivatizeReply, PrivatizeRequest
from fedsink.protocol.requests import unpack_replies

from ..support.requests import gradient_request, pack_requests, plan_of
from ..support.tiny import CLASSES

Make = Callable[..., Any]
PLAN = LocalPlan("laplace", PointBall("l1", 1.0, 4), 3.0)
SECRET = "patient 4711 in /home/alice/scans"


def ask(
    settings: NodeSettings, kind: str, content: RecordDict, config: dict[str, Any] | None = None
) -> Message:
    config = {"partition-id": 1, "num-partitions": 3} if config is None else config
    context = Context(1, 1001, config, RecordDict(), {})
    message = Message(content, dst_node_id=1001, message_type=kind)
    return client_app(settings)(message, context)


def code(reply: Message) -> int:
    assert reply.has_error()
    assert not reply.error.reason
    return reply.error.code


def test_a_client_says_which_one_it_is(settings: NodeSettings) -> None:
    reply = ask(settings, "query.identity", RecordDict())
    assert dict(reply.content.config_records["identity"]) == {"client": 1, "protocol": 5}
    assert len(reply.content) == 1


def test_privatized_records_are_answered(settings: NodeSettings) -> None:
    reply = ask(settings, "train.privatize_once", PrivatizeRequest(PLAN, 0, 8).to_record())
    read = PrivatizeReply.from_record(reply.content)
    assert read.values.shape == (8, 4)
    assert read.chunks == 3


def test_the_plan_alone_names_a_release_and_not_the_chunk(secret: NodeSettings) -> None:
    """Pitfall 9: every chunk is of one release, whatever its size."""
    for chunk, size in ((0, 8), (1, 8), (0, 20)):
        request = PrivatizeRequest(PLAN, chunk, size)
        assert not ask(secret, "train.privatize_once", request.to_record()).has_error()
    other = PrivatizeRequest(replace(PLAN, epsilon=4.0), 0, 8)
    assert code(ask(secret, "train.privatize_once", other.to_record())) == RUN_TAKEN


@pytest.mark.parametrize(
    ("error", "expected"),
    [(RuntimeError, FAILED), (ValueError, MALFORMED), (TypeError, MALFORMED), (KeyError, FAILED),
     (MemoryError, FAILED), (OSError, FAILED)],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["train.dp_sinkhorn", "train.privatize_once"])
def test_an_errors_text_never_leaves_the_client(
    settings: NodeSettings, make_request: Make, monkeypatch: pytest.MonkeyPatch, kind: str,
    error: type[Exception], expected: int, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Pitfall 11: no text of an error travels."""

    def crash(*arguments: object) -> None:
        raise error(SECRET)

    monkeypatch.setattr(Node, "reply", crash)
    request = make_request() if kind == "train.dp_sinkhorn" else PrivatizeRequest(PLAN, 0, 8)
    with caplog.at_level(logging.WARNING, logger="fedsink.clients"):
        reply = ask(settings, kind, request.to_record())
    assert code(reply) == expected
    sent = message_to_proto(reply).SerializeToString()
    for word in (b"4711", b"alice", error.__name__.encode(), b"Traceback"):
        assert word not in sent
    assert "4711" in caplog.text  # the owner is told


@pytest.mark.parametrize("kind", ["train.dp_sinkhorn", "train.privatize_once"])
def test_a_malformed_request_is_answered_with_a_code(settings: NodeSettings, kind: str) -> None:
    assert code(ask(settings, kind, RecordDict())) == MALFORMED


@pytest.mark.parametrize("described", [None, 3, "point_ball", ["point_ball"], [[]]])
def test_a_map_that_is_no_table_is_malformed(settings: NodeSettings, described: Any) -> None:
    fields, _ = unpack(PrivatizeRequest(PLAN, 0, 9).to_record())
    fields["plan"]["map"] = described
    assert code(ask(settings, "train.privatize_once", pack(fields, {}))) == MALFORMED


def test_data_that_cannot_be_read_is_answered_with_a_code(
    settings: NodeSettings, make_request: Make
) -> None:
    """Pitfall 11: the path stays on the client."""
    data = replace(settings.data, name="image_folder", shape=(1, 8, 8), root="/secret/path")
    reply = ask(replace(settings, data=data), "train.dp_sinkhorn", make_request().to_record())
    assert code(reply) == MALFORMED
    assert b"secret" not in message_to_proto(reply).SerializeToString()


@pytest.mark.parametrize(
    "config", [{}, {"partition-id": 3}, {"partition-id": -1}, {"partition-id": "one"}], ids=str
)
@pytest.mark.parametrize("kind", ["query.identity", "train.dp_sinkhorn"])
def test_an_unknown_partition_is_answered_with_a_code(
    settings: NodeSettings, make_request: Make, config: dict[str, Any], kind: str
) -> None:
    content = RecordDict() if kind == "query.identity" else make_request().to_record()
    assert code(ask(settings, kind, content, config)) == MALFORMED


@pytest.mark.parametrize("clip", ["batch", "record"])
def test_a_reply_holds_the_gradient_and_nothing_else(
    settings: NodeSettings, make_request: Make, clip: str
) -> None:
    """Pitfall 1: no size, no loss, no norm: replies of unequal shards have equal schemas."""
    sizes = set()
    for client in range(3):  # 21, 20 and 20 records
        for rate in (1e-12, 0.5, 1.0):
            request = make_request(clip=clip, rate=rate)
            reply = ask(
                settings, "train.dp_sinkhorn", request.to_record(), {"partition-id": client}
            )
            content = reply.content
            assert sorted(content) == ["arrays", "fields"]
            assert dict(content.config_records["fields"]) == {"json": '{"protocol": 5}'}
            assert list(content.array_records["arrays"]) == ["gradient"]
            array = content.array_records["arrays"]["gradient"]
            assert (array.dtype, tuple(array.shape)) == ("float32", (1, 6, 4))
            sizes.add(len(array.data))
    assert len(sizes) == 1


def test_what_reading_changes_is_told_to_a_nodes_owner_and_to_nobody_else(
    tmp_path: Path, policy_file: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    replies = []
    for folder, link in (("exact", False), ("doubled", True)):
        for number, label in enumerate("aaab"):
            path = tmp_path / folder / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (2, 2), 60 * number).save(path)
        if link:
            (tmp_path / folder / "a" / "again.png").symlink_to("0.png")
            (tmp_path / folder / "a" / "ward-7.txt").write_text("no picture")
        described = {
            "name": "image_folder", "root": str(tmp_path / folder), "shape": [1, 2, 2],
            "classes": list("abc"), "nominal_records": 4,
        }  # fmt: skip
        policy = read_policy(policy_file(backend="secure", data=described))
        node = NodeSettings.from_policy(policy, clients=3)
        request = gradient_request(
            plan_of("record", "joint"), Objective(0.5, CLASSES), shape=(1, 2, 2)
        )
        with caplog.at_level(logging.DEBUG, logger="fedsink"):
            reply = ask(node, "train.dp_sinkhorn", request.to_record())
        assert not reply.has_error()
        sent = message_to_proto(reply).SerializeToString()
        assert b"ward-7" not in sent
        replies.append(sent)
        assert caplog.text.count("Passed over: 2.") == link
        close_nodes()
        again = ask(node, "train.dp_sinkhorn", replace(request, round=2).to_record())
        assert not again.has_error()
        assert caplog.text.count("Passed over: 2.") == link  # once in a process
        close_nodes()
        policy.path.parent.rename(policy.path.parent.with_name(f"node-{folder}"))
    assert abs(len(replies[0]) - len(replies[1])) < 16
    assert "ward-7.txt" in caplog.text


def test_what_reading_changes_leaves_no_trace_at_a_client_of_a_simulation(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Pictures that are resized, made grey and vast are answered as if they lay there so."""
    replies = {}
    for name, mode, size in (("exact", "L", (2, 2)), ("other", "RGB", (60, 50))):
        for number, label in enumerate("aaab"):  # one record of b, none of c
            path = tmp_path / name / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            white = 255 * (number % 2)
            Image.new(mode, size, white if mode == "L" else (white,) * 3).save(path)
        data = DataSpec("image_folder", (1, 2, 2), tuple("abc"), 4, str(tmp_path / name))
        node = NodeSettings(data, None, 1, seed=7)
        plan = plan_of("record", "class")
        request = gradient_request(plan, Objective(0.5, CLASSES), label=1, shape=(1, 2, 2))
        with caplog.at_level(logging.DEBUG, logger="fedsink"):
            reply = ask(node, "train.dp_sinkhorn", request.to_record(), {"partition-id": 0})
        assert not reply.has_error()
        replies[name] = message_to_proto(reply).content
        assert any("made grey" in note for note in notes(data)) == (name == "other")
    assert replies["exact"] == replies["other"]
    assert capfd.readouterr() == ("", "")
    assert caplog.text == ""


def test_a_shared_request_is_not_changed(settings: NodeSettings, make_request: Make) -> None:
    """In-process engines hand one content object to every client."""
    content = make_request(clip="record").to_record()
    before = message_to_proto(Message(content, dst_node_id=1, message_type="train"))
    ask(settings, "train.dp_sinkhorn", content)
    after = message_to_proto(Message(content, dst_node_id=1, message_type="train"))
    assert before.content == after.content


def test_the_clients_thread_limit_is_set(settings: NodeSettings) -> None:
    torch.set_num_threads(2)
    ask(settings, "query.identity", RecordDict())
    assert torch.get_num_threads() == 1


def test_a_round_beyond_the_plan_is_refused(settings: NodeSettings, make_request: Make) -> None:
    """Pitfall 6: the plan covers 50 rounds; nothing would be charged for round 51."""
    request = make_request(round=51)
    assert isinstance(request.plan, PrivacyPlan)
    assert code(ask(settings, "train.dp_sinkhorn", request.to_record())) == MALFORMED


def test_policy_and_budget_refuse_with_one_code(
    policy_file: Callable[..., Path], make_request: Make
) -> None:
    """The server does not learn which of the owner's limits it met."""
    for request in (make_request(bound=0.6), make_request()):
        node = NodeSettings.from_policy(read_policy(policy_file(epsilon=1.0)), clients=3)
        reply = ask(node, "train.dp_sinkhorn", request.to_record())
        assert code(reply) == REFUSED
        sent = message_to_proto(reply).SerializeToString()
        for word in (b"policy", b"budget", b"ward", b"clip"):
            assert word not in sent


def test_a_seed_in_a_message_is_ignored(
    policy_file: Callable[..., Path], make_request: Make
) -> None:
    """Pitfall 14: two nodes' noise stays their own, whatever the server asks for."""
    content = make_request(clip="record", rate=1e-12, rows=torch.zeros(12, 4)).to_record()
    fields = json.loads(str(content.config_records["fields"]["json"]))
    fields |= {"seed": 7, "noise": "reproducible", "key": "00" * 32, "policy": None}
    content.config_records["fields"]["json"] = json.dumps(fields)
    noise = []
    for number in range(2):
        path = policy_file()
        node = NodeSettings.from_policy(read_policy(path), clients=3)
        reply = ask(node, "train.dp_sinkhorn", content)
        noise.append(unpack_replies(reply.content)[0].flatten())
        path.parent.rename(path.parent.with_name(f"node-{number}"))
        close_nodes()
    assert abs(float(torch.corrcoef(torch.stack(noise))[0, 1])) < 0.8  # 48 entries: 5 std errors


# `fedsink.clients.app:app`, the `ClientApp` of a real node


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
        answers.append(unpack_replies(reply.content)[0])
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


@pytest.mark.medium
def test_a_message_with_several_uses_is_answered_in_order(
    settings: NodeSettings, make_request: Make
) -> None:
    def answers(content: RecordDict) -> Tensor:
        return unpack_replies(ask(settings, "train.dp_sinkhorn", content).content)

    requests = [make_request(round=number) for number in (3, 4, 7)]
    together = answers(pack_requests(requests))
    for request, answer in zip(requests, together, strict=True):
        (alone,) = answers(request.to_record())
        assert torch.equal(answer, alone)
    assert not torch.equal(together[0], together[1])
