from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

from fedsink.audit.bounds import Guesses, distinguishing_epsilon, gaussian_epsilon, gaussian_mu
from fedsink.audit.distinguisher import (
    Bound,
    Finding,
    best_thresholds,
    fisher_direction,
    lower_bound,
)
from fedsink.errors import PrivacyError
from fedsink.privacy import Gaussian


@pytest.mark.parametrize(
    ("claim", "bound", "violated", "unresolved"),
    [(1.0, 0.9, False, False), (1.0, 1.1, True, False), (35.0, 5.6, False, True)],
)
def test_a_finding_is_violated_above_the_claim_and_unresolved_below_its_reach(
    claim: float, bound: float, violated: bool, unresolved: bool
) -> None:
    finding = Finding("runs", "threshold", claim, bound, 0.95, 5.6)
    assert (finding.violated, finding.unresolved) == (violated, unresolved)
    assert json.loads(json.dumps(finding.to_dict()))["violated"] is violated


_BOUND = partial(distinguishing_epsilon, delta=0.0)
_MOST = _BOUND(Guesses(600, 600, 600), confidence=0.95)
_UNKNOWN = np.zeros(6)  # what the canary moves


def _noise(seed: int, rows: int = 400, columns: int = 6) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, columns))


def test_a_coordinate_without_noise_decides_alone() -> None:
    present, absent = _noise(1), _noise(2)
    present[:, 4], absent[:, 4] = 1e-3, 0.0
    assert lower_bound((present, absent), 100, _UNKNOWN, _BOUND, 0.95) == pytest.approx(_MOST)


def test_noise_that_was_used_twice_cancels() -> None:
    present, absent = _noise(1), _noise(2)
    present[:, 3] = present[:, 0] + 1e-3
    absent[:, 3] = absent[:, 0]
    assert lower_bound((present, absent), 100, _UNKNOWN, _BOUND, 0.95) == pytest.approx(_MOST)


def test_no_noise_at_all_and_no_difference_at_all() -> None:
    zeros, unknown = np.zeros((400, 2)), np.zeros(2)
    for moved, proved in ((1.0, _MOST), (0.0, 0.0)):
        found = lower_bound((zeros + moved, zeros), 100, unknown, _BOUND, 0.95)
        assert found == pytest.approx(proved)


@pytest.mark.medium
@pytest.mark.parametrize("bound", [_BOUND, gaussian_mu])
def test_transcripts_of_one_kind_are_seldom_told_apart(bound: Bound) -> None:
    # Twenty features for fifty rows overfit at will; only those that fitted nothing count.
    found = [
        lower_bound(
            (_noise(2 * s, 200, 20), _noise(2 * s + 1, 200, 20)), 50, np.ones(20), bound, 0.95
        )
        for s in range(100)
    ]
    assert np.mean(np.array(found) > 0) <= 0.05


def test_plays_that_chose_the_test_are_not_counted() -> None:
    present, absent = _noise(1), _noise(2)
    present[:100] += 100.0
    for moved in (_UNKNOWN, np.ones(6)):
        assert lower_bound((present, absent), 100, moved, _BOUND, 0.95) == 0.0


def test_the_direction_weighs_by_the_full_covariance() -> None:
    random = np.random.default_rng(0)
    mixing = np.array([[1.0, 0.0], [0.9, 0.2]])
    rows = random.normal(size=(20_000, 2)) @ mixing.T
    direction = fisher_direction(rows[:10_000] + np.array([0.5, 0.0]), rows[10_000:])
    expected = np.linalg.solve(mixing @ mixing.T, np.array([0.5, 0.0]))
    assert direction @ expected / np.linalg.norm(expected) == pytest.approx(1.0, abs=1e-2)


def test_separated_scores_are_told_apart_in_between() -> None:
    absent, present = np.linspace(0, 1, 20_000), np.linspace(2, 3, 20_000)
    thresholds, bound = best_thresholds((present, absent), _BOUND, 0.95)
    assert thresholds == pytest.approx((1.5, 1.5))
    assert bound > 9.0


def test_what_tells_nothing_is_not_guessed() -> None:
    """Scores of −2 and 2 tell ten to one; in between, nothing does."""
    present = np.repeat([-2.0, -1.0, 0.0, 1.0, 2.0], [10, 100, 100, 100, 100])
    thresholds, bound = best_thresholds((present, -present), _BOUND, 0.95)
    assert -2.0 <= thresholds[0] < -1.0 < 1.0 <= thresholds[1] < 2.0
    assert 1.7 < bound < np.log(10)


def test_laplace_noise_is_told_apart_by_values_that_are_cut_off() -> None:
    """Two values that move by half of ε each: a sum of the values proves less than a likelihood."""
    random, many = np.random.default_rng(0), 40_000
    moved = np.array([0.5, 0.5])
    plays = random.laplace(size=(many, 2)) + moved, random.laplace(size=(many, 2))
    along = 0.8  # in the direction that the plays show
    assert along < lower_bound(plays, many // 4, moved, _BOUND, 0.95) < 1.0
    assert lower_bound(plays, many // 4, np.zeros(2), _BOUND, 0.95) < along


@pytest.mark.medium
@pytest.mark.parametrize(("columns", "unknown"), [(1, True), (8, True), (64, False)])
def test_half_the_noise_of_a_small_epsilon_is_found_nearly_always(
    columns: int, unknown: bool
) -> None:
    claim = 1.0
    mu = 2.0 / Gaussian(1.0, claim, 1e-5).scale
    shift = mu / columns**0.5
    moved = np.full(columns, 0.0 if unknown else shift)
    for s in range(12):
        plays = _noise(2 * s, 4000, columns) + shift, _noise(2 * s + 1, 4000, columns)
        assert gaussian_epsilon(lower_bound(plays, 1000, moved, gaussian_mu, 0.95), 1e-5) > claim


def test_what_is_not_finite_is_refused() -> None:
    broken = _noise(0)
    broken[0, 0] = np.nan
    with pytest.raises(PrivacyError, match="not finite"):
        lower_bound((_noise(0), broken), 100, _UNKNOWN, _BOUND, 0.95)
