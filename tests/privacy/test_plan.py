from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, replace

import dp_accounting
import numpy as np
import pytest
import torch
from scipy import stats

from fedsink.errors import PrivacyError
from fedsink.privacy import (
    BatchClip,
    ClassSchedule,
    JointSchedule,
    PrivacyPlan,
    RecordClip,
    Stream,
    epsilon,
)
from fedsink.privacy.accounting import pld_epsilon, rdp_epsilon

PLAN = PrivacyPlan(0.2, 2.0, 3000, RecordClip(8.0), ClassSchedule(10), 1e-5)
BATCH = PrivacyPlan(0.07, 0.9, 200, BatchClip(1.5), JointSchedule(), 1e-5)
PARTS = {"clip": RecordClip(8.0), "schedule": ClassSchedule(10), "delta": 1e-5}


def test_correction_1_the_noise_std_is_the_multiplier_times_the_clips_sensitivity():
    """Algorithm 1's 2Δσ for the batch clip, not Theorem 4.1's Δσ."""
    assert BATCH.noise_std == pytest.approx(2 * 1.5 * 0.9)
    assert PLAN.noise_std == pytest.approx(8.0 * 2.0)
    assert replace(PLAN, clip=BatchClip(8.0)).noise_std == 2 * PLAN.noise_std


def test_the_event_has_the_samplers_rate_the_noises_multiplier_and_the_schedules_uses():
    event = PLAN.event
    assert event.count == PLAN.uses == 300
    assert event.event.sampling_probability == PLAN.sampler.rate == 0.2
    multiplier = event.event.event.noise_multiplier
    assert multiplier == pytest.approx(PLAN.noise_std / PLAN.clip.sensitivity)
    assert isinstance(event.event, dp_accounting.PoissonSampledDpEvent)
    assert epsilon(event, PLAN.delta) == PLAN.epsilon()


def test_epsilon_uses_the_schedule():
    joint = replace(PLAN, schedule=JointSchedule())
    assert PLAN.epsilon() == pld_epsilon(0.2, 2.0, 300, 1e-5)
    assert joint.epsilon() == pld_epsilon(0.2, 2.0, 3000, 1e-5) > 2 * PLAN.epsilon()
    assert PLAN.epsilon("rdp") == rdp_epsilon(0.2, 2.0, 300, 1e-5)


@pytest.mark.parametrize("accountant", ["pld", "rdp", "prv"])
def test_epsilon_after_bounds_epsilon_at_every_round_and_ends_at_epsilon(accountant):
    exact = replace(PLAN, rounds=1)
    bounds = [PLAN.epsilon_after(rounds, accountant) for rounds in range(0, 3001)]
    assert bounds[0] == 0
    assert bounds[-1] == PLAN.epsilon(accountant)
    assert all(np.diff(bounds[:2991]) >= 0)
    for rounds in (1, 10, 11, 95, 500, 1234, 2500, 2990):
        true = replace(exact, rounds=rounds).epsilon("pld")
        assert true <= bounds[rounds] <= 1.3 * true


def test_epsilon_after_refuses_rounds_outside_the_plan():
    with pytest.raises(PrivacyError, match="covers 3000 rounds, received rounds=3001"):
        PLAN.epsilon_after(3001)
    with pytest.raises(PrivacyError, match="rounds must be an integer ≥ 0, received -1"):
        PLAN.epsilon_after(-1)


def test_every_coordinate_gets_independent_noise_of_the_plans_standard_deviation():
    total = torch.zeros(200, 100)
    noise = BATCH.release(total, Stream(b"key")).numpy()
    law = stats.norm(scale=BATCH.noise_std)
    assert stats.kstest(noise.ravel(), law.cdf).pvalue > 0.001
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(wrong * noise.ravel(), law.cdf).pvalue < 1e-9
    columns = np.corrcoef(noise.T)[np.triu_indices(100, 1)]
    assert abs(columns).max() < 5.5 / math.sqrt(200)
    assert stats.kstest(columns * math.sqrt(200), stats.norm.cdf).pvalue > 0.001


def test_release_adds_to_the_total_as_float32():
    total = torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
    noise = PLAN.release(torch.zeros(2, 3), Stream(b"key"))
    released = PLAN.release(total, Stream(b"key"))
    assert released.dtype == torch.float32
    torch.testing.assert_close(released, noise + total.float())
    assert not torch.equal(PLAN.release(total, Stream(b"other")), released)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nothing_is_released_where_the_total_is_not_finite(bad):
    with pytest.raises(PrivacyError, match="not finite: clip it before releasing"):
        PLAN.release(torch.tensor([0.0, bad]), Stream(b"key"))


@pytest.mark.parametrize("plan", [PLAN, BATCH])
def test_a_plan_survives_json_exactly(plan):
    awkward = replace(plan, rate=1 / 3, noise_multiplier=np.float64(0.1) * 3, rounds=np.int64(7))
    assert PrivacyPlan.from_dict(json.loads(json.dumps(awkward.to_dict()))) == awkward


def test_a_bad_table_is_refused():
    table = PLAN.to_dict()
    with pytest.raises(PrivacyError, match="entry 'delta' is missing or unknown"):
        PrivacyPlan.from_dict({k: v for k, v in table.items() if k != "delta"})
    with pytest.raises(PrivacyError, match="entry 'layer' is missing or unknown"):
        PrivacyPlan.from_dict(table | {"clip": {"name": "layer", "bound": 1.0}})
    with pytest.raises(PrivacyError, match="entry 'random' is missing or unknown"):
        PrivacyPlan.from_dict(table | {"schedule": {"name": "random", "classes": 1}})
    with pytest.raises(PrivacyError, match="must be tables with a name"):
        PrivacyPlan.from_dict(table | {"clip": "batch"})


def test_a_plan_cannot_be_changed_and_names_its_guarantee():
    with pytest.raises(FrozenInstanceError):
        PLAN.rounds = 1
    assert PLAN.adjacency == "zero-out/add-remove of one labelled record at one client"
    assert PLAN.unit == "record"


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_a_solved_plan_costs_at_most_the_target(accountant):
    solved = [
        PrivacyPlan.solve(rate=0.2, eps=10, rounds=3000, accountant=accountant, **PARTS),
        PrivacyPlan.solve(rate=0.2, eps=10, sigma=2.0, accountant=accountant, **PARTS),
    ]
    for plan in solved:
        assert 9.9 < plan.epsilon(accountant) <= 10
    assert solved[0].rounds == 3000
    assert solved[1].noise_multiplier == 2.0
    assert solved[1].rounds % 10 == 0
    assert replace(solved[1], rounds=solved[1].rounds + 1).epsilon(accountant) > 10


def test_epsilon_is_implied_by_sigma_and_rounds():
    assert PrivacyPlan.solve(rate=0.2, sigma=2.0, rounds=3000, **PARTS) == PLAN


def test_three_consistent_values_are_accepted_and_contradictions_say_what_they_imply():
    implied = PLAN.epsilon()
    for eps in (implied / 1.0009, implied, implied * 1.005):
        assert PrivacyPlan.solve(rate=0.2, eps=eps, sigma=2.0, rounds=3000, **PARTS) == PLAN
    for eps in (implied / 1.0011, 5.0, implied * 1.02, 50.0):
        with pytest.raises(PrivacyError, match="leave one of the three out"):
            PrivacyPlan.solve(rate=0.2, eps=eps, sigma=2.0, rounds=3000, **PARTS)
    message = r"sigma=1 and rounds=3000 at rate=0.2 cost ε = 27\.\d+, not eps=10: leave one"
    with pytest.raises(PrivacyError, match=message):
        PrivacyPlan.solve(rate=0.2, eps=10, sigma=1, rounds=3000, **PARTS)


@pytest.mark.parametrize("given", [{}, {"eps": 1.0}, {"sigma": 1.0}, {"rounds": 3}])
def test_fewer_than_two_values_are_refused(given):
    with pytest.raises(PrivacyError, match="two of eps, sigma and rounds are needed"):
        PrivacyPlan.solve(rate=0.2, **given, **PARTS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eps": 0.0}, "eps must be a finite number > 0, received 0.0"),
        ({"eps": -3}, "eps must be a finite number > 0, received -3"),
        ({"eps": 0.0, "sigma": 1.0}, "eps must be a finite number > 0, received 0.0"),
        ({"sigma": 0}, "sigma must be a finite number > 0, received 0"),
        ({"rounds": 0}, "rounds must be an integer ≥ 1, received 0"),
        ({"rounds": 1.5}, "rounds must be an integer ≥ 1, received 1.5"),
        ({"rate": 0}, r"rate must lie in \(0, 1\], received 0"),
        ({"delta": 1}, r"delta must lie in \(0, 1\), received 1"),
        ({"clip": 0.5}, "clip must be a BatchClip or a RecordClip, received 0.5"),
        ({"schedule": 10}, "schedule must be a JointSchedule or a ClassSchedule, received 10"),
        ({"accountant": "gdp"}, "accountant 'gdp' is unknown"),
    ],
)
def test_bad_values_are_refused(changes, message):
    arguments = {"rate": 0.2, "eps": 10.0, "rounds": 100, **PARTS} | changes
    with pytest.raises(PrivacyError, match=message):
        PrivacyPlan.solve(**arguments)
