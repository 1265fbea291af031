from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsink.errors import PrivacyError
from fedsink.privacy.accounting.amplification import (
    largest_local_epsilon,
    shuffled_epsilon,
    shuffling_statement,
)


def exact_delta(eps0: float, n: int, eps: float, others_with_one: int) -> float:
    """δ(ε) of n shuffled binary randomized responses, both directions of replacing one record.

    What the shuffler shows is how many of the answers are 1: the number among the n − 1 others,
    a sum of two binomials, plus the answer of the record that is replaced.
    """
    keep = 1 / (1 + math.exp(-eps0))
    ones = stats.binom(others_with_one, keep).pmf(np.arange(others_with_one + 1))
    zeros = stats.binom(n - 1 - others_with_one, 1 - keep).pmf(np.arange(n - others_with_one))
    others = np.convolve(ones, zeros)
    with_one = np.append(others, 0) * (1 - keep) + np.append(0, others) * keep
    with_zero = np.append(others, 0) * keep + np.append(0, others) * (1 - keep)
    return max(
        np.maximum(with_one - math.exp(eps) * with_zero, 0).sum(),
        np.maximum(with_zero - math.exp(eps) * with_one, 0).sum(),
    )


@pytest.mark.parametrize(("eps0", "n"), [(0.1, 300), (0.4, 300), (1, 1000), (2, 2000), (3, 8000)])
@pytest.mark.parametrize("delta", [1e-4, 1e-6])
def test_the_exact_loss_of_shuffled_randomized_response_is_bounded(eps0, n, delta):
    bound = shuffled_epsilon(eps0, n, delta)
    mixtures = (0, n // 3, n // 2, n - 1)
    exact = [exact_delta(eps0, n, bound, ones) for ones in mixtures]
    assert max(exact) <= delta
    # The comparison has power: an eighth of the bound is not enough for the worst neighbours.
    assert max(exact_delta(eps0, n, bound / 8, ones) for ones in mixtures) > delta


@pytest.mark.medium
@given(st.floats(1e-3, 8), st.integers(1, 10**8), st.floats(1e-12, 0.1))
def test_the_result_never_exceeds_the_local_epsilon_and_falls_with_n(eps0, n, delta):
    if eps0 > largest_local_epsilon(n, delta):
        with pytest.raises(PrivacyError, match="report the local ε"):
            shuffled_epsilon(eps0, n, delta)
    else:
        epsilon = shuffled_epsilon(eps0, n, delta)
        assert 0 < epsilon <= eps0
        assert shuffled_epsilon(eps0, 2 * n, delta) <= epsilon


@pytest.mark.parametrize("eps0", [25, 35])
def test_nothing_is_extrapolated_beyond_the_condition(eps0):
    with pytest.raises(PrivacyError, match=r"valid up to ε₀ = 6\.246, received eps0=\d+: no ampl"):
        shuffled_epsilon(eps0, 60_000, 1e-6)
    edge = largest_local_epsilon(60_000, 1e-6)
    assert shuffled_epsilon(edge, 60_000, 1e-6) < edge
    with pytest.raises(PrivacyError):
        shuffled_epsilon(edge * 1.001, 60_000, 1e-6)


def test_too_few_reports_are_refused():
    assert largest_local_epsilon(10, 1e-6) == -math.inf
    assert largest_local_epsilon(150, 1e-6) < 0
    for n in (10, 150):
        with pytest.raises(PrivacyError, match="has no valid ε₀, received eps0=1"):
            shuffled_epsilon(1, n, 1e-6)


def test_approximate_reports_are_refused():
    with pytest.raises(PrivacyError, match="is for pure ε₀, received delta0=1e-05"):
        shuffled_epsilon(1, 60_000, 1e-6, delta0=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1000, 1e-6), "eps0 must be a finite number > 0, received 0"),
        ((math.inf, 1000, 1e-6), "eps0 must be a finite number > 0, received inf"),
        ((1, 0, 1e-6), "n must be an integer ≥ 1, received 0"),
        ((1, 1000.5, 1e-6), "n must be an integer ≥ 1, received 1000.5"),
        ((1, 1000, 0), r"delta must lie in \(0, 1\), received 0"),
        ((1, 1000, 1), r"delta must lie in \(0, 1\), received 1"),
    ],
)
def test_bad_values_are_refused(arguments, message):
    with pytest.raises(PrivacyError, match=message):
        shuffled_epsilon(*arguments)
    eps0, n, delta = arguments
    with pytest.raises(PrivacyError, match=message):
        shuffling_statement(eps0, 0.0, n, delta)


def test_the_statement_gives_epsilon_with_its_assumption_beside_the_local_one():
    statement = shuffling_statement(5.0, 0.0, 400_000, 1e-6)
    assert statement["epsilon"] == shuffled_epsilon(5, 400_000, 1e-6)
    assert (statement["local_epsilon"], statement["local_delta"]) == (5.0, 0.0)
    assert (statement["reports"], statement["delta"]) == (400_000, 1e-6)
    assert (statement["adjacency"], statement["unit"]) == ("replace-one", "record")
    assert "shuffler that all parties trust" in statement["assumption"]
    assert "A Flower node identity is not anonymous" in statement["assumption"]
    assert "reason" not in statement


@pytest.mark.parametrize(
    ("eps0", "delta0", "reason"), [(25.0, 0.0, "valid up to ε₀ = 6.246"), (1.0, 1e-4, "pure ε₀")]
)
def test_the_statement_says_why_there_is_no_amplification(eps0, delta0, reason):
    statement = shuffling_statement(eps0, delta0, 60_000, 1e-6)
    assert statement["epsilon"] is None
    assert reason in statement["reason"]
    assert (statement["local_epsilon"], statement["local_delta"]) == (eps0, delta0)
    assert "assumption" not in statement
