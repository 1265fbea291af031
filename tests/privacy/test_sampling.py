from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsink.errors import PrivacyError
from fedsink.privacy import (
    ClassSchedule,
    JointSchedule,
    PickSchedule,
    PoissonSampler,
    Stream,
    TurnSchedule,
    domain,
)


def test_sample_sizes_are_binomial_not_fixed():
    sizes = [PoissonSampler(0.1).draw(50, Stream(b"key", i)).numel() for i in range(3000)]
    observed = np.bincount(np.minimum(sizes, 10), minlength=11)
    expected = 3000 * np.append(stats.binom(50, 0.1).pmf(range(10)), stats.binom(50, 0.1).sf(9))
    assert stats.chisquare(observed, expected).pvalue > 0.001


def test_a_sample_is_sorted_may_be_empty_and_does_not_depend_on_records_after_it():
    few = PoissonSampler(0.3).draw(100, Stream(b"key"))
    many = PoissonSampler(0.3).draw(1000, Stream(b"key"))
    assert torch.equal(few, many[many < 100])
    assert few.dtype == torch.int64
    assert torch.equal(few, few.unique())
    assert torch.equal(PoissonSampler(1).draw(5, Stream(b"key")), torch.arange(5))
    assert PoissonSampler(1e-9).draw(10, Stream(b"key")).shape == (0,)
    assert PoissonSampler(0.5).draw(0, Stream(b"key")).shape == (0,)


@pytest.mark.parametrize(("n", "capacity"), [(100, 90), (100, 100), (7, 30), (0, 3)])
def test_a_capacity_keeps_all_of_a_sample_that_fits(n, capacity):
    places, taken = PoissonSampler(0.3).draw_at_most(n, capacity, Stream(b"key"))
    assert places.shape == taken.shape == (capacity,)
    assert (places.dtype, taken.dtype) == (torch.int64, torch.bool)
    expected = PoissonSampler(0.3).draw(n, Stream(b"key"))
    assert torch.equal(places[taken].sort().values, expected)
    assert len(places.unique()) == capacity  # an empty place names another record, or none


@pytest.mark.medium
def test_a_capacity_keeps_a_uniformly_random_part_of_a_larger_sample():
    n, capacity, rounds = 8, 3, 4000
    kept = torch.zeros(n)
    pairs = torch.zeros(n, n)
    for i in range(rounds):
        places, taken = PoissonSampler(1).draw_at_most(n, capacity, Stream(b"key", i))
        assert taken.all()
        kept[places] += 1
        pairs[places.min(), places.max()] += 1
    assert stats.chisquare(kept.numpy()).pvalue > 0.001
    # The smallest and the largest of three: C(gap, 1) of the 56 triples each.
    gaps = torch.arange(n)[None, :] - torch.arange(n)[:, None] - 1
    expected = gaps.clamp(min=0) * rounds / 56
    assert stats.chisquare(pairs[gaps > 0].numpy(), expected[gaps > 0].numpy()).pvalue > 0.001


@given(st.integers(1, 12), st.integers(0, 60), st.integers(0, 30))
def test_no_client_visits_one_class_more_often_than_the_uses(classes, rounds, client):
    schedule = ClassSchedule(classes)
    visits = np.bincount([schedule.label(client, t) for t in range(rounds)], minlength=classes)
    assert visits.max() == schedule.uses(rounds)
    assert len(visits) == classes


@given(st.integers(1, 12), st.integers(1, 60))
def test_rounds_within_is_the_largest_number_of_rounds_for_the_uses(classes, uses):
    for schedule in (
        ClassSchedule(classes), TurnSchedule(classes), JointSchedule(), PickSchedule(classes),
    ):  # fmt: skip
        rounds = schedule.rounds_within(uses)
        assert schedule.uses(rounds) == uses
        assert schedule.uses(rounds + 1) == uses + 1


def test_the_schedule_is_client_plus_round_modulo_classes():
    assert ClassSchedule(10).label(client=7, round=5) == 2
    assert JointSchedule().label(client=7, round=5) is None
    assert (ClassSchedule(10).classes, JointSchedule().classes) == (10, 1)
    assert ClassSchedule(10).uses(3001) == 301
    assert JointSchedule().uses(3001) == 3001
    assert ClassSchedule(10).of_client.uses(95) == JointSchedule().of_client.uses(95) == 95


@given(st.integers(1, 12), st.integers(0, 60), st.integers(0, 30), st.integers(0, 3))
def test_no_client_answers_more_often_than_its_turns(turns, rounds, client, first):
    schedule = TurnSchedule(turns)
    answered = sum(schedule.answers(client, first + t) for t in range(rounds))
    assert rounds // turns <= answered <= schedule.uses(rounds)
    assert schedule.uses(rounds) == schedule.of_client.uses(rounds)


def test_every_round_asks_the_clients_of_one_turn():
    schedule, clients = TurnSchedule(4), 10
    for round in range(1, 9):
        asked = [k for k in range(clients) if schedule.answers(k, round)]
        assert asked == [k for k in range(clients) if k % 4 == round % 4]
        assert {schedule.cohort(k, clients) for k in asked} == {len(asked)}
    assert schedule.label(client=3, round=5) is None
    assert (schedule.classes, schedule.cohorts) == (1, 4)
    assert all(s.answers(3, t) for s in (ClassSchedule(4), JointSchedule()) for t in range(5))


SCHEDULES = st.one_of(
    st.just(JointSchedule()),
    st.builds(ClassSchedule, st.integers(1, 7)),
    st.builds(TurnSchedule, st.integers(1, 7)),
    st.builds(PickSchedule, st.integers(1, 7), st.integers(0, 5)),
)


@given(SCHEDULES, st.integers(0, 9), st.integers(1, 60))
def test_a_client_has_answered_as_often_as_it_was_asked(schedule, client, round):
    asked = sum(schedule.answers(client, t) for t in range(1, round))
    assert schedule.answered(client, round) == asked


@given(st.integers(1, 12), st.integers(0, 40), st.integers(0, 3000))
def test_the_uses_of_picks_are_those_of_the_client_picked_most(clients, seed, rounds):
    schedule = PickSchedule(clients, seed)
    answered = [schedule.answered(client, rounds + 1) for client in range(clients)]
    assert sum(answered) == rounds  # one a round, and no other client
    assert schedule.uses(rounds) == schedule.of_client.uses(rounds) == max(answered)


def test_a_round_picks_the_same_client_however_many_rounds_there_are():
    short, long = (PickSchedule(9, 3) for _ in range(2))
    long.uses(200_000)  # beyond the lengths that are drawn together
    picked = [
        [k for k in range(9) if s.answers(k, t)] for s in (short, long) for t in (1, 700, 1024)
    ]
    assert picked[:3] == picked[3:]
    [late] = [k for k in range(9) if short.answers(k, 150_000)]
    assert short.answered(late, 150_001) == short.answered(late, 150_000) + 1


@pytest.mark.medium
def test_picks_are_uniform_and_independent_and_the_seed_decides_them():
    clients, rounds = 10, 40_000
    schedules = [PickSchedule(clients, seed) for seed in (0, 1)]
    picks = []
    for schedule in schedules:
        answered = [[schedule.answers(k, t) for k in range(clients)] for t in range(1, rounds + 1)]
        picks.append(np.array(answered).argmax(1))
    for picked in picks:
        assert stats.chisquare(np.bincount(picked, minlength=clients)).pvalue > 0.001
        pairs = np.bincount(clients * picked[:-1] + picked[1:], minlength=clients**2)
        assert stats.chisquare(pairs).pvalue > 0.001
    assert stats.binomtest(int((picks[0] == picks[1]).sum()), rounds, 1 / clients).pvalue > 0.001


def test_the_published_run_picks_one_of_a_thousand_clients_36_times():
    uses = [PickSchedule(1000, seed).uses(20_000) for seed in range(25)]
    assert np.median(uses) == 36
    assert min(uses) > 30  # in turn it would be 20


def test_a_picked_client_is_a_cohort_of_its_own():
    schedule = PickSchedule(7)
    assert {schedule.cohort(k, 7) for k in range(7)} == {1}
    assert (schedule.cohorts, schedule.classes, schedule.label(3, 5)) == (7, 1, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 0}, "clients must be an integer ≥ 1, received 0"),
        ({"clients": 2.5}, "clients must be an integer ≥ 1, received 2.5"),
        ({"clients": 2**40 + 1}, "clients must be at most 1.1e\\+12, received 1099511627777"),
        ({"clients": 10**400}, "clients must be at most 1.1e\\+12, received 1000"),
        ({"seed": -1}, "seed must be an integer ≥ 0, received -1"),
        ({"seed": "x"}, "seed must be an integer ≥ 0, received 'x'"),
    ],
)
def test_bad_picks_are_refused(options, message):
    with pytest.raises(PrivacyError, match=message):
        PickSchedule(**({"clients": 5, "seed": 0} | options))
    assert PickSchedule(2**40).uses(1000) == 1  # where every pick is still exact
    with pytest.raises(PrivacyError, match="rounds must be at most 1e\\+07, received"):
        PickSchedule(5).uses(int(domain.ROUNDS.high) + 1)
    with pytest.raises(PrivacyError, match="rounds must be an integer ≥ 1, received -1"):
        PickSchedule(5).uses(-1)


@pytest.mark.medium
def test_picks_within_many_uses_end_at_the_public_domain():
    schedule = PickSchedule(3)
    within = schedule.rounds_within(2_500_000)
    assert schedule.uses(within) <= 2_500_000 < schedule.uses(within + 1)
    assert PickSchedule(1).rounds_within(10**7) == 10**7


@pytest.mark.parametrize("kind", [ClassSchedule, TurnSchedule, PickSchedule])
def test_numbers_of_numpy_become_built_in(kind):
    assert kind(np.int64(3)) == kind(3)
    assert json.loads(json.dumps(kind(np.int64(3)).to_dict()))["name"] == kind.name


HALF = PoissonSampler(0.5)


@pytest.mark.parametrize(
    ("call", "values", "message"),
    [
        (PoissonSampler, [0, -0.1, 1.3, float("nan"), "0.2", None], r"rate must lie in \(0, 1\]"),
        (lambda n: HALF.draw(n, Stream(b"key")), [-1, 1.5], "n must be an integer ≥ 0"),
        (lambda b: HALF.draw_at_most(3, b, Stream(b"key")), [0], "capacity must be an integer ≥ 1"),
        (ClassSchedule, [0, -3, 2.5, "10", True], "classes must be an integer ≥ 1"),
        (TurnSchedule, [0, -3, 2.5, "10", True], "turns must be an integer ≥ 1"),
    ],
)
def test_bad_numbers_are_refused(call, values, message):
    for value in values:
        with pytest.raises(PrivacyError, match=f"{message}, received {value!r}"):
            call(value)


@pytest.mark.parametrize(
    "schedule", [JointSchedule(), ClassSchedule(3), TurnSchedule(4), PickSchedule(7, 1)]
)
def test_a_round_s_turn_is_of_the_clients_that_answer(schedule):
    for clients in (1, 5, 7) if not isinstance(schedule, PickSchedule) else (7,):
        for round in range(1, 12):
            answering = [k for k in range(clients) if schedule.answers(k, round)]
            assert list(schedule.turn(round, clients)) == answering
