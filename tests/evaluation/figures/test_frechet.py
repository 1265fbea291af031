from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedsink.evaluation.figures.frechet import frechet_distance

from ...support.clouds import cloud


def whitened(n: int, d: int, seed: int) -> torch.Tensor:
    """A sample with mean 0 and covariance I to rounding."""
    x = cloud(n, d, seed=seed)
    x = x - x.mean(dim=0)
    return x @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(x.T))).T


def test_closed_form_for_commuting_covariances():
    """N(0, diag a²) and N(m, diag b²): |m|² + Σ(a − b)²."""
    a, b = torch.tensor([1.0, 2.0, 0.5]).double(), torch.tensor([3.0, 1.0, 0.5]).double()
    m = torch.tensor([1.0, -2.0, 0.0]).double()
    x, y = whitened(200, 3, 1) * a, whitened(150, 3, 2) * b + m
    assert frechet_distance(x, y) == pytest.approx(5 + 4 + 1, rel=1e-9)


def test_agrees_with_scipys_matrix_root():
    from scipy.linalg import sqrtm

    x, y = (
        cloud(90, 6, seed=1) @ cloud(6, 6, seed=3),
        cloud(80, 6, seed=2) @ cloud(6, 6, seed=4),
    )
    c, d = np.cov(x.numpy().T), np.cov(y.numpy().T)
    gap = float((x.mean(dim=0) - y.mean(dim=0)).square().sum())
    expected = gap + np.trace(c + d - 2 * np.real(sqrtm(c @ d)))
    assert frechet_distance(x, y) == pytest.approx(expected, rel=1e-9)


def test_fewer_rows_than_dimensions_and_constant_features():
    """N(0, C) against a point at distance a: a² + tr C."""
    x = cloud(5, 12, seed=1)
    y = (x.mean(dim=0) + 3 / math.sqrt(12)).expand(4, 12)
    assert frechet_distance(x, y) == pytest.approx(9 + float(x.var(dim=0).sum()), rel=1e-6)
    assert frechet_distance(x, x) == pytest.approx(0, abs=1e-6)


def test_one_dimension():
    x = cloud(30, 1, seed=1)
    x = (x - x.mean()) / x.std()
    assert frechet_distance(x, 2 * x + 3) == pytest.approx(10)


@pytest.mark.parametrize(
    ("x", "y"), [(cloud(1, 2), cloud(5, 2)), (cloud(5, 2), cloud(5, 3)), (cloud(5), cloud(5))]
)
def test_refuses_samples_without_a_covariance(x, y):
    with pytest.raises(ValueError, match="at least two rows"):
        frechet_distance(x, y)


def test_refuses_what_is_not_finite():
    with pytest.raises(ValueError, match="finite features"):
        frechet_distance(cloud(5, 2), cloud(5, 2) * math.nan)
