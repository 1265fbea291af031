from __future__ import annotations

import dp_accounting
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsink.errors import PrivacyError
from fedsink.privacy import capacity_for, overflow_probability
from fedsink.privacy.accounting.accountants import pld_epsilon


@pytest.mark.medium
@given(st.floats(0.001, 1), st.integers(1, 5000), st.integers(1, 10**6), st.floats(1e-9, 0.1))
def test_the_smallest_capacity_whose_overflow_costs_a_share_of_delta(rate, records, uses, delta):
    found = capacity_for(rate, records, uses, delta)
    assert 1 <= found <= records
    assert overflow_probability(rate, found, records, uses) <= 1e-3 * delta
    if found > 1:
        assert overflow_probability(rate, found - 1, records, uses) > 1e-3 * delta


def test_a_batch_meets_other_records_only_so_all_records_always_fit():
    assert overflow_probability(1.0, 600, 600, 400) == 0
    assert overflow_probability(1.0, 599, 600, 400) == 1
    assert overflow_probability(0.5, 1, 1, 400) == 0  # nobody else is there


def test_the_bound_covers_the_simulated_chance_that_a_record_meets_a_full_batch():
    rate, capacity, records, uses, runs = 0.1, 18, 100, 20, 20_000
    others = np.random.default_rng(0).binomial(records - 1, rate, size=(runs, uses))
    met = (others >= capacity).any(axis=1).mean()
    bound = overflow_probability(rate, capacity, records, uses)
    error = 3 * np.sqrt(met / runs)
    assert met - error <= bound <= 1.3 * (met + error)


@pytest.mark.medium
@given(st.integers(1, 400), st.integers(1, 400))
def test_a_smaller_shard_overflows_less(fewer, more):
    fewer, more = sorted((fewer, more))
    assert overflow_probability(0.2, 30, fewer, 10) <= overflow_probability(0.2, 30, more, 10)


def test_dp_accountings_truncated_event_is_not_monotone_in_the_number_of_records():
    """The event describes one exact size: a bound at the nominal size misses smaller shards."""

    def cost(records: int) -> float:
        ledger = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
        event = dp_accounting.TruncatedSubsampledGaussianDpEvent(records, 0.2, 60, 2.291)
        return float(ledger.compose(event, 40).get_epsilon(1e-5))

    assert cost(5000) < cost(320)


@pytest.mark.slow
def test_where_overflows_are_rare_both_accounts_agree():
    records, uses = 600, 400
    capacity = capacity_for(0.2, records, uses, 1e-5)
    ledger = dp_accounting.pld.PLDAccountant()
    event = dp_accounting.TruncatedSubsampledGaussianDpEvent(records, 0.2, capacity, 2.291)
    truncated = ledger.compose(event, uses).get_epsilon(1e-5)
    left = 1e-5 - overflow_probability(0.2, capacity, records, uses)
    assert pld_epsilon(0.2, 2.291, uses, left) == pytest.approx(truncated, rel=1e-3)


def test_the_tail_is_exact_far_out():
    exact = sum(stats.binom.pmf(k, 599, 0.2) for k in range(220, 600))
    assert overflow_probability(0.2, 220, 600, 1) == pytest.approx(exact, rel=1e-6)
    assert exact < 1e-20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": 0}, r"rate must lie in \(0, 1\], received 0"),
        ({"nominal_records": 0}, "nominal_records must be an integer ≥ 1, received 0"),
        ({"uses": 0}, "uses must be an integer ≥ 1, received 0"),
        ({"delta": 0}, r"delta must lie in \(0, 1\), received 0"),
    ],
)
def test_bad_values_are_refused(changes, message):
    arguments = {"rate": 0.2, "nominal_records": 600, "uses": 400, "delta": 1e-5} | changes
    with pytest.raises(PrivacyError, match=message):
        capacity_for(**arguments)
    with pytest.raises(PrivacyError, match="capacity must be an integer ≥ 1, received 0"):
        overflow_probability(0.2, 0, 600, 1)
