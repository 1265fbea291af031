from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, replace

import dp_accounting
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedsink.errors import PrivacyError
from fedsink.privacy import (
    ADJACENCIES,
    BatchClip,
    ClassSchedule,
    CriticClip,
    JointSchedule,
    PrivacyPlan,
    RecordClip,
    RowClip,
    Stream,
    TurnSchedule,
    UnprotectedPlan,
    epsilon,
    plan_from_dict,
)
from fedsink.privacy.clips import clip_to_norm
from fedsink.transport import clipped_sums

from ..support.laws import assert_law

PLAN = PrivacyPlan(0.2, 2.0, 3000, RecordClip(8.0), ClassSchedule(10), 1e-5)
BATCH = PrivacyPlan(0.07, 0.9, 200, BatchClip(1.5), JointSchedule(), 1e-5)
CLIENT = replace(BATCH, adjacency="client")
FIXED = replace(PLAN, capacity=178, nominal_records=600)
CRITICS = PrivacyPlan(1.0, 2.236, 20, CriticClip(1.0, 40), JointSchedule(), 1e-5)
UNPROTECTED = UnprotectedPlan(0.2, 30, "record", ClassSchedule(10), 40, 150)
UNPROTECTED_BATCH = UnprotectedPlan(0.2, 30, "batch", JointSchedule())
PARTS = {"clip": RecordClip(8.0), "schedule": ClassSchedule(10), "delta": 1e-5}


@given(st.floats(0.01, 100), st.floats(0.1, 50))
def test_the_noise_std_is_the_multiplier_times_the_clips_sensitivity(bound, sigma):
    """Algorithm 1's 2Δσ for the batch clip, not Theorem 4.1's Δσ."""
    by_batch = replace(BATCH, clip=BatchClip(bound), noise_multiplier=sigma)
    by_record = replace(PLAN, clip=RecordClip(bound), noise_multiplier=sigma)
    assert (by_batch.noise_std, by_record.noise_std) == (sigma * (2 * bound), sigma * bound)
    assert BATCH.noise_std == pytest.approx(2 * 1.5 * 0.9)
    assert PLAN.noise_std == pytest.approx(8.0 * 2.0)
    assert replace(PLAN, clip=BatchClip(8.0)).noise_std == 2 * PLAN.noise_std
    assert PLAN.sensitivity == 8.0


def test_the_event_has_the_samplers_rate_the_noises_multiplier_and_the_schedules_uses():
    event = PLAN.event
    assert event.count == PLAN.uses == 300
    assert event.event.sampling_probability == PLAN.sampler.rate == 0.2
    multiplier = event.event.event.noise_multiplier
    assert multiplier == pytest.approx(PLAN.noise_std / PLAN.clip.sensitivity)
    assert isinstance(event.event, dp_accounting.PoissonSampledDpEvent)
    assert epsilon(event, PLAN.delta) == PLAN.epsilon()


@pytest.mark.medium
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


@pytest.mark.medium
@pytest.mark.parametrize(
    "plan", [PLAN, BATCH, CLIENT, FIXED, CRITICS, replace(CRITICS, rate=0.2, adjacency="user")]
)
def test_epsilon_bound_after_bounds_epsilon_grows_and_ends_at_epsilon(plan):
    bounds = [plan.epsilon_bound_after(rounds) for rounds in range(plan.rounds + 1)]
    assert bounds[0] == 0
    assert bounds[-1] == plan.epsilon()
    assert bounds == sorted(bounds)
    for rounds in (1, 17, plan.rounds * 3 // 5, plan.rounds - 1):
        assert bounds[rounds] >= replace(plan, rounds=rounds).epsilon()


def test_epsilon_after_refuses_rounds_outside_the_plan():
    with pytest.raises(PrivacyError, match="covers 3000 rounds, received rounds=3001"):
        PLAN.epsilon_after(3001)
    with pytest.raises(PrivacyError, match="rounds must be an integer ≥ 0, received -1"):
        PLAN.epsilon_after(-1)


def test_release_adds_to_the_total_as_float32():
    total = torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
    noise = PLAN.release(PLAN.clip.vouch(torch.zeros(2, 3)), Stream(b"key"))
    released = PLAN.release(PLAN.clip.vouch(total), Stream(b"key"))
    assert released.dtype == torch.float32
    torch.testing.assert_close(released, noise + total.float())
    assert not torch.equal(PLAN.release(PLAN.clip.vouch(total), Stream(b"other")), released)


def test_every_coordinate_gets_independent_noise_of_that_standard_deviation():
    """Pitfall 13: whatever the total is."""
    noise = BATCH.release(BATCH.clip.vouch(torch.zeros(200, 100)), Stream(b"key")).numpy()
    assert_law(noise, stats.norm(scale=2 * 1.5 * 0.9), accept=1e-3)
    columns = np.corrcoef(noise.T)[np.triu_indices(100, 1)]
    assert abs(columns).max() < 5.5 / math.sqrt(200)
    assert stats.kstest(columns * math.sqrt(200), stats.norm.cdf).pvalue > 0.001


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nothing_is_released_where_the_total_is_not_finite(bad):
    total = torch.tensor([0.0, bad])
    with pytest.raises(PrivacyError, match="not finite: clip it before releasing"):
        PLAN.release(PLAN.clip.vouch(total), Stream(b"key"))
    with pytest.raises(PrivacyError, match="not finite: clip it before releasing"):
        PLAN.release_each(
            PLAN.clip.vouch(torch.stack([total[:1], total[1:]])),
            [Stream(b"key", k) for k in (1, 2)],
        )


@pytest.mark.parametrize(
    "plan",
    [
        *(PLAN, BATCH, CLIENT, FIXED),
        *(
            replace(CRITICS, schedule=schedule, adjacency=adjacency)
            for schedule in (JointSchedule(), TurnSchedule(7))
            for adjacency in ADJACENCIES
        ),
    ],
)
def test_a_plan_survives_json_exactly(plan):
    awkward = replace(plan, rate=1 / 3, noise_multiplier=np.float64(0.1) * 3, rounds=np.int64(7))
    assert PrivacyPlan.from_dict(json.loads(json.dumps(awkward.to_dict()))) == awkward
    table = plan.to_dict()
    for entry in ("clip", "schedule"):
        with pytest.raises(PrivacyError, match="clip and schedule must be tables"):
            PrivacyPlan.from_dict(table | {entry: table[entry] | {"more": 1}})


def test_a_bad_table_is_refused():
    table = PLAN.to_dict()
    with pytest.raises(PrivacyError, match="entry 'delta' is missing or unknown"):
        PrivacyPlan.from_dict({k: v for k, v in table.items() if k != "delta"})
    with pytest.raises(PrivacyError, match="the clip 'layer' is none of record"):
        PrivacyPlan.from_dict(table | {"clip": {"name": "layer", "bound": 1.0}})
    with pytest.raises(PrivacyError, match="entry 'random' is missing or unknown"):
        PrivacyPlan.from_dict(table | {"schedule": {"name": "random", "classes": 1}})
    with pytest.raises(PrivacyError, match="must be tables with a name"):
        PrivacyPlan.from_dict(table | {"clip": "batch"})


def test_a_plan_cannot_be_changed_and_names_its_guarantee():
    with pytest.raises(FrozenInstanceError):
        PLAN.rounds = 1
    assert PLAN.adjacency == "add-remove"
    assert PLAN.adjacency_words == "zero-out/add-remove of one labelled record at one client"
    assert (PLAN.unit, CLIENT.unit) == ("record", "client")


@pytest.mark.parametrize("plan", [PLAN, UNPROTECTED])
def test_a_table_with_an_entry_less_or_more_is_no_plan(plan):
    """A misspelt adjacency would be another adjacency."""
    table = plan.to_dict()
    assert plan_from_dict(table) == plan
    for name in table.keys() - {"unprotected"}:
        wrong = {k: v for k, v in table.items() if k != name}
        for other in (wrong, wrong | {f"{name}s": table[name]}, table | {f"{name}s": table[name]}):
            with pytest.raises(PrivacyError, match=r"entry '\w+' is missing or unknown"):
                plan_from_dict(other)
    for other in (None, 3, "plan", [table]):
        with pytest.raises(PrivacyError, match="a plan is a table"):
            type(plan).from_dict(other)


def test_rounds_stay_in_the_public_domain():
    for plan in (PLAN, UNPROTECTED):
        assert replace(plan, rounds=10**7).rounds == 10**7
        with pytest.raises(PrivacyError, match=r"rounds must be at most 1e\+07, received 10000001"):
            replace(plan, rounds=10**7 + 1)


@pytest.mark.medium
def test_epsilon_is_stated_under_the_plans_adjacency():
    costs = {a: replace(BATCH, adjacency=a).epsilon() for a in ADJACENCIES if a != "user"}
    assert costs["add-remove"] < costs["replace-one"] < costs["client"]
    with pytest.raises(PrivacyError, match="rdp accountant has no bound under replace-one"):
        replace(BATCH, adjacency="replace-one").epsilon("rdp")
    with pytest.raises(PrivacyError, match="adjacency 'swap' is unknown"):
        replace(BATCH, adjacency="swap")
    with pytest.raises(PrivacyError, match="needs a capacity"):
        replace(PLAN, adjacency="client")


def test_without_a_secret_sample_nothing_is_amplified():
    """F2: 74.5. The batch recipe: 1312.7, where dp_accounting's underflow prints 1314."""
    f2 = PrivacyPlan(0.2, 2.291, 4000, RecordClip(8.0), ClassSchedule(10), 1e-5)
    assert f2.epsilon_unamplified() == pytest.approx(74.5, abs=0.03)
    batch = PrivacyPlan(0.025, 0.848, 16_000, BatchClip(1.0), ClassSchedule(10), 1e-5)
    assert batch.epsilon_unamplified() == pytest.approx(1312.7, abs=0.05)
    assert f2.epsilon_unamplified("rdp") > f2.epsilon_unamplified()


@pytest.mark.medium
@pytest.mark.parametrize("adjacency", ["replace-one", "client"])
def test_epsilon_after_bounds_epsilon_under_every_adjacency(adjacency):
    plan = replace(BATCH, adjacency=adjacency)
    for rounds in (1, 17, 120, 199):
        true = replace(plan, rounds=rounds).epsilon()
        assert true <= plan.epsilon_after(rounds) <= 1.4 * true
    assert plan.epsilon_after(200) == plan.epsilon()


@pytest.mark.medium
@pytest.mark.parametrize(
    "options",
    [
        {"adjacency": "client", "capacity": 40},
        {"adjacency": "client", "clip": BatchClip(8.0)},
        {"capacity": 190, "nominal_records": 600},
        {"adjacency": "user", "clip": CriticClip(1.0, 40), "schedule": JointSchedule()},
        {"adjacency": "client", "clip": CriticClip(1.0), "schedule": TurnSchedule(4)},
    ],
)
def test_a_plan_is_solved_under_its_adjacency_and_capacity(options):
    parts = {**PARTS, **options}
    by_rounds = PrivacyPlan.solve(rate=0.2, eps=10, rounds=1000, **parts)
    by_sigma = PrivacyPlan.solve(rate=0.2, eps=10, sigma=1.2 * by_rounds.noise_multiplier, **parts)
    for plan in (by_rounds, by_sigma):
        assert 9.9 < plan.epsilon() <= 10
        assert plan.adjacency == options.get("adjacency", "add-remove")
        assert plan.capacity == options.get("capacity")
    assert by_sigma.rounds > by_rounds.rounds


@pytest.mark.slow
def test_a_plan_is_solved_under_replace_one():
    parts = PARTS | {"adjacency": "replace-one"}
    plan = PrivacyPlan.solve(rate=0.2, eps=10, rounds=200, **parts)
    assert 9.99 < plan.epsilon() <= 10
    plain = PrivacyPlan.solve(rate=0.2, eps=10, rounds=200, **PARTS)
    assert replace(plain, adjacency="replace-one").epsilon() > 12


@pytest.mark.medium
@settings(max_examples=5, deadline=None)
@given(st.floats(0.5, 20), st.integers(1, 5000))
def test_sigma_is_never_rounded_down(eps, rounds):
    plan = PrivacyPlan.solve(rate=0.2, eps=eps, rounds=rounds, accountant="rdp", **PARTS)
    assert plan.epsilon("rdp") <= eps


@pytest.mark.medium
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


@pytest.mark.medium
def test_three_consistent_values_are_accepted_and_contradictions_say_what_they_imply():
    implied = PLAN.epsilon()
    assert PrivacyPlan.solve(rate=0.2, sigma=2.0, rounds=3000, **PARTS) == PLAN
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
        ({"clip": BatchClip(2.0**-41)}, "the clip bound Δ must be a number from"),
        ({"clip": RecordClip(2.0**41)}, "the clip bound Δ must be a number from"),
        ({"noise_multiplier": 2.0**-41}, "the noise multiplier σ must be a number from"),
        ({"noise_multiplier": 2.0**41}, "the noise multiplier σ must be a number from"),
        ({"capacity": 2**41}, "a number of records must be at most"),
    ],
)
def test_no_plan_lives_at_the_edge_of_the_floats(changes, message):
    with pytest.raises(PrivacyError, match=message):
        replace(PLAN, **changes)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eps": 0.0}, "eps must be a finite number > 0, received 0.0"),
        ({"eps": 1e-6}, "eps=1e-06 cannot be told from 0 at delta=1e-05"),
        ({"eps": -3}, "eps must be a finite number > 0, received -3"),
        ({"eps": 0.0, "sigma": 1.0}, "eps must be a finite number > 0, received 0.0"),
        ({"sigma": 0}, "sigma must be a finite number > 0, received 0"),
        ({"rounds": 0}, "rounds must be an integer ≥ 1, received 0"),
        ({"rounds": 1.5}, "rounds must be an integer ≥ 1, received 1.5"),
        ({"rate": 0}, r"rate must lie in \(0, 1\], received 0"),
        ({"delta": 1}, r"delta must lie in \(0, 1\), received 1"),
        (
            {"clip": 0.5},
            "clip must be one of RecordClip, BatchClip, CriticClip, RowClip, received 0.5",
        ),
        ({"schedule": 10}, "schedule must be one of JointSchedule, .*, received 10"),
        ({"accountant": "gdp"}, "accountant='gdp' is unknown"),
        ({"capacity": 120, "nominal_records": 600}, "a capacity of 120 overflows"),
    ],
)
def test_bad_values_are_refused(changes, message):
    arguments = {"rate": 0.2, "eps": 10.0, "rounds": 100, **PARTS} | changes
    with pytest.raises(PrivacyError, match=message):
        PrivacyPlan.solve(**arguments)


@pytest.mark.parametrize("rate", [0.999, 0.1])
def test_a_secret_pick_of_a_critic_that_trains_when_it_is_picked_is_refused(rate):
    message = (
        f"the row clip has only rate=1, received rate={rate}: as published a critic is trained"
    )
    with pytest.raises(PrivacyError, match=message):
        replace(CRITICS, clip=RowClip(1.0, 4), rate=rate)
    options = {"clip": RowClip(1.0, 4), "schedule": JointSchedule(), "delta": 1e-5, "eps": 10.0}
    with pytest.raises(PrivacyError, match=message):
        PrivacyPlan.solve(rate=rate, rounds=20, **options)


def test_what_is_released_is_what_was_computed_without_noise():
    totals = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    released = UNPROTECTED.release(UNPROTECTED.clip.vouch(totals), Stream(b"k", "noise"))
    assert released.dtype == torch.float32
    assert torch.equal(released, totals.float())
    streams = [Stream(b"k", "noise", k) for k in range(3)]
    assert torch.equal(
        UNPROTECTED.release_each(UNPROTECTED.clip.vouch(totals), streams), totals.float()
    )
    assert UNPROTECTED.noise_std == 0.0


def test_nothing_is_clipped_however_long():
    gradient = 1e6 * torch.ones(50, 784)
    assert torch.equal(UNPROTECTED_BATCH.clip.apply(gradient), gradient)
    assert isinstance(UNPROTECTED.clip, RecordClip)
    assert isinstance(UNPROTECTED_BATCH.clip, BatchClip)
    vectors = torch.tensor([[0.0], [1.0], [1e9]], dtype=torch.float64)
    assert torch.equal(clip_to_norm(vectors, UNPROTECTED.clip.bound), vectors)


def test_the_unclipped_record_field_is_the_plain_sum():
    random = torch.Generator().manual_seed(1)
    x, y = torch.randn(6, 30, generator=random), 20 * torch.randn(9, 30, generator=random)
    f, lam = torch.randn(6, generator=random), 5.0
    x64, y64 = x.double(), y.double()
    weights = torch.softmax((f.double()[:, None] - torch.cdist(x64, y64) ** 2) / lam, 0)
    expected = weights.sum(1, keepdim=True) * x64 - weights @ y64
    mask = torch.ones(1, 6, 9, dtype=torch.bool)
    field, clipped = (
        clipped_sums(x[None], y[None], f[None], lam, bound, mask=mask, radius=1e3).squeeze()
        for bound in (UNPROTECTED.clip.bound, 8.0)
    )
    torch.testing.assert_close(field, expected)
    assert float((clipped - expected).norm()) > 1.0  # the bound of a recipe does clip here


def test_an_unprotected_plan_follows_the_schedule_and_its_epsilon_is_infinite():
    assert (UNPROTECTED.uses, UNPROTECTED_BATCH.uses) == (3, 30)
    assert UNPROTECTED.epsilon() == UNPROTECTED.epsilon("rdp") == math.inf
    assert [UNPROTECTED.epsilon_after(t) for t in (0, 1, 30)] == [0.0, math.inf, math.inf]


def test_it_is_never_taken_for_a_plan_that_protects_nor_one_for_it():
    for plan in (UNPROTECTED, UNPROTECTED_BATCH):
        written = json.loads(json.dumps(plan.to_dict()))
        assert plan_from_dict(written) == plan
        with pytest.raises(PrivacyError, match="missing or unknown"):
            PrivacyPlan.from_dict(written)
        assert not isinstance(plan, PrivacyPlan)
    protecting = PrivacyPlan(0.2, 1.0, 30, RecordClip(1.0), ClassSchedule(10), 1e-5)
    assert plan_from_dict(protecting.to_dict()) == protecting
    with pytest.raises(PrivacyError):
        plan_from_dict({**protecting.to_dict(), "noise_multiplier": 0.0})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rate": 0.0}, "rate must lie in"),
        ({"rounds": 0}, "rounds must be an integer"),
        ({"kind": "gradient"}, "kind is record or batch or critic or row, received 'gradient'"),
        ({"kind": "row"}, "the row clip has only rate=1, received rate=0.2"),
        ({"capacity": 0}, "capacity must be an integer"),
        ({"schedule": {"name": "other", "classes": 3}}, "missing or unknown"),
        ({"schedule": 3}, "missing or unknown"),
    ],
)
def test_no_unprotected_plan_has_values_out_of_range(change, message):
    with pytest.raises(PrivacyError, match=message):
        plan_from_dict({**UNPROTECTED.to_dict(), **change})
