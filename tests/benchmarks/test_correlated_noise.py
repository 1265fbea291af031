"""Largest gain of noise that is correlated across rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.signal import lfilter

Script = Callable[[str], Any]
CLASSES = 10


def deviation(column: np.ndarray, likeness: float) -> float:
    """Deviation of the running mean, played round by round from C⁻¹'s column, no spectra."""
    impulse = np.r_[1.0, np.zeros(400 * CLASSES - 1)]
    inverse = lfilter([1.0], column / np.linalg.norm(column), impulse)
    every = inverse.sum() ** 2  # Σ_k r(k), r the autocovariance
    own = (inverse.reshape(-1, CLASSES).sum(0) ** 2).sum()  # Σ_m r(Cm)
    return float(np.sqrt(likeness * every + (1 - likeness) * own))


@pytest.mark.parametrize("likeness", [0.1, 0.5, 0.9])
def test_the_bound_is_reached_and_not_beaten(script: Script, likeness: float) -> None:
    bound = script("correlated_noise").free(likeness, CLASSES)
    # Columns (1, β, …, β) have the optimum's spectrum: one value at 0, one at all other 2πj/C.
    equal = [np.r_[1.0, np.full(CLASSES - 1, beta)] for beta in np.linspace(0.0, 0.9, 91)]
    assert deviation(equal[0], likeness) == pytest.approx(1.0)
    assert min(deviation(column, likeness) for column in equal) == pytest.approx(bound, rel=1e-3)
    random = np.random.default_rng(0).uniform(0.0, 0.1, (200, CLASSES - 1))
    assert min(deviation(np.r_[1.0, column], likeness) for column in random) >= bound


def test_alike_classes_gain_the_root_of_their_number_and_unlike_ones_nothing(
    script: Script,
) -> None:
    free = script("correlated_noise").free
    assert free(1.0, CLASSES) == pytest.approx(CLASSES**-0.5)
    assert free(0.0, CLASSES) == pytest.approx(1.0)


def test_bands_that_cost_sampling_gain_little_where_noise_dominates(script: Script) -> None:
    bought = script("correlated_noise").bought
    assert bought(1.0, 0.5, 1) == pytest.approx(1.0)
    assert 0.99 < bought(1.0, 0.5, 2) <= 1.001
