from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fedsink.errors import PrivacyError
from fedsink.privacy import (
    LOCAL_NOISE,
    BatchClip,
    ClassSchedule,
    JointSchedule,
    NoiseShare,
    PrivacyPlan,
    RecordClip,
    TurnSchedule,
)

PLAN = PrivacyPlan(0.2, 1.5, 300, RecordClip(3.0), ClassSchedule(10), 1e-5)
SHARED = NoiseShare("secure_aggregation")


@pytest.mark.parametrize("clip", [BatchClip(3.0), RecordClip(3.0)])
@pytest.mark.parametrize(
    "schedule", [JointSchedule(), ClassSchedule(10), ClassSchedule(3), TurnSchedule(4)]
)
@pytest.mark.parametrize(("clients", "tolerated"), [(10, 0), (105, 0), (105, 7), (30, 2)])
def test_the_variances_of_n_shares_add_up_to_the_plans(clip, schedule, clients, tolerated):
    plan = replace(PLAN, clip=clip, schedule=schedule)
    if clients // schedule.cohorts <= tolerated:
        return
    share = NoiseShare("secure_aggregation", tolerated)
    for client in range(clients):
        cohort = schedule.cohort(client, clients)
        n = share.parts(schedule, client, clients)
        assert n == cohort - tolerated
        own = plan.with_noise(1 / n)
        assert n * own.noise_std**2 == pytest.approx(plan.noise_std**2, rel=1e-12)
        assert cohort * own.noise_std**2 >= plan.noise_std**2 * (1 - 1e-12)
        # The noise hides the same sum: clip, sampling and schedule are those of the plan.
        assert replace(own, noise_multiplier=plan.noise_multiplier) == plan


def test_a_cohort_of_one_adds_the_whole_noise():
    for clients in (1, 7, 10):
        for client in range(clients):
            n = SHARED.parts(PLAN.schedule, client, clients)
            assert PLAN.with_noise(1 / n) is PLAN
        assert not SHARED.gains(PLAN.schedule, clients)
    assert SHARED.gains(PLAN.schedule, 11)
    assert SHARED.gains(JointSchedule(), 2)
    assert not NoiseShare("secure_aggregation", 1).gains(JointSchedule(), 2)


def test_local_noise_is_whole_whatever_the_cohort():
    """Pitfall 19."""
    assert {LOCAL_NOISE.parts(JointSchedule(), k, 50) for k in range(50)} == {1}
    assert not LOCAL_NOISE.gains(JointSchedule(), 50)


@pytest.mark.parametrize("clients", [1, 2, 3, 4, 20, 23])
@pytest.mark.parametrize(
    "schedule", [JointSchedule(), ClassSchedule(3), ClassSchedule(10), TurnSchedule(4)]
)
def test_a_cohort_is_whoever_is_asked_the_same_in_every_round(schedule, clients):
    for client in range(clients):
        for round in (1, 2, 5, 99):
            if not schedule.answers(client, round):
                continue
            same = [
                other
                for other in range(clients)
                if schedule.label(other, round) == schedule.label(client, round)
                and schedule.answers(other, round) == schedule.answers(client, round)
            ]
            assert schedule.cohort(client, clients) == len(same)
    sizes = {schedule.cohort(client, clients) for client in range(clients)}
    assert SHARED.cohorts(schedule, clients) == sorted(sizes)


def test_colluders_leave_less_noise_and_all_others_leave_ones_own():
    clients, schedule = 40, JointSchedule()
    plan = replace(PLAN, schedule=schedule)
    of_whole = [SHARED.left(plan, clients, x).noise_multiplier for x in range(45)]
    assert of_whole[0] == plan.noise_multiplier
    assert of_whole[10] == pytest.approx(plan.noise_multiplier * math.sqrt(30 / 40))
    assert of_whole == sorted(of_whole, reverse=True)
    assert of_whole[39:] == [plan.with_noise(1 / 40).noise_multiplier] * 6
    # Tolerated drop-outs are counted as gone: the others' shares are larger.
    tolerant = NoiseShare("secure_aggregation", 4)
    assert tolerant.left(plan, clients, 0) == plan
    found = tolerant.left(plan, clients, 9).noise_multiplier
    assert found == pytest.approx(plan.noise_multiplier * math.sqrt(27 / 36))


def test_of_cohorts_of_two_sizes_the_worse_one_is_told():
    # Cohorts of 2 and 3: a missing share is half of the small one's noise, and a single
    # reply has a third of the large one's.
    schedule, clients = ClassSchedule(10), 25
    plan = replace(PLAN, schedule=schedule)
    assert SHARED.cohorts(schedule, clients) == [2, 3]
    assert SHARED.left(plan, clients, 1) == plan.with_noise(1 / 2)
    assert SHARED.left(plan, clients, 2) == plan.with_noise(1 / 3)


@pytest.mark.medium
def test_fewer_shares_cost_more_epsilon():
    whole = PLAN.epsilon()
    assert PLAN.with_noise(1 / 4).epsilon() > 2 * whole
    assert PLAN.with_noise(1.0) is PLAN


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("global",), "noise.share is local or secure_aggregation, not 'global'."),
        ((None,), "noise.share is local or secure_aggregation, not None."),
        (("secure_aggregation", -1), "tolerate_dropouts must be a whole number of at least 0"),
        (("secure_aggregation", 1.0), "whole number of at least 0, not 1.0"),
        (("secure_aggregation", True), "whole number of at least 0, not True"),
        (("secure_aggregation", 0, 15), "noise.bits must be a whole number from 16 to 60"),
        (("secure_aggregation", 0, 61), "noise.bits must be a whole number from 16 to 60"),
        (("secure_aggregation", 0, 32.0), "noise.bits must be"),
        (("secure_aggregation", 0, 32, "both"), "noise.draw is auto, clients, sum, not 'both'"),
        (("local", 1), "tolerate_dropouts=1 belongs to noise.share=secure_aggregation"),
    ],
)
def test_bad_values_are_refused(values, message):
    with pytest.raises(PrivacyError, match=message):
        NoiseShare(*values)


def test_the_loss_of_a_whole_cohort_cannot_be_tolerated():
    NoiseShare("secure_aggregation", 1).check(ClassSchedule(10), 25)
    with pytest.raises(PrivacyError, match=r"=2 must be below the smallest cohort, and 2 of clie"):
        NoiseShare("secure_aggregation", 2).check(ClassSchedule(10), 25)
    with pytest.raises(PrivacyError, match=r"and 1 of clients=9 is asked the same"):
        NoiseShare("secure_aggregation", 1).check(ClassSchedule(10), 9)
