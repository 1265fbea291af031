from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, binomtest, norm

from fedsink.audit.bounds import (
    Counts,
    clopper_pearson,
    distinguishing_epsilon,
    gaussian_epsilon,
    guesses_for,
    one_run_epsilon,
    one_run_p_value,
)
from fedsink.errors import PrivacyError
from fedsink.privacy import GaussianMechanism

_DELTA = 1e-5


def _draws(tpr: float, fpr: float, trials: int, repeats: int) -> list[Counts]:
    random = np.random.default_rng(3)
    tp, fp = random.binomial(trials, tpr, repeats), random.binomial(trials, fpr, repeats)
    return [
        Counts(int(t), trials - int(t), int(f), trials - int(f))
        for t, f in zip(tp, fp, strict=True)
    ]


@pytest.mark.parametrize(("k", "n"), [(0, 10), (10, 10), (3, 10), (1, 1), (17, 1000), (999, 1000)])
@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_the_interval_is_clopper_and_pearsons(k: int, n: int, confidence: float) -> None:
    reference = binomtest(k, n).proportion_ci(confidence, method="exact")
    assert clopper_pearson(k, n, confidence) == pytest.approx(tuple(reference), abs=1e-12)


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.5, 0.98])
def test_each_end_of_the_interval_is_exceeded_as_rarely_as_it_says(rate: float) -> None:
    intervals = {k: clopper_pearson(k, 100, 0.9) for k in range(101)}
    draws = np.random.default_rng(1).binomial(100, rate, 20_000)
    low, high = np.array([intervals[int(k)] for k in draws]).T
    assert (low > rate).mean() <= 0.053
    assert (high < rate).mean() <= 0.053


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_randomized_response_exceeds_its_own_epsilon_no_more_often_than_allowed(
    epsilon: float,
) -> None:
    right = 1.0 / (1.0 + math.exp(-epsilon))
    bounds = [
        distinguishing_epsilon(counts, 0.0, 0.9) for counts in _draws(right, 1 - right, 500, 3000)
    ]
    assert np.mean(np.array(bounds) > epsilon) <= 0.11
    # ... and the bound is no empty one: half of ε would be refuted nearly always.
    assert np.mean(np.array(bounds) > epsilon / 2) > 0.5


@pytest.mark.parametrize("threshold", [0.0, 0.5, 2.0])
def test_a_gaussian_mechanism_exceeds_its_own_epsilon_no_more_often_than_allowed(
    threshold: float,
) -> None:
    scale = 1.5
    epsilon = GaussianMechanism.from_scale(1.0, scale, _DELTA).epsilon
    tpr, fpr = norm.sf(threshold - 1.0 / scale), norm.sf(threshold)
    bounds = [gaussian_epsilon(c, _DELTA, 0.9) for c in _draws(tpr, fpr, 1000, 1000)]
    assert np.mean(np.array(bounds) > epsilon) <= 0.11


@pytest.mark.parametrize(("factor", "refuted"), [(2 / 3, True), (1.0, False), (3 / 2, False)])
def test_the_gaussian_trade_off_refutes_two_thirds_of_the_noise(
    factor: float, refuted: bool
) -> None:
    scale = 2.0
    claim = GaussianMechanism.from_scale(1.0, scale, _DELTA).epsilon
    mu = 1.0 / (scale * factor)
    (counts,) = _draws(norm.sf(-mu / 2), norm.sf(mu / 2), 5000, 1)
    assert (gaussian_epsilon(counts, _DELTA, 0.95) > claim) is refuted


def test_the_gaussian_epsilon_is_that_of_the_mechanism_with_the_excluded_noise() -> None:
    counts = Counts(900, 100, 100, 900)
    tpr, fpr = counts.rates(0.95)
    scale = 1.0 / (norm.ppf(tpr) - norm.ppf(fpr))
    expected = GaussianMechanism.from_scale(1.0, scale, _DELTA).epsilon
    assert gaussian_epsilon(counts, _DELTA, 0.95) == pytest.approx(expected, rel=1e-4)


def test_both_directions_count() -> None:
    one = distinguishing_epsilon(Counts(500, 500, 0, 1000), 0.0, 0.95)
    other = distinguishing_epsilon(Counts(1000, 0, 500, 500), 0.0, 0.95)
    assert one == pytest.approx(other)
    assert one > 4


def test_delta_is_taken_off_the_true_positives() -> None:
    counts = Counts(100, 900, 0, 1000)
    bounds = [distinguishing_epsilon(counts, delta, 0.95) for delta in (0.0, 1e-3, 0.01, 0.2)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[2]
    assert bounds[3] == 0.0


def test_what_is_not_told_apart_proves_nothing() -> None:
    for counts in (Counts(50, 50, 50, 50), Counts(0, 10, 0, 10), Counts(0, 10, 10, 0)):
        assert gaussian_epsilon(counts, _DELTA, 0.95) == 0.0
    assert distinguishing_epsilon(Counts(50, 50, 50, 50), 0.0, 0.95) == 0.0


def test_the_resolution_grows_with_the_logarithm_of_the_trials() -> None:
    few, many = (distinguishing_epsilon(Counts(n, 0, 0, n), 0.0, 0.95) for n in (1000, 100_000))
    assert few < math.log(1000)
    assert many - few == pytest.approx(math.log(100), abs=0.01)


def test_bad_values_are_refused() -> None:
    with pytest.raises(PrivacyError, match=r"confidence must lie in \(0, 1\), received 1.0"):
        clopper_pearson(1, 4, 1.0)


def _guessed(
    correct: int, guesses: int = 1000, delta: float = 0.0, confidence: float = 0.95
) -> float:
    return one_run_epsilon(
        correct=correct, guesses=guesses, canaries=1000, delta=delta, confidence=confidence
    )


def test_1000_canaries_prove_at_most_5_8() -> None:
    # log(p/(1 − p)) with p = 0.05^(1/1000)
    p = 0.05 ** (1 / 1000)
    assert _guessed(1000) == pytest.approx(math.log(p / (1 - p)), abs=1e-6)
    assert _guessed(1000) == pytest.approx(5.81, abs=0.005)
    assert _guessed(1000, delta=1e-5) == pytest.approx(5.78, abs=0.005)


def test_guesses_that_are_right_half_the_time_prove_nothing() -> None:
    assert _guessed(500) == _guessed(520) == _guessed(0) == 0.0
    assert _guessed(540) > 0


def test_the_bound_grows_with_correct_guesses_and_falls_with_delta_and_confidence() -> None:
    bounds = [_guessed(correct) for correct in range(550, 1001, 50)]
    assert bounds == sorted(bounds)
    assert len(set(bounds)) == len(bounds)
    assert _guessed(900) > _guessed(900, delta=1e-4) > _guessed(900, delta=1e-3)
    assert _guessed(900) > _guessed(900, confidence=0.99)
    assert _guessed(90, guesses=100) > _guessed(60, guesses=100)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
def test_one_run_of_randomized_response_exceeds_its_epsilon_no_more_often_than_allowed(
    epsilon: float,
) -> None:
    """Every canary in or out by a coin, its bit released by randomized response at ε."""
    right = 1.0 / (1.0 + math.exp(-epsilon))
    correct = np.random.default_rng(2).binomial(300, right, 20_000)
    found = {
        int(k): one_run_epsilon(
            correct=int(k), guesses=300, canaries=1000, delta=0.0, confidence=0.9
        )
        for k in np.unique(correct)
    }
    exceeded = np.mean([found[int(k)] > epsilon for k in correct])
    assert 0.03 < exceeded <= 0.105  # valid, and tight: nearly all of the allowed tenth is used


def test_a_mechanism_that_fails_with_probability_delta_stays_within_its_level() -> None:
    """With probability m·δ/2 every guess is right, else the answers are coins: (0, δ) at least."""
    delta, m = 1e-3, 50
    p = one_run_p_value(correct=m, guesses=m, canaries=m, epsilon=0.0, delta=delta)
    assert p >= delta


def test_the_p_value_is_theorem_5_2() -> None:
    m, r, v, epsilon, delta = 40, 20, 15, 0.7, 1e-3
    rate = math.exp(epsilon) / (1 + math.exp(epsilon))
    tail = sum(binom.pmf(k, r, rate) for k in range(v, r + 1))
    alpha = max(
        2 / i * sum(binom.pmf(k, r, rate) for k in range(max(0, v - i), v)) for i in range(1, m + 1)
    )
    found = one_run_p_value(correct=v, guesses=r, canaries=m, epsilon=epsilon, delta=delta)
    assert found == pytest.approx(tail + alpha * m * delta, rel=1e-12)


@pytest.mark.parametrize("mu", [0.01, 0.3, 2.0, 20.0])
def test_the_number_of_guesses_is_even_and_possible(mu: float) -> None:
    for canaries in (2, 17, 1000):
        guesses = guesses_for(mu, canaries=canaries, delta=1e-5, confidence=0.95)
        assert 2 <= guesses <= canaries
        assert guesses % 2 == 0


def test_abstaining_pays_where_the_claim_is_small_and_not_where_it_is_large() -> None:
    few, many = (guesses_for(mu, canaries=1000, delta=1e-5, confidence=0.95) for mu in (0.5, 30.0))
    assert few < 1000 == many
