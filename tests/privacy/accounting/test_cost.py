from __future__ import annotations

import math

import dp_accounting
import pytest

from fedsink.errors import PrivacyError
from fedsink.privacy import (
    ACCOUNTANTS,
    BatchClip,
    ClassSchedule,
    Cost,
    CriticClip,
    JointSchedule,
    RecordClip,
    RowClip,
    TurnSchedule,
    overflow_probability,
    poisson_gaussian,
)
from fedsink.privacy.accounting.accountants import gaussian_epsilon, pld_epsilon, rdp_epsilon
from fedsink.privacy.accounting.composition import Spent, epsilon_of, replacement

RECORD, BATCH = RecordClip(1.0), BatchClip(1.0)
JOINT, SPLIT = JointSchedule(), ClassSchedule(10)


@pytest.mark.medium
def test_add_remove_is_the_poisson_subsampled_gaussian():
    cost = Cost(RECORD, SPLIT)
    assert cost.uses(95) == 10
    assert cost.event(0.2, 2.0, 30) == poisson_gaussian(0.2, 2.0, 30)
    assert cost.epsilon(0.2, 2.0, 30, 1e-5) == pld_epsilon(0.2, 2.0, 30, 1e-5)
    assert cost.epsilon(0.2, 2.0, 30, 1e-5, "rdp") == rdp_epsilon(0.2, 2.0, 30, 1e-5)
    assert cost.accountants(0.2) == tuple(ACCOUNTANTS)


@pytest.mark.medium
def test_replace_one_has_its_own_pairs_and_pld_alone():
    cost = Cost(BATCH, SPLIT, "replace-one")
    assert cost.accountants(0.2) == ("pld",)
    assert cost.epsilon(0.2, 2.0, 30, 1e-5) == epsilon_of(
        [Spent(replacement(0.2, 2.0, 30, BATCH, SPLIT))], 1e-5
    )
    assert cost.quick_bound(0.2, 2.0, 30, 1e-5) == math.inf
    for accountant in ("prv", "rdp", "rdp-opacus", "rdp-classic"):
        with pytest.raises(PrivacyError, match=f"{accountant} accountant has no bound under repl"):
            cost.epsilon(0.2, 2.0, 30, 1e-5, accountant)
    with pytest.raises(PrivacyError, match="PRV accounts only for the remove direction"):
        cost.epsilon_unamplified(0.2, 2.0, 30, 1e-5, "prv")


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_a_client_is_not_sampled_and_seen_in_every_round(accountant):
    cost = Cost(BATCH, SPLIT, "client")
    assert cost.uses(95) == 95
    assert cost.rounds_within(95) == 95
    assert cost.event(0.2, 2.0, 95) == dp_accounting.SelfComposedDpEvent(
        dp_accounting.GaussianDpEvent(2.0), 95
    )
    found = cost.epsilon(0.001, 2.0, 95, 1e-5, accountant)
    exact = gaussian_epsilon(2.0 / math.sqrt(95), 1e-5)
    assert exact <= found <= 1.2 * exact
    assert found == cost.epsilon_unamplified(0.5, 2.0, 95, 1e-5, accountant)


def test_a_client_of_capacity_b_moves_the_sum_by_b_contributions():
    cost = Cost(RECORD, SPLIT, "client", capacity=50)
    assert cost.overflow(0.2, 95) == 0
    assert cost.epsilon(0.2, 200.0, 95, 1e-5) == gaussian_epsilon(4.0 / math.sqrt(95), 1e-5)
    assert cost.event(0.2, 200.0, 95).event.noise_multiplier == 4.0
    with pytest.raises(
        PrivacyError, match="client adjacency with the record clip needs a capacity"
    ):
        Cost(RECORD, SPLIT, "client")


@pytest.mark.medium
def test_a_capacity_costs_nothing_with_the_batch_clip():
    """Two clipped gradients are within 2Δ whichever records were kept."""
    for adjacency in ("add-remove", "replace-one"):
        plain = Cost(BATCH, SPLIT, adjacency)
        fixed = Cost(BATCH, SPLIT, adjacency, capacity=1)
        assert fixed.overflow(0.2, 30) == 0
        assert fixed.epsilon(0.2, 2.0, 30, 1e-5) == plain.epsilon(0.2, 2.0, 30, 1e-5)


@pytest.mark.medium
def test_an_overflow_is_taken_out_of_delta_with_the_record_clip():
    cost = Cost(RECORD, SPLIT, capacity=180, nominal_records=600)
    overflow = overflow_probability(0.2, 180, 600, 400)
    assert cost.overflow(0.2, 400) == overflow > 1e-6
    assert cost.epsilon(0.2, 2.0, 400, 1e-5) == pld_epsilon(0.2, 2.0, 400, 1e-5 - overflow)
    assert cost.epsilon(0.2, 2.0, 400, overflow) == math.inf
    assert cost.quick_bound(0.2, 2.0, 400, overflow) == math.inf
    cost.check_overflow(0.2, 400, 1e-5)
    with pytest.raises(PrivacyError, match=r"a capacity of 180 overflows .* delta=1e-06: raise"):
        cost.check_overflow(0.2, 400, 1e-6)
    with pytest.raises(PrivacyError, match="a capacity with the record clip needs nominal_records"):
        Cost(RECORD, SPLIT, capacity=170)


def test_a_change_of_label_meets_full_batches_in_both_labels_rounds():
    options = {"capacity": 180, "nominal_records": 600}
    one = Cost(RECORD, SPLIT, **options).overflow(0.2, 400)
    assert Cost(RECORD, SPLIT, "replace-one", **options).overflow(0.2, 400) == 2 * one
    assert Cost(RECORD, JOINT, "replace-one", **options).overflow(0.2, 400) == one


def test_unamplified_keeps_the_overflow_of_the_true_rate():
    cost = Cost(RECORD, SPLIT, capacity=180, nominal_records=600)
    left = 1e-5 - cost.overflow(0.2, 400)
    found = cost.epsilon_unamplified(0.2, 2.291, 400, 1e-5)
    assert found == gaussian_epsilon(2.291 / 20, left)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"clip": 0.5},
            "clip must be one of RecordClip, BatchClip, CriticClip, RowClip, received 0.5",
        ),
        ({"schedule": 10}, "schedule must be one of JointSchedule, .*, received 10"),
        ({"adjacency": "swap"}, "adjacency 'swap' is unknown"),
        ({"capacity": 0}, "capacity must be an integer ≥ 1, received 0"),
        ({"nominal_records": 1.5}, "nominal_records must be an integer ≥ 1, received 1.5"),
    ],
)
def test_bad_values_are_refused(options, message):
    with pytest.raises(PrivacyError, match=message):
        Cost(**({"clip": RECORD, "schedule": SPLIT} | options))
    with pytest.raises(PrivacyError, match=r"delta must lie in \(0, 1\), received 0"):
        Cost(RECORD, SPLIT).epsilon(0.2, 2.0, 30, 0.0)
    with pytest.raises(PrivacyError, match="accountant='gdp' is unknown"):
        Cost(RECORD, SPLIT).epsilon(0.2, 2.0, 30, 1e-5, "gdp")


@pytest.mark.slow
def test_a_rough_price_is_high_where_a_plan_is_far_too_dear():
    cost = Cost(RECORD, JOINT)
    exact = cost.epsilon(0.2, 1.0, 200, 1e-5)
    for factor in (1.3, 4.0, 100.0):
        rough = cost.rough_epsilon(exact / factor, 0.2, 1.0, 200, 1e-5)
        assert rough is not None
        assert exact / factor < rough < 2 * exact
    assert cost.rough_epsilon(exact, 0.2, 1.0, 200, 1e-5) is None


def test_a_rough_price_is_infinite_where_an_overflow_costs_all_of_delta():
    cost = Cost(RECORD, SPLIT, capacity=180, nominal_records=600)
    assert cost.rough_epsilon(1e300, 0.2, 2.0, 400, cost.overflow(0.2, 400)) == math.inf


ADJACENT = [
    ("add-remove", RECORD, JOINT, None),
    ("add-remove", RECORD, JOINT, 60),
    ("add-remove", BATCH, JOINT, 60),
    ("replace-one", RECORD, JOINT, None),
    ("replace-one", BATCH, SPLIT, None),
    ("replace-one", RECORD, SPLIT, 60),
    ("client", BATCH, JOINT, None),
    ("client", RECORD, SPLIT, 60),
]
ADJACENT_CRITICS = [
    ("replace-one", CriticClip(1.0, 40), JOINT, None),
    ("user", CriticClip(1.0, 40), TurnSchedule(3), None),
    ("client", CriticClip(1.0, 3), JOINT, None),
]
GRID = [
    (rate, sigma, uses)
    for rate in (1.0, 0.2, 0.01)
    for sigma, uses in ((0.6, 1), (0.6, 20), (1.3, 1), (1.3, 300), (5.0, 2000))
]


@pytest.mark.medium
@pytest.mark.quick("some-add-remove-clip0-*", "some-replace-one-clip3-*")
@pytest.mark.parametrize(("adjacency", "clip", "schedule", "capacity"), ADJACENT + ADJACENT_CRITICS)
@pytest.mark.parametrize(
    "grid", [GRID[::6], pytest.param(GRID, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_a_rough_price_never_refuses_a_plan_that_fits(adjacency, clip, schedule, capacity, grid):
    """Plans with an exact ε equal to the ceiling, or below it."""
    cost = Cost(clip, schedule, adjacency, capacity, None if capacity is None else 64)
    for rate, sigma, uses in grid:
        exact = cost.epsilon(rate, sigma, uses, 1e-5)
        if math.isfinite(exact):
            for ceiling in (exact, 1.01 * exact, 2 * exact):
                assert cost.rough_epsilon(ceiling, rate, sigma, uses, 1e-5) is None


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one", "user"])
def test_with_the_critic_clip_a_unit_in_one_part_sees_unsampled_gaussians(adjacency):
    cost = Cost(CriticClip(1.0, 40), TurnSchedule(4), adjacency)
    assert cost.accountants(1.0) == tuple(ACCOUNTANTS)
    assert cost.uses(95) == 24
    assert cost.epsilon(1.0, 2.0, 24, 1e-5) == gaussian_epsilon(2.0 / math.sqrt(24), 1e-5)
    assert cost.event(1.0, 2.0, 24) == dp_accounting.SelfComposedDpEvent(
        dp_accounting.GaussianDpEvent(2.0), 24
    )


@pytest.mark.medium
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one", "user"])
def test_critics_that_are_asked_in_secret_cost_a_record_that_is_replaced(adjacency):
    """The record's ±Δ is a critic's answer of ±C, half of the clip's sensitivity."""
    clip, rate, uses = CriticClip(0.7, 40), 0.2, 30
    cost = Cost(clip, TurnSchedule(4), adjacency)
    found = cost.epsilon(rate, 2.0, uses, 1e-5)
    assert found == epsilon_of([Spent(replacement(rate, 4.0, uses, RecordClip(0.7), JOINT))], 1e-5)
    assert Cost(RECORD, JOINT).epsilon(rate, 4.0, uses, 1e-5) < found
    whole = gaussian_epsilon(2.0 / math.sqrt(uses), 1e-5)
    assert found < cost.epsilon(0.999, 2.0, uses, 1e-5) <= 1.01 * whole
    assert cost.epsilon_unamplified(rate, 2.0, uses, 1e-5) == whole
    assert cost.quick_bound(rate, 2.0, uses, 1e-5) == math.inf
    assert cost.accountants(rate) == ("pld",)
    with pytest.raises(PrivacyError, match="rdp accountant has no bound for parts that are ask"):
        cost.epsilon(rate, 2.0, uses, 1e-5, "rdp")


@pytest.mark.parametrize("rate", [0.5, 0.001])
def test_critics_under_too_little_noise_for_a_grid_are_not_amplified(rate):
    """One share of a noise that a thousand clients spread is just as small."""
    cost = Cost(CriticClip(1.0, 40), JOINT)
    found = cost.epsilon(rate, 1e-3, 100, 1e-5)
    assert found == cost.epsilon(1.0, 1e-3, 100, 1e-5) > 1e6


def test_a_composed_event_of_critics_is_not_amplified():
    """Under add-remove no event has their pair; the ledger's filter and sums of plans read it."""
    cost = Cost(CriticClip(1.0, 40), JOINT)
    assert cost.event(0.2, 2.0, 24) == cost.event(1.0, 2.0, 24)


def test_a_client_whose_critics_are_asked_in_secret_is_not_amplified():
    cost = Cost(CriticClip(1.0, 40), JOINT, "client")
    for method in (cost.epsilon, cost.epsilon_unamplified):
        assert method(0.1, 80.0, 24, 1e-5) == method(1.0, 80.0, 24, 1e-5)


@pytest.mark.parametrize("method", ["epsilon", "epsilon_unamplified", "event"])
def test_critics_that_train_when_they_are_picked_amplify_nothing(method):
    numbers = (0.5, 2.0, 24) if method == "event" else (0.5, 2.0, 24, 1e-5)
    with pytest.raises(
        PrivacyError, match=r"the row clip has only rate=1.* Use the critic clip, whose"
    ):
        getattr(Cost(RowClip(1.0, 4), JOINT), method)(*numbers)


def test_a_client_sees_all_its_critics_change_in_its_turns():
    cost = Cost(CriticClip(1.0, 40), TurnSchedule(4), "client")
    assert cost.uses(95) == 24
    assert cost.rounds_within(24) == 96
    assert cost.event(1.0, 80.0, 24).event.noise_multiplier == 2.0
    exact = gaussian_epsilon(2.0 / math.sqrt(24), 1e-5)
    assert cost.epsilon(1.0, 80.0, 24, 1e-5) == exact
    assert Cost(CriticClip(1.0), JOINT, "client").epsilon(1.0, 80.0, 24, 1e-5) > 1e5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"capacity": 5},
            "the critic clip draws no batch of records, so capacity=5 has no meaning",
        ),
        (
            {"schedule": SPLIT},
            "the critic clip has no class schedule: a critic learns from records of",
        ),
        (
            {"clip": BATCH, "adjacency": "user"},
            "user adjacency needs a clip that keeps all records of",
        ),
        (
            {"clip": RECORD, "adjacency": "user"},
            "received the record clip: choose adjacency=client",
        ),
    ],
)
def test_what_has_no_guarantee_with_critics_or_without_them_is_refused(options, message):
    with pytest.raises(PrivacyError, match=message):
        Cost(**({"clip": CriticClip(1.0), "schedule": JOINT} | options))
