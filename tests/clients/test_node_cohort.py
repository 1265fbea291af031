"""Many clients at once against the loop over clients, which is the oracle."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedsink.clients import node_cohort as module
from fedsink.clients.answers.privatize_once import PrivatizeOnceAnswer
from fedsink.clients.node import Node, close_nodes, open_node
from fedsink.clients.node_cohort import NodeCohort
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.records.shard import deal
from fedsink.data.maps import PointBall
from fedsink.data.partition import Dirichlet
from fedsink.privacy import PrivacyPlan
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.exchange import Content
from fedsink.protocol.failure_codes import FAILED, MALFORMED, REFUSED, RUN_TAKEN
from fedsink.protocol.packing import digest
from fedsink.protocol.privatize_once import LocalPlan, PrivatizeRequest

from ..support.asking import gradients
from ..support.requests import pack_requests

Make = Callable[..., GradientRequest]


def together(
    settings: NodeSettings, requests: Sequence[GradientRequest], clients: Sequence[int]
) -> tuple[dict[int, Tensor], dict[int, int]]:
    """Replies and failures of a cohort, by client."""
    replies: dict[int, Tensor] = {}
    failures: dict[int, int] = {}
    content = Content(lambda: list(requests), lambda: pack_requests(requests))
    for _, answers in NodeCohort(settings).answers("train.dp_sinkhorn", [content], [clients]):
        replies |= dict(zip(answers.clients, answers.replies, strict=True))
        failures |= answers.failures
    return replies, failures


def one_by_one(
    settings: NodeSettings, requests: Sequence[GradientRequest], clients: Sequence[int]
) -> dict[int, Tensor]:
    message = digest("train.dp_sinkhorn", pack_requests(requests))
    return {k: torch.stack(gradients(Node(settings, k), requests, message)) for k in clients}


def agree(
    settings: NodeSettings,
    requests: Sequence[GradientRequest],
    clients: Sequence[int],
    atol: float = 0.0,
) -> dict[int, Tensor]:
    """The replies of a cohort, once they are compared with the loop's."""
    expected = one_by_one(settings, requests, clients)
    replies, failures = together(settings, requests, clients)
    assert failures == {}
    assert list(replies) == list(clients)
    for client in clients:
        torch.testing.assert_close(replies[client], expected[client], rtol=0, atol=atol)
    return replies


@pytest.fixture
def many(settings: NodeSettings) -> NodeSettings:
    """Thirteen clients of very different sizes, some of them empty."""
    return replace(settings, partition=Dirichlet(0.2), clients=13)


@pytest.mark.parametrize("rate", [0.3, 1.0])
@pytest.mark.parametrize("schedule", ["joint", "class"])
@pytest.mark.parametrize(
    "options",
    [
        {"clip": "record"},
        {"clip": "batch", "label_weight": 2.0},
        {"clip": "batch", "label_weight": 2.0, "m": 1.0},
        {"clip": "batch", "label_weight": 2.0, "solver": "annealed"},
        {"clip": "batch", "label_weight": 0.0},
    ],
    ids=lambda options: "-".join(str(value) for value in options.values()),
)
def test_the_batch_equals_the_loop(
    many: NodeSettings, make_request: Make,
    rate: float, schedule: str, options: dict[str, Any],
) -> None:  # fmt: skip
    clients = [k for k in range(13) if schedule == "joint" or (k + 1) % 3 == 2]
    label = None if schedule == "joint" else 2
    request = make_request(schedule=schedule, label=label, rate=rate, bound=3.0, **options)
    agree(many, [request], clients, atol=2e-5)


def test_the_noise_is_that_of_the_loop_to_the_bit(many: NodeSettings, make_request: Make) -> None:
    """At this rate nearly no record is drawn, so that the replies are only noise."""
    replies = agree(many, [make_request(clip="record", rate=1e-12)], range(13))
    assert all(reply.std() > 0.1 for reply in replies.values())


def test_the_records_matter(many: NodeSettings, make_request: Make) -> None:
    """Otherwise the comparisons above would compare noise with noise."""
    seldom, always = (make_request(clip="record", rate=rate, bound=3.0) for rate in (1e-12, 1.0))
    difference = [
        (together(many, [r], range(13))[0][0], r.plan.noise_std) for r in (seldom, always)
    ]
    assert (difference[0][0] - difference[1][0]).abs().max() > 1e-2


def test_a_client_does_not_depend_on_who_else_is_in_its_batch(
    many: NodeSettings, make_request: Make
) -> None:
    request = make_request(clip="record", bound=3.0)
    whole, _ = together(many, [request], range(13))
    alone = {k: together(many, [request], [k])[0][k] for k in range(13)}
    for client in range(13):
        assert torch.equal(whole[client], alone[client])


@pytest.mark.medium
def test_blocks_of_clients_do_not_depend_on_the_others(
    many: NodeSettings, make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sinkhorn in single precision couples problems solved together, in the last bits."""
    request = make_request(clip="batch", bound=30.0)
    whole, _ = together(many, [request], range(13))
    first, second = (together(many, [request], part)[0] for part in (range(8), range(8, 13)))
    monkeypatch.setattr(module, "_BATCH", 1)
    least, _ = together(many, [request], range(13))
    for client in range(13):
        assert torch.equal(whole[client], (first | second)[client])
        assert torch.equal(whole[client], least[client])


def test_several_uses_of_one_message(many: NodeSettings, make_request: Make) -> None:
    requests = [make_request(clip="record", round=t) for t in (1, 2, 3)]
    replies = agree(many, requests, range(13), atol=1e-6)
    assert {reply.shape for reply in replies.values()} == {(3, 6, 4)}


def test_a_fixed_capacity_is_kept(many: NodeSettings, make_request: Make) -> None:
    request = make_request(clip="record", rate=0.5)
    request = replace(request, plan=replace(request.plan, capacity=40, nominal_records=61))
    agree(many, [request], range(13))
    agree(many, [request], [5])


def test_secret_noise_is_charged_once_and_answered_alike(
    secret: NodeSettings, make_request: Make
) -> None:
    request = make_request(clip="record")
    replies, _ = together(secret, [request], range(3))
    again, _ = together(secret, [request], range(3))
    close_nodes()  # another process, as far as the ledger can tell
    later, _ = together(secret, [request], range(3))
    for client in range(3):
        assert torch.equal(replies[client], again[client])
        assert torch.equal(replies[client], later[client])
    assert _claims(secret) == 1  # of all of them
    other, _ = together(secret, [make_request(clip="record", round=2)], range(3))
    assert all((other[k] - replies[k]).std() > 0.5 for k in range(3))
    assert _claims(secret) == 2


def test_another_request_in_the_same_round_is_refused(
    secret: NodeSettings, make_request: Make
) -> None:
    together(secret, [make_request(clip="record")], [0, 1])
    other = make_request(clip="record", rows=torch.zeros(6, 4))
    assert together(secret, [other], range(3)) == ({}, {0: REFUSED})


def test_noise_is_bound_to_the_records_of_all_clients(
    secret: NodeSettings, make_request: Make
) -> None:
    """Another deal is another version of the data, which a run's ledger refuses."""
    request = make_request(clip="record")
    together(secret, [request], range(3))
    close_nodes()
    other = replace(secret, partition_seed=secret.partition_seed + 1)
    replies, failures = together(other, [request], range(3))
    assert (replies, failures) == ({}, {0: RUN_TAKEN})


def test_clients_that_store_their_replies_are_nodes(secret: NodeSettings, tmp_path: Path) -> None:
    assert NodeCohort(secret).handles("train.dp_sinkhorn")
    pytest.importorskip("opendp")
    secure = replace(secret, key_file=None, noise="secure")
    assert not NodeCohort(secure).handles("train.dp_sinkhorn")
    governed = replace(secret, policy=tmp_path / "policy.toml")
    assert not NodeCohort(governed).handles("train.dp_sinkhorn")


def test_a_content_that_one_client_cannot_answer_has_no_replies(
    many: NodeSettings, make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = make_request(clip="record", schedule="class", label=2)
    assert together(many, [request], [0, 1, 4]) == ({}, {0: REFUSED})  # another class's turn
    assert together(many, [request], [1, 3]) == ({}, {1: REFUSED})
    assert together(many, [request], [1, 99]) == ({}, {99: MALFORMED})  # no such client
    sizes = deal(many).sizes
    plan = replace(request.plan, capacity=1, nominal_records=int(sizes.max()) - 1)
    whole = make_request(clip="record")
    largest = int(sizes.argmax())
    limited = replace(whole, plan=replace(plan, schedule=whole.plan.schedule))
    replies, failures = together(many, [limited], range(13))
    assert replies == {}
    assert list(failures) == [largest]

    def broken(self: PrivacyPlan, *arguments: Any) -> Tensor:
        raise RuntimeError("a batch that does not work")

    monkeypatch.setattr(PrivacyPlan, "release_each", broken)
    assert together(many, [request], [1, 4]) == ({}, {1: FAILED})


def test_a_malformed_request_fails_at_every_client(many: NodeSettings, make_request: Make) -> None:
    request = make_request(clip="record")
    content = pack_requests([request])
    content.config_records["fields"]["json"] = '{"protocol": 5}'
    read = Content(None, lambda: content)
    ((number, answers),) = NodeCohort(many).answers("train.dp_sinkhorn", [read], [[3, 5]])
    assert number == 0
    assert answers.failures == {3: MALFORMED}
    wide = make_request(clip="record", rows=torch.zeros(6, 9))
    assert together(many, [wide], [3, 5])[1] == {3: MALFORMED}


def test_clients_that_lack_the_class_answer_with_noise(
    many: NodeSettings, make_request: Make
) -> None:
    request = make_request(clip="batch", schedule="class", label=2)
    turn = [k for k in range(13) if (k + 1) % 3 == 2]
    lacking = [k for k in turn if not (open_node(many, k).shard.labels == 2).any()]
    assert len(lacking) > 1
    agree(many, [request], lacking)


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_what_clients_upload_together_is_what_each_uploads(
    many: NodeSettings, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client by client, with labels, in blocks of five clients, some of them empty."""
    norm, delta = ("l1", 0.0) if mechanism == "laplace" else ("l2", 1e-5)
    plan = LocalPlan(mechanism, PointBall(norm, size=4), 3.0, delta, label_epsilon=1.0, classes=3)
    request = PrivatizeRequest(plan, 0, 1000, "run")
    content, kind = Content(None, request.to_record), "train.privatize_once"
    assert not NodeCohort(many).uploads(kind)  # so few are asked one by one
    monkeypatch.setattr(module, "FEW", 3)
    monkeypatch.setattr(module, "summed_block", lambda clients: 5)
    cohort = NodeCohort(many)
    assert cohort.uploads(kind)
    assert not cohort.uploads("train.dp_sinkhorn")
    found = cohort.upload(kind, content, range(13))
    answer = PrivatizeOnceAnswer([request])
    each = [Node(many, k).reply(answer, b"") for k in range(13)]
    assert found.failures == {}
    for values, name in zip(found.tensors, answer.parts, strict=True):
        assert torch.equal(values, torch.cat([reply[name] for reply in each]))
    assert cohort.upload(kind, content, [3, 99]).failures == {99: MALFORMED}


def _claims(settings: NodeSettings) -> int:
    assert isinstance(settings.ledger, Path)
    with sqlite3.connect(settings.ledger) as database:
        return int(database.execute("SELECT count(*) FROM claims").fetchone()[0])
