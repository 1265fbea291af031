from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedsink.clients import node as node_module
from fedsink.clients.journal import ReleaseRefusedError
from fedsink.clients.node import Node, close_nodes, open_node
from fedsink.clients.settings import NodeSettings
from fedsink.data.maps import PointBall
from fedsink.privacy import SecretKey
from fedsink.protocol import GradientRequest, LocalPlan, PrivatizeRequest
from fedsink.protocol.records import digest

Make = Callable[..., GradientRequest]
PLAN = LocalPlan("laplace", PointBall("l1", 1.0, 4), 3.0, 0.0, 1.0, 3)


def answer(node: Node, request: GradientRequest) -> torch.Tensor:
    return node.gradient(request, digest(request.to_record())).gradient


def upload(node: Node, chunk_size: int = 100, plan: LocalPlan = PLAN) -> torch.Tensor:
    return whole(node, chunk_size, plan)[0]


def plan_digest(plan: LocalPlan) -> bytes:
    return hashlib.sha256(json.dumps(plan.to_dict(), sort_keys=True).encode()).digest()


def whole(node: Node, chunk_size: int, plan: LocalPlan = PLAN) -> tuple[torch.Tensor, torch.Tensor]:
    replies = [node.privatized(PrivatizeRequest(plan, 0, chunk_size), plan_digest(plan))]
    for chunk in range(1, replies[0].chunks):
        request = PrivatizeRequest(plan, chunk, chunk_size)
        replies.append(node.privatized(request, plan_digest(plan)))
    return torch.cat([r.values for r in replies]), torch.cat([r.labels for r in replies])


def test_shards_are_the_disjoint_parts_of_the_deal(settings: NodeSettings) -> None:
    shards = [Node(settings, client).shard for client in range(3)]
    assert [len(shard) for shard in shards] == [21, 20, 20]
    assert len(torch.cat([shard.images for shard in shards]).unique(dim=0)) == 61


@pytest.mark.parametrize("client", [-1, 3, 1000])
def test_a_client_that_does_not_exist_has_no_node(settings: NodeSettings, client: int) -> None:
    """−1 would have been the last client, with its records and other noise."""
    with pytest.raises(ValueError, match=f"There is no client {client}: they are 0 to 2"):
        open_node(settings, client)


def test_a_process_has_one_node_per_client(settings: NodeSettings) -> None:
    node = open_node(settings, 1)
    assert open_node(replace(settings), 1) is node
    assert open_node(settings, 2) is not node
    close_nodes()
    assert open_node(settings, 1) is not node


# Gradients


def test_reproducible_noise_is_the_same_in_every_process_and_for_every_digest(
    settings: NodeSettings, make_request: Make
) -> None:
    """Engines differ in the last bits of a request."""
    request = make_request()
    one = Node(settings, 0).gradient(request, b"one").gradient
    other = Node(settings, 0).gradient(request, b"other").gradient
    assert torch.equal(one, other)


def test_reproducible_noise_differs_between_clients_rounds_and_seeds(
    settings: NodeSettings, make_request: Make
) -> None:
    """Pitfall 5: with q ≈ 0 the release is noise alone."""
    rows = torch.zeros(100, 4)
    requests = [make_request(clip="record", rate=1e-12, rows=rows, round=t) for t in (1, 2)]
    releases = [
        answer(Node(replace(settings, seed=seed), client), request)
        for seed in (1, 2) for client in (0, 1) for request in requests
    ]  # fmt: skip
    assert_unrelated(releases)


def test_secret_noise_differs_between_keys_rounds_and_clients(
    secret: NodeSettings, make_request: Make, tmp_path: Path
) -> None:
    """Pitfalls 5 and 14."""
    rows = torch.zeros(100, 4)
    requests = [make_request(clip="record", rate=1e-12, rows=rows, round=t) for t in (1, 2)]
    SecretKey.create(tmp_path / "2.key", "tiny/1")
    other = replace(secret, key_file=tmp_path / "2.key", journal=tmp_path / "2.sqlite")
    releases = [
        answer(Node(each, client), request)
        for each in (secret, other) for client in (0, 1) for request in requests
    ]  # fmt: skip
    assert_unrelated(releases)


def test_secret_noise_differs_between_runs_under_copied_bytes(
    secret: NodeSettings, make_request: Make, tmp_path: Path
) -> None:
    """Pitfall 14."""
    assert secret.key_file is not None
    content = json.loads(secret.key_file.read_text())
    copied = tmp_path / "copied.key"
    copied.touch(mode=0o600)
    copied.write_text(json.dumps({**content, "run": "tiny/2"}))
    request = make_request(clip="record", rate=1e-12, rows=torch.zeros(100, 4))
    other = replace(secret, key_file=copied, journal=tmp_path / "2.sqlite")
    assert_unrelated([answer(Node(each, 0), request) for each in (secret, other)])


def assert_unrelated(releases: list[torch.Tensor]) -> None:
    table = torch.stack([release.flatten() for release in releases]).double()
    correlation = torch.corrcoef(table).fill_diagonal_(0.0)
    assert float(correlation.abs().max()) < 0.25  # 400 entries: five standard errors


def test_an_identical_request_gets_the_same_bytes(secret: NodeSettings, make_request: Make) -> None:
    """A crashed server that resumes asks again; even another process answers alike."""
    request = make_request()
    assert torch.equal(answer(Node(secret, 0), request), answer(Node(secret, 0), request))


def test_a_request_that_differs_in_one_bit_is_refused(
    secret: NodeSettings, make_request: Make
) -> None:
    """Pitfall 14: fresh noise on the same round would be a release that nobody accounts for."""
    request = make_request()
    answer(Node(secret, 0), request)
    rows = request.rows.clone()
    rows.view(torch.int32)[0, 0] ^= 1
    with pytest.raises(ReleaseRefusedError, match="already answered another gradient request"):
        answer(Node(secret, 0), replace(request, rows=rows))
    answer(Node(secret, 1), replace(request, rows=rows))  # another client has not answered yet


def test_a_place_is_claimed_before_its_answer_exists(
    secret: NodeSettings, make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pitfall 12."""

    def crash(*arguments: object) -> torch.Tensor:
        raise RuntimeError("power cut")

    request = make_request()
    with monkeypatch.context() as patch:
        patch.setattr(node_module, "client_gradient", crash)
        with pytest.raises(RuntimeError):
            answer(Node(secret, 0), request)
    with pytest.raises(ReleaseRefusedError):
        answer(Node(secret, 0), replace(request, rows=request.rows + 1))
    answer(Node(secret, 0), request)


@pytest.mark.parametrize(("label", "scheduled"), [(None, 1), (2, 1), (0, 1)])
def test_a_class_that_is_not_scheduled_is_refused(
    settings: NodeSettings, make_request: Make, label: int | None, scheduled: int
) -> None:
    """Pitfall 3: the plan charges one use in C rounds."""
    request = make_request(schedule="class", label=label, round=1)
    with pytest.raises(ReleaseRefusedError, match=f"Round 1 is for class {scheduled} at client 0"):
        answer(Node(settings, 0), request)


def test_a_class_in_a_joint_round_is_refused(settings: NodeSettings, make_request: Make) -> None:
    with pytest.raises(ReleaseRefusedError, match="Round 1 is for class None at client 0"):
        answer(Node(settings, 0), make_request(schedule="joint", label=1))


def test_the_scheduled_class_moves_with_client_and_round(
    settings: NodeSettings, make_request: Make
) -> None:
    for client in range(3):
        for round in range(1, 5):
            label = (client + round) % 3
            request = make_request(schedule="class", label=label, round=round)
            assert answer(Node(settings, client), request).shape == (6, 4)


@pytest.mark.parametrize("classes", [2, 4])
def test_a_class_list_that_is_not_the_datas_is_refused_by_every_client(
    settings: NodeSettings, make_request: Make, classes: int
) -> None:
    """Pitfall 17: with a shorter list only batches that hold the last class would fail."""
    request = make_request(
        classes=classes, rate=1e-12, row_labels=torch.zeros(6, dtype=torch.int64)
    )
    for client in range(3):
        with pytest.raises(ValueError, match=f"The request has {classes} classes, the data 3"):
            answer(Node(settings, client), request)


def test_an_unconditional_request_is_answered(settings: NodeSettings, make_request: Make) -> None:
    request = make_request(classes=1, row_labels=torch.zeros(6).long(), label_weight=0.0)
    assert answer(Node(settings, 0), request).shape == (6, 4)


# Local mode


@pytest.mark.parametrize("kind", ["reproducible", "secret"])
def test_the_same_request_gets_the_same_bytes(
    settings: NodeSettings, secret: NodeSettings, kind: str
) -> None:
    """Pitfall 9."""
    chosen = settings if kind == "reproducible" else secret
    node = Node(chosen, 0)
    first = upload(node)
    assert torch.equal(upload(node), first)
    assert torch.equal(upload(Node(chosen, 0)), first)
    assert not torch.equal(upload(Node(chosen, 1)), upload(Node(chosen, 2)))


@pytest.mark.parametrize("size", [1, 7, 20, 21, 100])
def test_chunks_concatenate_to_the_whole(settings: NodeSettings, size: int) -> None:
    node = Node(settings, 0)
    values, labels = whole(node, size)
    expected = whole(node, 1000)
    assert values.shape == (21, 4)
    assert torch.equal(values, expected[0])
    assert torch.equal(labels, expected[1])


def test_the_last_chunk_is_shorter_and_nothing_lies_beyond(settings: NodeSettings) -> None:
    node = Node(settings, 0)
    sizes = []
    for chunk in range(6):
        reply = node.privatized(PrivatizeRequest(PLAN, chunk, 8), plan_digest(PLAN))
        assert reply.chunks == math.ceil(21 / 8)
        assert len(reply.values) == len(reply.labels)
        sizes.append(len(reply.labels))
    assert sizes == [8, 8, 5, 0, 0, 0]


def test_a_second_plan_is_refused_under_a_secret_key(secret: NodeSettings) -> None:
    """Pitfall 9: a second, independently noised copy would cost ε again."""
    upload(Node(secret, 0))
    for other in (replace(PLAN, epsilon=3.5), replace(PLAN, label_epsilon=2.0)):
        with pytest.raises(ReleaseRefusedError, match="already answered another privatize"):
            upload(Node(secret, 0), plan=other)
    upload(Node(secret, 0))


def test_a_second_plan_is_answered_under_reproducible_noise(settings: NodeSettings) -> None:
    """A simulation's noise is not secret, and its runs are compared."""
    node = Node(settings, 0)
    first = upload(node)
    second = upload(node, plan=replace(PLAN, epsilon=6.0))
    assert not torch.equal(first, second)
    assert torch.equal(upload(node), first)


@pytest.mark.parametrize("classes", [2, 4])
def test_a_label_list_that_is_not_the_datas_is_refused_by_every_client(
    settings: NodeSettings, classes: int
) -> None:
    """Pitfall 17: with a shorter list only clients that hold the last class would fail."""
    for client in range(3):
        with pytest.raises(ValueError, match=f"The request has {classes} classes, the data 3"):
            upload(Node(settings, client), plan=replace(PLAN, classes=classes))
