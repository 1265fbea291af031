from __future__ import annotations

import math

import pytest
import torch
from fedsink_papers.evaluation.prdc import prdc

from tests.support.clouds import cloud


def brute(real: torch.Tensor, fake: torch.Tensor, k: int) -> dict[str, float]:
    """The definitions, point by point."""

    def radius(sample: torch.Tensor, i: int) -> float:
        distances = sorted(math.dist(sample[i], sample[j]) for j in range(len(sample)) if j != i)
        return distances[k - 1]

    def inside(y, sample):
        return [math.dist(y, x) <= radius(sample, i) for i, x in enumerate(sample)]

    of_fake = [inside(y, real) for y in fake]
    return {
        "precision": sum(any(row) for row in of_fake) / len(fake),
        "recall": sum(any(inside(x, fake)) for x in real) / len(real),
        "density": sum(map(sum, of_fake)) / (k * len(fake)),
        "coverage": sum(any(column) for column in zip(*of_fake, strict=True)) / len(real),
    }


@pytest.mark.medium
@pytest.mark.parametrize(("shift", "k"), [(0.0, 1), (1.5, 2), (2.0, 5)])
def test_agrees_with_the_definitions(shift, k):
    real, fake = cloud(30, 2, seed=1), cloud(25, 2, seed=2) + shift
    expected = brute(real, fake, k)
    assert all(0 < value < 1 for value in list(expected.values())[:2]), "a trivial case"
    assert prdc(real, fake, k=k) == pytest.approx(expected)


def test_far_apart_nothing_is_shared():
    assert set(prdc(cloud(20, 3), cloud(20, 3, seed=1) + 100).values()) == {0.0}


def test_half_of_the_modes():
    """Two real modes, one is drawn: all of it looks real, half of the real is reached."""
    mode = cloud(40, 2, seed=1)
    real = torch.cat([mode, cloud(40, 2, seed=2) + 100])
    found = prdc(real, mode + 1e-6 * cloud(40, 2, seed=3))
    assert found["precision"] == 1
    assert found["recall"] == 0.5
    assert found["coverage"] == 0.5
    assert found["density"] > 1  # twice the mass of the mode


def test_class_prototypes_are_precise_and_recall_nothing():
    real = cloud(60, 2, seed=1)
    found = prdc(real, torch.zeros(60, 2))
    assert found["precision"] == 1
    assert found["recall"] == 0


def test_equal_laws_have_density_one_and_the_known_coverage():
    """E density = 1, E coverage = 1 − (N−1)…(N−k)/((N+M−1)…(N+M−k)) (Naeem et al., section 3.2)."""
    n, m, k = 400, 300, 3
    expected = 1.0
    for i in range(1, k + 1):
        expected *= (n - i) / (n + m - i)
    expected = 1 - expected
    runs = [prdc(cloud(n, 4, seed=2 * s), cloud(m, 4, seed=2 * s + 1), k=k) for s in range(20)]
    coverage = sum(run["coverage"] for run in runs) / 20
    density = sum(run["density"] for run in runs) / 20
    assert coverage == pytest.approx(expected, abs=0.02)
    assert density == pytest.approx(1, abs=0.05)


def test_refuses_a_sample_without_a_kth_neighbour():
    with pytest.raises(ValueError, match="more than k=5 points on each side; received 5 and 9"):
        prdc(cloud(5, 2), cloud(9, 2))
