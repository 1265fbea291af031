from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, binomtest, norm

from fedsink.audit.bounds import (
    Guesses,
    clopper_pearson,
    distinguishing_epsilon,
    gaussian_epsilon,
    gaussian_mu,
    guesses_for,
    one_run_epsilon,
    one_run_p_value,
)
from fedsink.errors import PrivacyError
from fedsink.privacy import Gaussian

_DELTA = 1e-5


def _draws(right: float, wrong: float, plays: int, repeats: int) -> Guesses:
    """Guesses of `repeats` audits, whose plays end right, wrong or without a guess."""
    rates = [right, wrong, max(0.0, 1.0 - right - wrong)]
    counts = np.random.default_rng(3).multinomial(plays, rates, repeats)
    return Guesses(counts[:, 0], counts[:, 0] + counts[:, 1], plays)


@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_the_limit_is_clopper_and_pearsons(confidence: float) -> None:
    cases = (0, 10), (10, 10), (3, 10), (1, 1), (17, 1000), (999, 1000)
    found = clopper_pearson(*np.array(cases).T, confidence)
    for (k, n), limit in zip(cases, found, strict=True):
        reference = binomtest(k, n, alternative="greater").proportion_ci(confidence, "exact")
        assert limit == pytest.approx(reference.low, abs=1e-12)


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.5, 0.98])
def test_the_limit_is_exceeded_as_rarely_as_it_says(rate: float) -> None:
    draws = np.random.default_rng(1).binomial(100, rate, 20_000)
    assert (clopper_pearson(draws, 100, 0.95) > rate).mean() <= 0.053


@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.05])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
@pytest.mark.parametrize("guessed", [1.0, 0.1], ids=["all", "a tenth"])
def test_the_least_private_mechanism_exceeds_its_epsilon_no_more_often_than_allowed(
    epsilon: float, delta: float, guessed: float
) -> None:
    """With probability δ all is told, else randomized response at ε, or nothing at all."""
    wrong = guessed * (1.0 - delta) / (1.0 + math.exp(epsilon))
    right = math.exp(epsilon) * wrong + delta
    bounds = distinguishing_epsilon(_draws(right, wrong, 2000, 20_000), delta, 0.9)
    assert 0.015 < np.mean(bounds > epsilon) <= 0.105  # valid, and no empty bound


@pytest.mark.parametrize("threshold", [0.0, 0.5, 2.0])
def test_a_gaussian_mechanism_exceeds_its_own_mu_no_more_often_than_allowed(
    threshold: float,
) -> None:
    mu = 1.0 / 1.5
    right = (norm.sf(threshold - mu) + norm.cdf(threshold)) / 2.0
    assert np.mean(gaussian_mu(_draws(right, 1.0 - right, 2000, 20_000), 0.9) > mu) <= 0.105


@pytest.mark.parametrize(("factor", "refuted"), [(2 / 3, True), (1.0, False), (3 / 2, False)])
def test_the_gaussian_trade_off_refutes_two_thirds_of_the_noise(
    factor: float, refuted: bool
) -> None:
    scale = 2.0
    claim = Gaussian.from_scale(1.0, scale, _DELTA).epsilon
    right = norm.cdf(0.5 / (scale * factor))
    [mu] = gaussian_mu(_draws(right, 1.0 - right, 10_000, 1), 0.95)
    assert (gaussian_epsilon(mu, _DELTA) > claim) is refuted
    expected = Gaussian.from_scale(1.0, 1.0 / mu, _DELTA).epsilon
    assert gaussian_epsilon(mu, _DELTA) == pytest.approx(expected, rel=1e-4)


def test_delta_is_taken_off_the_right_guesses() -> None:
    guesses = Guesses(100, 100, 2000)
    bounds = [distinguishing_epsilon(guesses, delta, 0.95) for delta in (0.0, 1e-3, 0.01, 0.2)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[2]
    assert bounds[3] == 0.0


def test_what_is_not_told_apart_proves_nothing() -> None:
    guesses = Guesses(np.array([0, 0, 50, 100]), np.array([0, 10, 100, 200]), 200)
    for delta in (0.0, _DELTA):
        assert (distinguishing_epsilon(guesses, delta, 0.95) == 0.0).all()
    assert (gaussian_mu(guesses, 0.95) == 0.0).all()
    assert gaussian_epsilon(0.0, _DELTA) == gaussian_epsilon(1e-7, _DELTA) == 0.0


def test_guesses_that_are_left_out_count_as_wrong_for_a_trade_off_alone() -> None:
    some, all_of_them = Guesses(70, 80, 200), Guesses(70, 80, 80)
    assert gaussian_mu(some, 0.95) == 0.0 < gaussian_mu(all_of_them, 0.95)
    assert distinguishing_epsilon(some, 0.0, 0.95) > 1.0


def test_the_resolution_grows_with_the_logarithm_of_the_plays() -> None:
    few, many = (distinguishing_epsilon(Guesses(n, n, n), 0.0, 0.95) for n in (1000, 100_000))
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
