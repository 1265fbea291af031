from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

from fedsink.audit.bounds import Counts, distinguishing_epsilon, gaussian_epsilon
from fedsink.audit.finding import Finding, best_threshold, fisher_direction, lower_bound
from fedsink.errors import PrivacyError
from fedsink.privacy import GaussianMechanism


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
_MOST = _BOUND(Counts.perfect(200), confidence=0.95)


def _noise(seed: int, rows: int = 400, columns: int = 6) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, columns))


def test_a_coordinate_without_noise_decides_alone() -> None:
    present, absent = _noise(1), _noise(2)
    present[:, 4], absent[:, 4] = 1e-3, 0.0
    assert lower_bound(present, absent, _BOUND, 0.95) == pytest.approx(_MOST)


def test_noise_that_was_used_twice_cancels() -> None:
    present, absent = _noise(1), _noise(2)
    present[:, 3] = present[:, 0] + 1e-3
    absent[:, 3] = absent[:, 0]
    assert lower_bound(present, absent, _BOUND, 0.95) == pytest.approx(_MOST)


def test_no_noise_at_all_and_no_difference_at_all() -> None:
    zeros = np.zeros((400, 2))
    assert lower_bound(zeros + 1.0, zeros, _BOUND, 0.95) == pytest.approx(_MOST)
    assert lower_bound(zeros, zeros, _BOUND, 0.95) == 0.0


@pytest.mark.medium
@pytest.mark.parametrize("bound", [_BOUND, partial(gaussian_epsilon, delta=1e-5)])
def test_transcripts_of_one_kind_are_seldom_told_apart(bound: partial[float]) -> None:
    # Twenty features for fifty rows overfit at will; only the half that fitted nothing counts.
    found = [
        lower_bound(_noise(2 * s, 100, 20), _noise(2 * s + 1, 100, 20), bound, 0.95)
        for s in range(100)
    ]
    assert np.mean(np.array(found) > 0) <= 0.05


def test_the_direction_weighs_by_the_full_covariance() -> None:
    random = np.random.default_rng(0)
    mixing = np.array([[1.0, 0.0], [0.9, 0.2]])
    rows = random.normal(size=(20_000, 2)) @ mixing.T
    direction = fisher_direction(rows[:10_000] + np.array([0.5, 0.0]), rows[10_000:])
    expected = np.linalg.solve(mixing @ mixing.T, np.array([0.5, 0.0]))
    assert direction @ expected / np.linalg.norm(expected) == pytest.approx(1.0, abs=1e-2)


def test_the_threshold_lies_in_the_widest_gap_of_separated_scores() -> None:
    many = 20_000
    absent, present = np.linspace(0, 1, many), np.linspace(2, 3, many)
    assert best_threshold(present, absent, _BOUND, 0.95) == pytest.approx(1.5)


@pytest.mark.medium
@pytest.mark.parametrize("columns", [1, 8])
def test_half_the_noise_of_a_small_epsilon_is_found_nearly_always(columns: int) -> None:
    claim = 1.0
    mu = 2.0 / GaussianMechanism(1.0, claim, 1e-5).scale
    bound = partial(gaussian_epsilon, delta=1e-5)
    shift = mu / columns**0.5
    found = [
        lower_bound(
            _noise(2 * s, 4000, columns) + shift, _noise(2 * s + 1, 4000, columns), bound, 0.95
        )
        for s in range(12)
    ]
    assert min(found) > claim


def test_bad_transcripts_are_refused() -> None:
    good = _noise(0)
    for bad in (good[:3], good[:, :2], good[:, 0]):
        with pytest.raises(PrivacyError, match="at least four rows and equally many columns"):
            lower_bound(good, bad, _BOUND, 0.95)
    broken = good.copy()
    broken[0, 0] = np.nan
    with pytest.raises(PrivacyError, match="not finite"):
        lower_bound(good, broken, _BOUND, 0.95)
