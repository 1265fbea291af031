from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from fedsink.audit.guesses import guesses_for, one_run_epsilon, one_run_p_value
from fedsink.errors import PrivacyError


def _bound(
    correct: int, guesses: int = 1000, delta: float = 0.0, confidence: float = 0.95
) -> float:
    return one_run_epsilon(
        correct=correct, guesses=guesses, canaries=1000, delta=delta, confidence=confidence
    )


def test_1000_canaries_prove_at_most_5_8() -> None:
    # log(p/(1 − p)) with p = 0.05^(1/1000)
    p = 0.05 ** (1 / 1000)
    assert _bound(1000) == pytest.approx(math.log(p / (1 - p)), abs=1e-6)
    assert _bound(1000) == pytest.approx(5.81, abs=0.005)
    assert _bound(1000, delta=1e-5) == pytest.approx(5.78, abs=0.005)


def test_guesses_that_are_right_half_the_time_prove_nothing() -> None:
    assert _bound(500) == _bound(520) == _bound(0) == 0.0
    assert _bound(540) > 0


def test_the_bound_grows_with_correct_guesses_and_falls_with_delta_and_confidence() -> None:
    bounds = [_bound(correct) for correct in range(550, 1001, 50)]
    assert bounds == sorted(bounds)
    assert len(set(bounds)) == len(bounds)
    assert _bound(900) > _bound(900, delta=1e-4) > _bound(900, delta=1e-3)
    assert _bound(900) > _bound(900, confidence=0.99)
    assert _bound(90, guesses=100) > _bound(60, guesses=100)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
def test_randomized_response_exceeds_its_own_epsilon_no_more_often_than_allowed(
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"correct": 11}, "correct ≤ guesses ≤ canaries is needed, received 11, 10 and 20"),
        ({"guesses": 21}, "correct ≤ guesses ≤ canaries"),
        ({"correct": -1}, "correct must be an integer ≥ 0"),
        ({"epsilon": -1.0}, "epsilon must be a finite number ≥ 0"),
        ({"delta": 1.0}, "delta must lie in"),
    ],
)
def test_bad_values_are_refused(change: dict[str, float], message: str) -> None:
    values = {"correct": 5, "guesses": 10, "canaries": 20, "epsilon": 1.0, "delta": 0.0}
    with pytest.raises(PrivacyError, match=message):
        one_run_p_value(**{**values, **change})  # type: ignore[arg-type]
