from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load as load_reply

from fedsink.clients import node as node_module
from fedsink.clients.answers import dp_sinkhorn as gradient_module
from fedsink.clients.node import Node, close_nodes, open_node
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.ledger.ledger import Ledger
from fedsink.clients.owner.policy import PolicyRefusedError
from fedsink.clients.owner.policy_file import read_policy
from fedsink.clients.owner.replies import ReplyStore
from fedsink.data import sources
from fedsink.data.maps import PointBall
from fedsink.data.partition import Iid
from fedsink.errors import BudgetError, ConfigError, DataError, LedgerError, ReleaseRefusedError
from fedsink.privacy import SecretKey
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.packing import digest
from fedsink.protocol.privatize_once import LocalPlan, PrivatizeRequest

from ..support.asking import gradient, gradients, privatized

Make = Callable[..., GradientRequest]
PLAN = LocalPlan("laplace", PointBall("l1", 1.0, 4), 3.0, 0.0, 1.0, 3)


def answer(node: Node, request: GradientRequest) -> torch.Tensor:
    return gradient(node, request, digest("train.dp_sinkhorn", request.to_record()))


def upload(node: Node, chunk_size: int = 100, plan: LocalPlan = PLAN) -> torch.Tensor:
    return whole(node, chunk_size, plan)[0]


def plan_digest(plan: LocalPlan) -> bytes:
    return hashlib.sha256(json.dumps(plan.to_dict(), sort_keys=True).encode()).digest()


def whole(node: Node, chunk_size: int, plan: LocalPlan = PLAN) -> tuple[torch.Tensor, torch.Tensor]:
    replies = [privatized(node, PrivatizeRequest(plan, 0, chunk_size, "upload"), plan_digest(plan))]
    for chunk in range(1, replies[0].chunks):
        request = PrivatizeRequest(plan, chunk, chunk_size, "upload")
        replies.append(privatized(node, request, plan_digest(plan)))
    return torch.cat([r.values for r in replies]), torch.cat([r.labels for r in replies])


def test_shards_are_the_disjoint_parts_of_the_deal(settings: NodeSettings) -> None:
    shards = [Node(settings, client).shard for client in range(3)]
    assert [len(shard) for shard in shards] == [21, 20, 20]
    assert len(torch.cat([shard.images for shard in shards]).unique(dim=0)) == 61
    assert len(Node(replace(settings, partition=None), 1).shard) == 61


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
    one = gradient(Node(settings, 0), request, b"one")
    other = gradient(Node(settings, 0), request, b"other")
    assert torch.equal(one, other)


def test_reproducible_noise_differs_between_clients_rounds_and_seeds(
    settings: NodeSettings, make_request: Make
) -> None:
    """Pitfall 5: with q ≈ 0 the release is only noise."""
    assert_unrelated(noises(make_request, *(replace(settings, seed=seed) for seed in (1, 2))))


def test_secret_noise_differs_between_keys_rounds_and_clients(
    secret: NodeSettings, make_request: Make, tmp_path: Path
) -> None:
    """Pitfalls 5 and 14."""
    SecretKey.create(tmp_path / "2.key", "tiny/1")
    other = replace(secret, key_file=tmp_path / "2.key", ledger=tmp_path / "2.sqlite")
    assert_unrelated(noises(make_request, secret, other))


def test_secret_noise_differs_between_runs_under_copied_bytes(
    secret: NodeSettings, make_request: Make, tmp_path: Path
) -> None:
    """Pitfall 14: no noise can be computed again from what is published."""
    assert secret.key_file is not None
    content = json.loads(secret.key_file.read_text())
    copied = tmp_path / "copied.key"
    copied.touch(mode=0o600)
    copied.write_text(json.dumps({**content, "run": "tiny/2"}))
    other = replace(secret, key_file=copied, ledger=tmp_path / "2.sqlite")
    assert_unrelated(noises(make_request, secret, other))


def noises(make_request: Make, *owners: NodeSettings) -> list[torch.Tensor]:
    """Releases that are only noise, of two clients of each owner in two rounds."""
    rows = torch.zeros(100, 4)
    requests = [make_request(clip="record", rate=1e-12, rows=rows, round=t) for t in (1, 2)]
    nodes = [Node(owner, client) for owner in owners for client in (0, 1)]
    return [answer(node, request) for node in nodes for request in requests]


def assert_unrelated(releases: list[torch.Tensor]) -> None:
    table = torch.stack([release.flatten() for release in releases]).double()
    correlation = torch.corrcoef(table).fill_diagonal_(0.0)
    assert float(correlation.abs().max()) < 0.25  # 400 entries: five standard errors


def test_a_request_that_differs_in_one_bit_is_refused(
    secret: NodeSettings, make_request: Make
) -> None:
    """Pitfall 14: fresh noise on an answered round would be an uncharged release."""
    request = make_request()
    answer(Node(secret, 0), request)
    rows = request.rows.clone()
    rows.view(torch.int32)[0, 0] ^= 1
    with pytest.raises(ReleaseRefusedError, match="already answered another request"):
        answer(Node(secret, 0), replace(request, rows=rows))
    answer(Node(secret, 1), replace(request, rows=rows))  # another client has not answered yet


def test_records_outside_the_public_range_are_refused_whatever_is_sampled(
    settings: NodeSettings, make_request: Make, install_source: Callable[..., None]
) -> None:
    """An error that came when such a record is sampled would tell that it was."""
    points = torch.zeros(61, 4)
    points[:3] = 1e6
    fresh(install_source, lambda spec, split: (points, torch.arange(61) % 3))
    with pytest.raises(DataError, match="A private record leaves the public range"):
        answer(Node(replace(settings, partition=None), 0), make_request(rate=1e-12))


def test_a_place_is_claimed_before_its_answer_exists(
    secret: NodeSettings, make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pitfall 12: the charge comes before the release."""

    def crash(*arguments: object) -> torch.Tensor:
        raise RuntimeError("power cut")

    request = make_request()
    with monkeypatch.context() as patch:
        patch.setattr(gradient_module, "client_gradient", crash)
        with pytest.raises(RuntimeError):
            answer(Node(secret, 0), request)
    with pytest.raises(ReleaseRefusedError):
        answer(Node(secret, 0), replace(request, rows=request.rows + 1))
    answer(Node(secret, 0), request)


@pytest.mark.parametrize(
    ("schedule", "label", "scheduled"),
    [("class", None, 1), ("class", 2, 1), ("class", 0, 1), ("joint", 1, None)],
)
def test_a_class_that_is_not_scheduled_is_refused(
    settings: NodeSettings, make_request: Make, schedule: str, label: int | None, scheduled: object
) -> None:
    """Pitfall 3: the plan charges one use in C rounds."""
    request = make_request(schedule=schedule, label=label, round=1)
    with pytest.raises(ReleaseRefusedError, match=f"Round 1 is for class {scheduled} at client 0"):
        answer(Node(settings, 0), request)


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
    """Pitfall 17: a shorter list would fail only at batches, or clients, with the last class."""
    request = make_request(classes=classes, rate=1e-12, row_labels=torch.zeros(6).long())
    for node in (Node(settings, client) for client in range(3)):
        with pytest.raises(ValueError, match=f"The request has {classes} classes, the data 3"):
            answer(node, request)
        with pytest.raises(ValueError, match=f"The request has {classes} classes, the data 3"):
            upload(node, plan=replace(PLAN, classes=classes))


def test_an_unconditional_request_is_answered(settings: NodeSettings, make_request: Make) -> None:
    request = make_request(classes=1, row_labels=torch.zeros(6).long(), label_weight=0.0)
    assert answer(Node(settings, 0), request).shape == (6, 4)


# Local mode


@pytest.mark.parametrize("kind", ["reproducible", "secret"])
def test_the_same_request_gets_the_same_bytes(
    settings: NodeSettings, secret: NodeSettings, kind: str
) -> None:
    """Pitfall 9: privatized once means the same bytes again, or a refusal."""
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
        reply = privatized(node, PrivatizeRequest(PLAN, chunk, 8), plan_digest(PLAN))
        assert reply.chunks == math.ceil(21 / 8)
        assert len(reply.values) == len(reply.labels)
        sizes.append(len(reply.labels))
    assert sizes == [8, 8, 5, 0, 0, 0]


def test_a_second_plan_is_refused_under_a_secret_key(secret: NodeSettings) -> None:
    """Pitfall 9: a second, independently noised copy would cost ε again."""
    upload(Node(secret, 0))
    for other in (replace(PLAN, epsilon=3.5), replace(PLAN, label_epsilon=2.0)):
        with pytest.raises(ReleaseRefusedError, match="reserved for another plan"):
            upload(Node(secret, 0), plan=other)
    upload(Node(secret, 0))


def test_a_second_plan_is_answered_under_reproducible_noise(settings: NodeSettings) -> None:
    """A simulation's noise is not secret, and its runs are compared."""
    node = Node(settings, 0)
    first = upload(node)
    second = upload(node, plan=replace(PLAN, epsilon=6.0))
    assert not torch.equal(first, second)
    assert torch.equal(upload(node), first)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_a_map_for_other_records_is_refused(settings: NodeSettings, size: int) -> None:
    """The sensitivity of one for smaller records would be too small for these."""
    with pytest.raises(ValueError, match=r"map is for records of shape \(., ?\), the data's \(4"):
        upload(Node(settings, 0), plan=replace(PLAN, map=PointBall("l1", 1.0, size)))


def test_the_same_plan_of_another_run_is_refused_without_a_ceiling(secret: NodeSettings) -> None:
    """A simulation's ledger admits only its own run."""
    upload(Node(secret, 0))
    other = PrivatizeRequest(PLAN, 0, 100, run="another")
    with pytest.raises(ReleaseRefusedError, match="admits only one plan"):
        privatized(Node(secret, 0), other, plan_digest(PLAN))


# Many uses in one message


@pytest.mark.medium
def test_uses_of_one_message_are_claimed_together_and_answered_in_order(
    secret: NodeSettings, make_request: Make
) -> None:
    node = Node(secret, 0)
    requests = [make_request(round=t) for t in (1, 2, 3)]
    replies = gradients(node, requests, b"message")
    again = gradients(Node(secret, 0), requests, b"message")
    assert all(torch.equal(a, b) for a, b in zip(replies, again, strict=True))
    with pytest.raises(ReleaseRefusedError, match="round 3"):
        gradients(node, [make_request(round=t) for t in (4, 3)], b"other message")
    gradients(node, [make_request(round=4)], b"third message")  # the refusal has claimed nothing


def test_uses_of_one_message_have_noise_of_their_own(
    secret: NodeSettings, make_request: Make
) -> None:
    """Pitfall 5: no two clients or rounds share noise."""
    rows = torch.zeros(100, 4)
    requests = [make_request(clip="record", rate=1e-12, rows=rows, round=t) for t in (1, 2, 3)]
    assert_unrelated(gradients(Node(secret, 0), requests, b"m"))


def test_uses_under_reproducible_noise_do_not_depend_on_their_message(
    settings: NodeSettings, make_request: Make
) -> None:
    requests = [make_request(round=t) for t in (1, 2)]
    together = gradients(Node(settings, 0), requests, b"m")
    for request, reply in zip(requests, together, strict=True):
        assert torch.equal(answer(Node(settings, 0), request), reply)


def test_uses_that_do_not_belong_together_are_refused(
    settings: NodeSettings, make_request: Make
) -> None:
    node = Node(settings, 0)
    one = make_request(round=1)
    for requests, message in (
        ([], "at least one round"),
        ([one, one], "for one round"),
        ([one, make_request(round=2, sigma=2.0)], "one plan and one run"),
        ([one, replace(make_request(round=2), run="other")], "one plan and one run"),
        ([one, replace(make_request(round=2), share=2)], "divide the noise"),
    ):
        with pytest.raises(ValueError, match=message):
            gradients(node, requests, b"m")


# Changed data


@pytest.mark.parametrize("change", ["one record", "one value", "one label", "the order"])
def test_the_same_request_on_changed_data_never_gets_the_same_noise(
    secret: NodeSettings, make_request: Make, install_source: Callable[..., None], change: str
) -> None:
    """Pitfall 14: the difference of two answers with one noise is exact."""
    request = make_request()
    values = torch.arange(244.0).reshape(61, 4) / 1000
    labels = torch.arange(61) % 3

    def changed(spec: object, split: str) -> tuple[torch.Tensor, torch.Tensor]:
        if change == "one record":
            return values[:60], labels[:60]
        if change == "one value":
            return values + 1e-3 * (torch.arange(61) == 7).unsqueeze(1), labels
        if change == "one label":
            return values, torch.where(torch.arange(61) == 6, 2 - labels, labels)
        return values.flip(0), labels.flip(0)

    alone = replace(secret, partition=None, ledger=secret.ledger.with_name("alone.sqlite"))
    fresh(install_source, lambda spec, split: (values, labels))
    answer(Node(alone, 0), request)
    fresh(install_source, changed)
    with pytest.raises(ReleaseRefusedError, match="have changed since the first answer"):
        answer(Node(alone, 0), request)


def fresh(install_source: Callable[..., None], read: Callable[..., object]) -> None:
    close_nodes()
    sources.forget()
    install_source(read)


def test_more_records_than_the_plan_accounts_for_are_not_used(
    settings: NodeSettings, make_request: Make
) -> None:
    """A capacity's overflow is bounded for that many."""
    request, node = make_request(clip="record", rate=0.5), Node(settings, 0)
    enough, few = (replace(request.plan, capacity=20, nominal_records=n) for n in (21, 20))
    answer(node, replace(request, plan=enough))
    with pytest.raises(DataError, match="more records than the plan accounts for"):
        answer(node, replace(request, plan=few))


# Under a policy


def node_of(path: Path, client: int = 0) -> Node:
    close_nodes()
    return Node(NodeSettings.from_policy(read_policy(path), clients=2), client)


@pytest.mark.parametrize("backend", ["fast", "secure"])
def test_an_identical_request_gets_its_stored_bytes_in_another_process(
    policy_file: Callable[..., Path], make_request: Make, backend: str
) -> None:
    path = policy_file(backend=backend)
    request = make_request(sigma=2.0)
    first = answer(node_of(path), request)
    assert torch.equal(answer(node_of(path), request), first)
    assert torch.equal(upload(node_of(path), 7), upload(node_of(path), 100))
    names = {file.suffix for file in (path.parent / "state" / "replies").iterdir()}
    assert names == {".reply"}


def test_a_released_reply_that_is_gone_is_never_noised_again(
    policy_file: Callable[..., Path], make_request: Make
) -> None:
    """Pitfall 9: privatized once means the same bytes again, or a refusal."""
    path = policy_file(backend="secure")
    answer(node_of(path), make_request())
    upload(node_of(path))
    for file in (path.parent / "state" / "replies").iterdir():
        file.unlink()
    for ask in (lambda: answer(node_of(path), make_request()), lambda: upload(node_of(path))):
        with pytest.raises(ReleaseRefusedError, match="stored bytes are gone: it is never noised"):
            ask()


@pytest.mark.parametrize("step", ["compute", "put", "released"])
def test_a_crash_overcounts_and_never_releases_twice(
    policy_file: Callable[..., Path], make_request: Make, step: str
) -> None:
    """Pitfall 12: kill -9 after the claim, after the reply was computed, after it was stored."""
    path = policy_file(backend="secure")
    request = make_request()
    replies = path.parent / "state" / "replies"
    process = multiprocessing.get_context("fork").Process(target=_die, args=(path, request, step))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    stored = list(replies.iterdir()) if replies.exists() else []
    assert len(stored) == (step == "released")

    with pytest.raises(ReleaseRefusedError, match="answered another request in round 1"):
        answer(node_of(path), replace(request, rows=request.rows + 1))
    first = answer(node_of(path), request)  # nothing had left: under the same charge
    assert torch.equal(answer(node_of(path), request), first)
    if stored:
        assert torch.equal(load_reply(stored[0].read_bytes()[32:])["1"], first)


def _die(path: Path, request: GradientRequest, step: str) -> None:
    def die(*arguments: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if step == "compute":
        gradient_module.client_gradient = die  # type: ignore[assignment]
    elif step == "put":
        ReplyStore.put = die  # type: ignore[assignment, method-assign]
    else:
        Ledger.note_released = die  # type: ignore[assignment, method-assign]
    answer(node_of(path), request)


def test_policy_and_budget_refuse_before_any_record_is_read(
    policy_file: Callable[..., Path], make_request: Make, install_source: Callable[..., None]
) -> None:
    def read(spec: object, split: str) -> object:
        raise AssertionError("the data were touched")

    fresh(install_source, read)
    path = policy_file(epsilon=1.0)
    with pytest.raises(PolicyRefusedError, match="maximum_clip_bound"):
        answer(node_of(path), make_request(bound=0.6))
    unlisted = LocalPlan("gaussian", PointBall("l2", 1.0, 4), 3.0, 1e-9)
    with pytest.raises(PolicyRefusedError, match="the message asks for gaussian"):
        upload(node_of(path), plan=unlisted)
    with pytest.raises(BudgetError, match=r"of ward's budget ε = 1, "):
        answer(node_of(path), make_request())
    with pytest.raises(BudgetError, match=r"costs ε = 4, δ = 0 \(replace-one\)"):
        upload(node_of(path))


def test_a_real_nodes_ledger_survives_a_power_cut(
    policy_file: Callable[..., Path], secret: NodeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulation's ledger need not survive: nobody pulls the machine's plug."""
    asked = []

    def opened(path: Path, *, durable: bool) -> Ledger:
        asked.append(durable)
        return Ledger(path, durable=durable)

    monkeypatch.setattr(node_module, "Ledger", opened)
    upload(node_of(policy_file()))
    upload(Node(secret, 0))
    assert asked == [True, False]


@pytest.mark.parametrize("backend", ["fast", "secure"])
def test_a_ledger_that_was_put_back_answers_nothing(
    policy_file: Callable[..., Path], make_request: Make, backend: str
) -> None:
    """Pitfall 16: empty, or older than the replies beside it, it would spend a budget again."""
    path = policy_file(backend=backend)
    ledger = path.parent / "state" / "ledger.sqlite"
    answer(node_of(path), replace(make_request(), run="one"))
    close_nodes()
    with sqlite3.connect(ledger) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert len(connection.execute("SELECT * FROM claims").fetchall()) == 1
    older = ledger.read_bytes()
    answer(node_of(path), replace(make_request(), run="two"))
    close_nodes()
    for content in (older, b""):
        for file in ledger.parent.glob("ledger.sqlite*"):
            file.unlink()
        ledger.touch(mode=0o600)
        ledger.write_bytes(content)
        with pytest.raises(LedgerError, match="does not know every reply"):
            answer(node_of(path), replace(make_request(), run="three"))


def test_budgets_hold_across_runs_restarts_and_contents(
    policy_file: Callable[..., Path], make_request: Make, install_source: Callable[..., None]
) -> None:
    """Pitfalls 6 and 16."""
    request = make_request(sigma=5.0, rate=0.1)
    path = policy_file(epsilon=2.5 * request.plan.epsilon())
    answer(node_of(path), replace(request, run="one"))
    fresh(install_source, lambda spec, split: (torch.zeros(62, 4), torch.arange(62) % 3))
    answer(node_of(path), replace(request, run="two"))
    with pytest.raises(BudgetError):
        answer(node_of(path), replace(request, run="three"))


@pytest.mark.medium
def test_more_records_than_the_policy_states_answer_nothing_at_all(
    policy_file: Callable[..., Path], make_request: Make, install_source: Callable[..., None]
) -> None:
    """An answer that depended on the plan would lead a server to the exact size."""
    points, labels = torch.zeros(65, 4), torch.arange(65) % 3
    fresh(install_source, lambda spec, split: (points, labels))
    path = policy_file()
    request = make_request(clip="record", rate=0.02)
    for nominal in (64, 1000):
        plan = replace(request.plan, capacity=64, nominal_records=nominal)
        with pytest.raises(DataError, match="public nominal_records=64: raise that number"):
            answer(node_of(path), replace(request, plan=plan, run=f"nominal {nominal}"))


def test_a_policy_may_refuse_changed_data(
    policy_file: Callable[..., Path], make_request: Make, install_source: Callable[..., None]
) -> None:
    path = policy_file(data={"on_change": "refuse"})
    answer(node_of(path), make_request())
    fresh(install_source, lambda spec, split: (torch.zeros(62, 4), torch.arange(62) % 3))
    with pytest.raises(ReleaseRefusedError, match="data of 'ward' have changed"):
        answer(node_of(path), replace(make_request(), run="again"))


def test_a_node_with_other_data_than_its_policy_is_refused(
    policy_file: Callable[..., Path],
) -> None:
    settings = NodeSettings.from_policy(read_policy(policy_file()))
    other = replace(settings, data=replace(settings.data, nominal_records=7))
    with pytest.raises(ConfigError, match=r"policy.toml is for other data .*from_policy"):
        Node(other, 0)


@pytest.mark.parametrize("broken", ["ledger.sqlite", "replies"])
def test_a_node_that_cannot_write_releases_nothing(
    policy_file: Callable[..., Path], make_request: Make, broken: str
) -> None:
    path = policy_file()
    NodeSettings.from_policy(read_policy(path))
    (path.parent / "state" / broken).mkdir()
    if broken == "replies":
        (path.parent / "state" / broken).rmdir()
        (path.parent / "state" / broken).touch()
    with pytest.raises(LedgerError):
        answer(node_of(path), make_request())


def test_simulated_clients_under_a_policy_have_a_budget_each(
    policy_file: Callable[..., Path], make_request: Make
) -> None:
    request = make_request()
    path = policy_file(epsilon=1.1 * request.plan.epsilon())
    settings = NodeSettings.from_policy(read_policy(path), clients=3, partition=Iid())
    for client in range(3):
        answer(Node(settings, client), request)
    with pytest.raises(BudgetError, match="ward/client-1"):
        answer(Node(settings, 1), replace(request, run="another"))


@pytest.mark.parametrize("shape", [[1, 9000, 9000], [9000, 9000], [5], [2**40], "4", None, [4, 1]])
@pytest.mark.parametrize("name", ["pixel", "dct"])
def test_a_view_of_other_records_is_refused_before_it_is_built(
    settings: NodeSettings,
    make_request: Make,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    shape: object,
) -> None:
    """Building a view takes time and memory in proportion to its shape."""

    def build(view: object) -> None:
        raise AssertionError("a view was built")

    monkeypatch.setattr("fedsink.clients.answers.base.view_from_dict", build)
    monkeypatch.setattr("fedsink.clients.records.shard.view_from_dict", build)
    node = Node(settings, 0)
    request = replace(make_request(), view={"name": name, "shape": shape, "radius": 9.0})
    with pytest.raises(ValueError, match="view is for records of another shape than the data's"):
        answer(node, request)
    assert "shard" not in vars(node)
    with pytest.raises(AssertionError):
        answer(node, make_request())
