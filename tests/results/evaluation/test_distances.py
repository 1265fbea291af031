from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsink.results.evaluation.distances import (
    exact_w2,
    frechet_distance,
    label_histogram,
    sliced_w2,
    subsample,
)

from ...support.clouds import cloud


def test_sliced_w2_of_two_diracs():
    x, y = torch.zeros(3, 4), torch.zeros(5, 4) + torch.tensor([3.0, 0, 4, 0])
    # SW₂² = a²/d with a = 5, d = 4; (θ·u)² has relative spread √(2(d−1)/(d+2)) = 1 per direction.
    assert sliced_w2(x, y, projections=20_000) == pytest.approx(2.5, rel=0.02)


def test_sliced_w2_in_one_dimension_is_exact():
    x, y = torch.tensor([[0.0], [10.0]]), torch.tensor([[11.0], [2.0]])
    assert sliced_w2(x, y, projections=3) == pytest.approx(math.sqrt((4 + 1) / 2))


@pytest.mark.medium
@pytest.mark.quick("1.5-1.0")
@pytest.mark.parametrize(("shift", "scale"), [(0.0, 2.0), (1.5, 1.0), (1.5, 0.5)])
def test_sliced_w2_of_gaussians(shift, scale):
    """Isotropic Gaussians: W₂² along θ is (θ·m)² + (s − 1)², so SW₂² = |m|²/d + (s − 1)²."""
    d = 6
    x, y = cloud(5000, d, seed=1), scale * cloud(5000, d, seed=2) + shift
    expected = math.sqrt(shift**2 + (scale - 1) ** 2)
    assert sliced_w2(x, y, projections=600) == pytest.approx(expected, rel=0.07)


def test_sliced_w2_is_a_symmetric_pseudo_distance_below_w2():
    x, y = cloud(60, 3, seed=1), cloud(60, 3, seed=2) * 2 + 1
    assert sliced_w2(x, x.flip(0)) == pytest.approx(0, abs=1e-12)
    assert sliced_w2(x, y) == pytest.approx(sliced_w2(y, x))
    assert 0 < sliced_w2(x, y) < exact_w2(x, y)


def test_sliced_w2_takes_images_and_unequal_sizes():
    x, y = cloud(50, 2, 3, 3, seed=1), cloud(80, 2, 3, 3, seed=2)
    cut = subsample(y, 50, seed=4)
    assert sliced_w2(x, y, seed=4) == sliced_w2(x.flatten(1), cut.flatten(1), seed=4)


def test_sliced_w2_depends_only_on_its_seed():
    x, y = cloud(50, 5, seed=1), cloud(50, 5, seed=2) + 1
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = sliced_w2(x, y, projections=10, seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert sliced_w2(x, y, projections=10, seed=0) == first
    assert sliced_w2(x, y, projections=10, seed=1) != first


@given(
    n=st.integers(1, 25),
    d=st.integers(1, 4),
    seed=st.integers(0, 2**31),
    scale=st.floats(0.1, 5.0),
    shift=st.floats(-3.0, 3.0),
)
@settings(max_examples=30, deadline=None)
def test_exact_w2_of_a_convex_gradient(n, d, seed, scale, shift):
    """T(x) = s·x + m is the gradient of a convex function, hence optimal (Brenier 1991)."""
    x = cloud(n, d, seed=seed)
    image = scale * x + shift
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    expected = math.sqrt(float((image - x).square().sum(dim=1).mean()))
    assert exact_w2(x, image[order]) == pytest.approx(expected, abs=1e-7)


def test_exact_w2_with_unequal_sizes():
    assert exact_w2(torch.zeros(1, 2), torch.tensor([[3.0, 0.0], [0.0, -1.0]])) == pytest.approx(
        math.sqrt(5)
    )
    x = cloud(20, 2)
    assert exact_w2(x, torch.cat([x, x, x])) == pytest.approx(0, abs=1e-9)


def test_exact_w2_without_pot_agrees(monkeypatch):
    x, y = cloud(40, 2, seed=1), cloud(40, 2, seed=2) + 0.5
    with_pot = exact_w2(x, y)
    monkeypatch.setitem(sys.modules, "ot", None)
    assert exact_w2(x, y) == pytest.approx(with_pot, rel=1e-9)
    with pytest.raises(ValueError, match="equal size; received 40 and 39 points"):
        exact_w2(x, y[:39])


def test_exact_w2_is_accurate_for_close_points_far_from_the_origin():
    x = torch.tensor([[1e4, 0.0]], dtype=torch.float64)
    assert exact_w2(x, x + 1e-3) == pytest.approx(math.sqrt(2) * 1e-3, rel=1e-6)


@pytest.mark.parametrize("distance", [sliced_w2, exact_w2])
@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(3, 2), torch.zeros(3, 4), "same dimension; received 2 and 4"),
        (torch.zeros(0, 2), torch.zeros(3, 2), r"x must hold at least one point .*\(0, 2\)"),
        (torch.zeros(3, 2), torch.zeros(3), r"y must hold at least one point .*\(3,\)"),
        (torch.zeros(3, 2), torch.full((3, 2), math.nan), "y holds values that are not finite"),
    ],
)
def test_distances_say_what_does_not_fit(distance, x, y, message):
    with pytest.raises(ValueError, match=message):
        distance(x, y)


def test_sliced_w2_refuses_no_projections():
    with pytest.raises(ValueError, match="projections must be at least 1; received 0"):
        sliced_w2(torch.zeros(2, 2), torch.zeros(2, 2), projections=0)


def test_subsample_draws_distinct_rows_by_seed():
    x = torch.arange(100).reshape(100, 1)
    first = subsample(x, 30, seed=1)
    assert len(set(first.flatten().tolist())) == 30
    assert torch.equal(first, subsample(x, 30, seed=1))
    assert not torch.equal(first, subsample(x, 30, seed=2))
    assert subsample(x, 100) is x
    with pytest.raises(ValueError, match="at least 1; received 0"):
        subsample(x, 0)


def test_label_histogram_counts_every_class():
    assert label_histogram(torch.tensor([0, 2, 2, 0, 2]), 4) == [2, 0, 3, 0]
    assert label_histogram(torch.tensor([], dtype=torch.int64), 2) == [0, 0]


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        (torch.tensor([0, 4]), 4, r"0\.\.3; received labels from 0 to 4"),
        (torch.tensor([-1, 0]), 4, r"0\.\.3; received labels from -1 to 0"),
        (torch.tensor([0.0]), 4, "integers; received dtype torch.float32"),
        (torch.tensor([0]), 0, "at least 1 class; received classes=0"),
    ],
)
def test_label_histogram_says_what_does_not_fit(labels, classes, message):
    with pytest.raises(ValueError, match=message):
        label_histogram(labels, classes)


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
