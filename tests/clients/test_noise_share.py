"""Replies that hold a share of the noise: by themselves, added up, judged and charged."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import Tensor

from fedsink.clients.answers.central import central_charge
from fedsink.clients.node import Node, close_nodes
from fedsink.clients.node_cohort import NodeCohort
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.policy import PolicyRefusedError
from fedsink.clients.owner.policy_file import read_policy
from fedsink.clients.records.shard import deal
from fedsink.errors import BudgetError, PrivacyError, ReleaseRefusedError
from fedsink.privacy.integer_gaussian import FixedPoint, IntegerGaussian
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.exchange import Content
from fedsink.protocol.packing import digest

from ..support.asking import gradient
from ..support.requests import GRID, pack_requests, shared

Make = Callable[..., GradientRequest]
CLIENTS, ROWS = 12, 1500


def p_value(noise: Tensor, std: float) -> float:
    """p-value of the hypothesis that this noise has this standard deviation."""
    return float(stats.kstest(noise.flatten().numpy(), "norm", args=(0.0, std)).pvalue)


def has_std(noise: Tensor, std: float) -> bool:
    """Tells whether it has, and with power: neither two thirds nor three halves of it fit."""
    others = (p_value(noise, factor * std) for factor in (2 / 3, 3 / 2))
    return p_value(noise, std) > 1e-6 and max(others) < 1e-12


def one_by_one(settings: NodeSettings, request: GradientRequest, cohort: list[int]) -> Tensor:
    message = digest("train.dp_sinkhorn", pack_requests([request]))
    replies = torch.stack([gradient(Node(settings, k), request, message) for k in cohort])
    return replies if request.share == 1 else GRID.decoded(replies)


@pytest.fixture
def many(settings: NodeSettings) -> NodeSettings:
    return replace(settings, clients=CLIENTS)


@pytest.fixture
def noise_alone(make_request: Make) -> Make:
    """Makes requests that sample nobody and have no self term: a reply is its noise."""

    def make(share: int, **more: object) -> GradientRequest:
        rows = torch.zeros(ROWS, 4)
        request = make_request(rate=1e-12, sigma=1.5, rows=rows, **more)
        return replace(shared(request, share), self_gradient=torch.zeros_like(rows))

    return make


@pytest.mark.parametrize("clip", ["record", "batch"])
@pytest.mark.parametrize("schedule", ["joint", "class"])
def test_a_reply_holds_its_share_and_the_cohorts_sum_the_plans_noise(
    many: NodeSettings, noise_alone: Make, clip: str, schedule: str
) -> None:
    label = None if schedule == "joint" else 2
    cohort = [k for k in range(CLIENTS) if label is None or (k + 1) % 3 == label]
    m = len(cohort)
    request = noise_alone(m, clip=clip, schedule=schedule, label=label)
    std = 1.5 * (1.0 if clip == "batch" else 0.5)  # σS with Δ = 0.5
    assert request.plan.noise_std == std
    replies = one_by_one(many, request, cohort)
    for noise, expected in ((replies, std / m**0.5), (replies.double().sum(0), std)):
        assert has_std(noise, expected)
    # Shares are independent, or the sum would have another variance in other cohorts.
    correlations = torch.corrcoef(replies.flatten(1)) - torch.eye(m)
    assert float(correlations.abs().amax()) < 6 / (4 * ROWS) ** 0.5


def test_tolerated_dropouts_leave_the_sum_of_the_others_with_the_plans_noise(
    many: NodeSettings, noise_alone: Make
) -> None:
    request = noise_alone(CLIENTS - 6, clip="record")
    replies = one_by_one(many, request, list(range(CLIENTS))).double()
    std = request.plan.noise_std
    assert p_value(replies[6:].sum(0), std) > 1e-6
    assert p_value(replies[:-6].sum(0), std) > 1e-6
    assert p_value(replies.sum(0), std * 2**0.5) > 1e-6
    assert p_value(replies.sum(0), std) < 1e-12


@pytest.mark.medium
@pytest.mark.parametrize("capacity", [None, 40])
@pytest.mark.parametrize("clip", ["record", "batch"])
def test_many_clients_at_once_add_the_same_shares(
    many: NodeSettings, make_request: Make, clip: str, capacity: int | None
) -> None:
    request = shared(make_request(clip=clip, bound=3.0, rate=0.5), CLIENTS)
    if capacity is not None:
        plan = replace(request.plan, capacity=capacity, nominal_records=61)
        request = replace(request, plan=plan)
    expected = one_by_one(many, request, list(range(CLIENTS)))
    content = Content(lambda: [request], lambda: pack_requests([request]))
    found = list(NodeCohort(many).answers("train.dp_sinkhorn", [content], [range(CLIENTS)]))
    replies = GRID.decoded(torch.cat([answers.replies for _, answers in found]).squeeze(1))
    torch.testing.assert_close(replies, expected, rtol=0, atol=1e-4)
    whole = one_by_one(many, shared(request, 1), list(range(CLIENTS)))
    assert not torch.allclose(whole.double(), expected, atol=0.1)


def test_noise_cannot_be_spread_over_more_clients_than_answer(
    many: NodeSettings, make_request: Make
) -> None:
    """A server would divide the noise away: the owner's settings give the size of the cohort."""
    for schedule, label, cohort in (("joint", None, 12), ("class", 1, 4)):
        request = make_request(schedule=schedule, label=label)
        node = Node(many, 0)
        gradient(node, shared(request, cohort), b"1")
        told = rf"over {cohort + 1} clients, .* are {cohort}"
        with pytest.raises(ReleaseRefusedError, match=told):
            gradient(node, shared(request, cohort + 1), b"2")


@pytest.mark.medium
def test_what_is_charged_is_the_reply_alone_unless_the_aggregation_is_trusted(
    make_request: Make,
) -> None:
    plan = make_request(clip="record", rate=0.3, sigma=2.0).plan
    share = IntegerGaussian(plan, 4, GRID, 24)
    whole, alone = central_charge(plan), central_charge(plan, share)
    trusted = central_charge(plan, share, trusted=True)
    weaker = replace(plan, noise_multiplier=1.0)  # 2/√4
    assert alone.event == weaker.event
    assert alone.epsilon() == weaker.epsilon() > 2 * whole.epsilon()
    assert trusted.event == whole.event
    assert trusted.epsilon() == whole.epsilon()
    # No two of them are one plan of one run, and whole noise reads as it always did.
    assert len({whole.plan_json, alone.plan_json, trusted.plan_json}) == 3
    assert "share" not in whole.plan_json


def _policy(policy_file: Callable[..., Path], epsilon: float, word: str) -> NodeSettings:
    path = policy_file(epsilon=epsilon)
    if word:
        path.write_text(f'{path.read_text()}secure_aggregation = "{word}"\n')
    return NodeSettings.from_policy(read_policy(path), clients=9)


@pytest.mark.medium
def test_a_real_node_refuses_a_share_and_charges_it_as_its_owner_says(
    policy_file: Callable[..., Path], make_request: Make
) -> None:
    request = make_request(clip="record", rate=0.3, sigma=3.0)
    request = shared(request, 9)
    sum_costs = request.plan.epsilon()
    alone_costs = request.own_plan.epsilon()
    assert alone_costs > 3 * sum_costs
    between = (sum_costs + alone_costs) / 2
    forbidden, dear = "allow.secure_aggregation: .* 9 cli", f"costs about ε = {alone_costs:.3g}"
    for epsilon, word, refused, told in (
        (1e6, "", PolicyRefusedError, forbidden),
        (1e6, "refused", PolicyRefusedError, forbidden),
        (between, "untrusted", BudgetError, dear),
    ):
        with pytest.raises(refused, match=told):
            gradient(Node(_policy(policy_file, epsilon, word), 0), request, b"1")
        close_nodes()
    settings = _policy(policy_file, between, "trusted")
    assert gradient(Node(settings, 0), request, b"1").shape == (6, 4)
    # The same run cannot continue with another share of the noise.
    coarser = replace(request, fixed_point=replace(GRID, granularity=2.0**-19))
    for other in (shared(request, 1), shared(request, 3), coarser):
        with pytest.raises(ReleaseRefusedError, match="reserved for another plan"):
            gradient(Node(settings, 0), replace(other, round=2), b"2")


def test_a_node_without_a_policy_charges_what_it_can_prove(
    secret: NodeSettings, make_request: Make
) -> None:
    request = shared(make_request(clip="record", sigma=2.0), 3)
    gradient(Node(secret, 0), request, b"1")
    assert secret.ledger is not None
    with sqlite3.connect(secret.ledger) as database:
        ((plan, event),) = database.execute("SELECT plan, event FROM runs").fetchall()
    use = json.loads(event)["event"]
    assert use["event"]["noise_multiplier"] == pytest.approx(2.0 / 3**0.5)
    assert (json.loads(plan)["noise_multiplier"], json.loads(plan)["share"]) == (2.0, 3)


def test_noise_that_does_not_fit_its_integers_is_refused_before_it_is_charged(
    secret: NodeSettings, make_request: Make
) -> None:
    request = shared(make_request(clip="record", sigma=2.0), 3)
    narrow = FixedPoint(granularity=2.0**-16, bits=16, radius=0.25)  # 12·s needs 17 bits or more
    with pytest.raises(PrivacyError, match=r"does not fit into noise\.bits=16"):
        gradient(Node(secret, 0), replace(request, fixed_point=narrow), b"1")
    assert secret.ledger is not None
    assert not secret.ledger.exists() or not _runs(secret.ledger)


def _runs(ledger: Path) -> list[tuple[int]]:
    with sqlite3.connect(ledger) as database:
        return database.execute("SELECT id FROM runs").fetchall()


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("clip", ["record", "batch"])
@pytest.mark.parametrize("capacity", [None, 40])
@pytest.mark.parametrize("schedule", ["joint", "class"])
def test_a_summed_cohort_has_the_sum_of_all_replies_but_for_its_noise(
    many: NodeSettings, make_request: Make, schedule: str, capacity: int | None, clip: str,
    shares: bool,
) -> None:  # fmt: skip
    """With next to no noise both are the clipped totals of all samples, up to rounding."""
    label = None if schedule == "joint" else 1
    cohort = [k for k in range(CLIENTS) if label is None or k % 3 == 0]
    request = make_request(
        clip=clip, bound=3.0, rate=0.5, sigma=1e-6, schedule=schedule, label=label
    )
    if capacity is not None:
        plan = replace(request.plan, capacity=capacity, nominal_records=61)
        request = replace(request, plan=plan)
    request = shared(request, len(cohort)) if shares else request
    total, summed = (
        _total(settings, request, cohort) for settings in (many, replace(many, pooled=True))
    )
    assert float(total.abs().amax()) > 1.0
    torch.testing.assert_close(summed, total, rtol=0, atol=1e-3)


@pytest.mark.parametrize("parts", [1, CLIENTS])
def test_a_summed_cohort_has_the_noise_of_all_its_clients(
    many: NodeSettings, noise_alone: Make, parts: int
) -> None:
    """Of one plan in all, where it is shared; else of one plan for each of the clients."""
    request = noise_alone(parts, clip="record")
    std = request.plan.noise_std * (CLIENTS / parts) ** 0.5
    for settings in (many, replace(many, pooled=True)):
        assert has_std(_total(settings, request, list(range(CLIENTS))), std)


@pytest.mark.parametrize("parts", [1, CLIENTS])
def test_only_the_first_block_of_a_cohort_has_its_noise(
    many: NodeSettings, noise_alone: Make, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    """Blocks of 4 clients: every block's sum counts once, whoever adds them up."""
    monkeypatch.setattr("fedsink.clients.node_cohort.summed_block", lambda clients: 4)
    request = noise_alone(parts, clip="record")
    content = Content(lambda: [request], lambda: pack_requests([request]))
    summed = NodeCohort(replace(many, pooled=True))
    found = list(summed.answers("train.dp_sinkhorn", [content], [range(CLIENTS)]))
    assert [list(answers.clients) for _, answers in found] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11],
    ]  # fmt: skip
    assert [bool(answers.replies.any()) for _, answers in found] == [True, False, False]
    noise = torch.cat([answers.replies for _, answers in found]).sum(0)
    noise = noise if parts == 1 else GRID.decoded(noise)
    assert p_value(noise, request.plan.noise_std * (CLIENTS / parts) ** 0.5) > 1e-6


def test_no_sum_is_made_without_one_of_its_clients(many: NodeSettings, noise_alone: Make) -> None:
    """A sum without its first client would have no noise at all."""
    sizes = deal(many).sizes
    for away in (0, 5):
        request = noise_alone(CLIENTS, clip="record")
        plan = replace(request.plan, capacity=1, nominal_records=int(sizes[away]) - 1)
        content = Content.received(pack_requests([replace(request, plan=plan)]))
        summed = NodeCohort(replace(many, pooled=True))
        [(_, answers)] = summed.answers("train.dp_sinkhorn", [content], [range(CLIENTS)])
        assert away in answers.failures
        assert len(answers.replies) == 0


def _total(settings: NodeSettings, request: GradientRequest, cohort: list[int]) -> Tensor:
    content = Content(lambda: [request], lambda: pack_requests([request]))
    found = list(NodeCohort(settings).answers("train.dp_sinkhorn", [content], [cohort]))
    assert not any(answers.failures for _, answers in found)
    total = torch.cat([answers.replies for _, answers in found]).sum(0)
    return total if request.share == 1 else GRID.decoded(total)
