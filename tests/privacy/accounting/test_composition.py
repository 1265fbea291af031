"""Several plans on the same records, against dp_accounting and closed forms."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as library
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from scipy.special import ndtr, ndtri

from fedsink.errors import PrivacyError
from fedsink.privacy import (
    BatchClip,
    ClassSchedule,
    CriticClip,
    JointSchedule,
    PrivacyPlan,
    RecordClip,
    composed_epsilon,
)
from fedsink.privacy.accounting.accountants import gaussian_delta, gaussian_epsilon
from fedsink.privacy.accounting.capacity import overflow_probability
from fedsink.privacy.accounting.composition import trade_off

JOINT = JointSchedule()
FIRST = PrivacyPlan(0.5, 8.0, 3, RecordClip(1.0), JOINT, 1e-5)
SECOND = PrivacyPlan(0.2, 2.0, 100, RecordClip(3.0), ClassSchedule(10), 1e-5)
WHOLE = PrivacyPlan(1.0, 6.0, 4, BatchClip(1.0), JOINT, 1e-5)


@pytest.mark.medium
@pytest.mark.parametrize(
    "plans",
    [[FIRST, SECOND], [WHOLE, SECOND], [WHOLE, FIRST, SECOND], [WHOLE, replace(WHOLE, rounds=9)]],
    ids=["two", "one unsampled", "three", "all unsampled"],
)
def test_the_total_is_that_of_dp_accounting(plans: list[PrivacyPlan]) -> None:
    oracle = PLDAccountant()
    for plan in plans:
        oracle.compose(plan.event)
    total = composed_epsilon(plans)
    assert total == pytest.approx(oracle.get_epsilon(1e-5), rel=1e-4)
    assert max(plan.epsilon() for plan in plans) < total < sum(plan.epsilon() for plan in plans)


def test_without_amplification_each_use_is_a_gaussian() -> None:
    precision = sum(plan.uses / plan.noise_multiplier**2 for plan in (FIRST, SECOND))
    exact = gaussian_epsilon(precision**-0.5, 1e-5)
    assert composed_epsilon([FIRST, SECOND], amplified=False) == pytest.approx(exact, rel=1e-9)


CASES: dict[str, dict[str, Any]] = {
    "add-remove": {},
    "capacity": {"capacity": 60, "nominal_records": 100, "rate": 0.2, "noise_multiplier": 4.0},
    "replace-one": {"adjacency": "replace-one"},
    "replace-one, classes": {"adjacency": "replace-one", "schedule": ClassSchedule(2)},
    "replace-one, batch": {"adjacency": "replace-one", "clip": BatchClip(1.0)},
    "replace-one, whole": {"adjacency": "replace-one", "rate": 1.0},
    "user": {"adjacency": "user", "clip": CriticClip(1.0, 2), "rate": 1.0},
    "client": {"adjacency": "client", "clip": BatchClip(1.0)},
    "critics": {"clip": CriticClip(1.0, 2), "rate": 1.0},
    "critics in secret": {"clip": CriticClip(1.0, 2), "rate": 0.5, "adjacency": "replace-one"},
}


@pytest.mark.medium
@pytest.mark.quick("add-remove", "client", "critics")
@pytest.mark.parametrize("case", CASES)
def test_two_halves_of_a_plan_are_the_plan_under_each_adjacency(case: str) -> None:
    half = replace(PrivacyPlan(0.3, 6.0, 10, RecordClip(1.0), JOINT, 1e-5), **CASES[case])
    whole = replace(half, rounds=20)
    assert composed_epsilon([half]) == pytest.approx(half.epsilon(), rel=1e-6)
    assert composed_epsilon([half, half]) == pytest.approx(whole.epsilon(), rel=1e-3)
    assert composed_epsilon([half, half], amplified=False) == pytest.approx(
        whole.epsilon_unamplified(), rel=1e-3
    )


def test_full_batches_of_all_plans_are_paid_from_the_one_delta() -> None:
    full = replace(FIRST, capacity=73, nominal_records=100)
    overflow = overflow_probability(0.5, 73, 100, 3)
    assert 1e-6 < overflow < 4e-6
    [left] = {composed_epsilon([replace(p, delta=1e-5 - 2 * overflow) for p in (FIRST, FIRST)])}
    assert composed_epsilon([full, full]) == pytest.approx(left, rel=1e-6)
    assert composed_epsilon([replace(full, delta=overflow)] * 2) == math.inf


def test_so_many_uses_that_no_grid_serves_are_the_sum_of_the_plans() -> None:
    many = PrivacyPlan(1e-3, 0.02, 10**6, RecordClip(1.0), JOINT, 1e-5)
    parts = [replace(plan, delta=5e-6).epsilon() for plan in (many, FIRST)]
    assert composed_epsilon([many, FIRST]) == pytest.approx(sum(parts), rel=1e-6)


def trade_off_of(plans: list[PrivacyPlan]) -> dict[str, float]:
    return trade_off([plan.spent() for plan in plans])


SOLVED: dict[str, Any] = {
    "rate": 0.2, "clip": RecordClip(3.0), "schedule": ClassSchedule(10), "delta": 1e-5,
}  # fmt: skip


@pytest.mark.medium
def test_a_total_is_solved_for_and_tight() -> None:
    alone = PrivacyPlan.solve(**SOLVED, eps=2.0, rounds=100)
    plan = PrivacyPlan.solve(**SOLVED, eps=2.0, rounds=100, before=[FIRST])
    assert plan.noise_multiplier > alone.noise_multiplier
    assert composed_epsilon([FIRST, plan]) <= 2.0
    less = replace(plan, noise_multiplier=plan.noise_multiplier * 0.998)
    assert composed_epsilon([FIRST, less]) > 2.0
    sigma = plan.noise_multiplier
    rounds = PrivacyPlan.solve(**SOLVED, eps=2.0, sigma=sigma, before=[FIRST]).rounds
    assert 95 <= rounds <= 110


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"eps": 0.2}, r"have spent ε = 0\.396\d of the total eps=0\.2, which leaves nothing"),
        ({"delta": 1e-6}, "has delta=1e-05, and this one 1e-06: one total"),
        ({"adjacency": "client", "clip": BatchClip(1.0)}, "adjacency=add-remove, and this one cl"),
        ({"accountant": "rdp"}, "the rdp accountant has no bound"),
    ],
)
def test_what_composes_with_no_earlier_plan_is_named(changes: Any, words: str) -> None:
    with pytest.raises(PrivacyError, match=words):
        PrivacyPlan.solve(**{**SOLVED, "eps": 2.0, "rounds": 10, "before": [FIRST], **changes})


@pytest.mark.medium
@pytest.mark.quick("*-1.0")
@pytest.mark.parametrize("rate", [1.0, 1 - 1e-9])
@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_the_trade_off_of_a_gaussian_is_its_closed_form(mu: float, rate: float) -> None:
    """Also through the loss distribution, which is that of a sampled plan."""
    told = trade_off_of([PrivacyPlan(rate, 2.0 / mu, 4, RecordClip(1.0), JOINT, 1e-5)])
    exact = float(ndtr(ndtri(1e-3) + mu))
    assert exact <= told["true_positive_rate"] * (1 + 1e-9) <= exact * 1.001
    assert mu <= told["mu"] * (1 + 1e-9) <= mu * 1.01


@pytest.mark.medium
def test_the_trade_off_of_sampled_plans_lies_under_its_gaussian() -> None:
    told = trade_off_of([FIRST, SECOND])
    losses = library.from_gaussian_mechanism(8.0, sampling_prob=0.5).self_compose(3)
    losses = losses.compose(
        library.from_gaussian_mechanism(2.0, sampling_prob=0.2).self_compose(10)
    )
    epsilons = np.linspace(0, losses.get_epsilon_for_delta(1e-9), 301)
    deltas = np.array(losses.get_delta_for_epsilon(epsilons))
    least = np.minimum(
        np.exp(epsilons) * 1e-3 + deltas, 1 - np.exp(-epsilons) * (1 - 1e-3 - deltas)
    ).min()
    assert told["true_positive_rate"] == pytest.approx(least, rel=1e-3)
    above = [gaussian_delta(1 / told["mu"], e) - d for e, d in zip(epsilons, deltas, strict=True)]
    assert min(above) > -1e-9
    under = [
        gaussian_delta(1.01 / told["mu"], e) - d for e, d in zip(epsilons, deltas, strict=True)
    ]
    assert min(under) < 0
    assert told["false_positive_rate"] == 1e-3
    assert told["but_for"] == 1e-9
    full = replace(FIRST, capacity=73, nominal_records=100)
    beside = (
        trade_off_of([full])["true_positive_rate"] - trade_off_of([FIRST])["true_positive_rate"]
    )
    assert beside == pytest.approx(full.overflow, rel=1e-6)


def test_a_trade_off_that_no_grid_tells_is_that_without_sampling() -> None:
    many = PrivacyPlan(1e-3, 50.0, 10**5, RecordClip(1.0), JOINT, 1e-5)
    assert trade_off_of([many])["mu"] == pytest.approx(math.sqrt(10**5) / 50.0)
