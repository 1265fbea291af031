from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsink.transport.clipped_sums import clipped_pullback

from ..support.clouds import cloud
from ..support.exact import WIDE_BOUNDS, squared_distance

N, D, P, M = 5, 3, 17, 8


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * cloud(*shape, seed=seed, dtype=torch.float32)


def linear(scale: float = 1.0) -> Callable[[Tensor], Tensor]:
    matrix = numbers(P, N * D, seed=9, scale=scale)
    return lambda v: matrix @ v.to(torch.float32).flatten()


X, Y, F = numbers(N, D), numbers(M, D, seed=1), numbers(N, seed=2)


def test_it_is_the_sum_of_clipped_images_of_the_records_fields() -> None:
    """w and g_j written out; Δ is such that some are clipped and some are not."""
    w = torch.softmax((F.unsqueeze(1) - torch.cdist(X, Y) ** 2) / 0.7, dim=0)
    pull, bound = linear(), 2.0
    fields = w.T.unsqueeze(-1) * (X.unsqueeze(0) - Y.unsqueeze(1))
    pulled = [pull(field) for field in fields]
    clipped = [v * min(1.0, bound / float(v.norm())) for v in pulled]
    assert 0 < sum(float(v.norm()) > bound for v in pulled) < M
    found = clipped_pullback(X, Y, F, 0.7, bound, pull)
    assert found.dtype == torch.float64
    # The bound leaves 2⁻¹⁶ for rounding.
    torch.testing.assert_close(found, sum(clipped).double(), rtol=1e-4, atol=1e-4)  # type: ignore[union-attr]


def test_a_mask_chooses_the_rows() -> None:
    mask = torch.arange(N).unsqueeze(1) % 2 == torch.arange(M) % 2
    pull = linear()
    found = clipped_pullback(X, Y, F, 0.7, 2.0, pull, mask)
    expected = torch.zeros(P, dtype=torch.float64)
    for parity in (0, 1):
        rows = torch.arange(N) % 2 == parity

        def widened(v: Tensor, rows: Tensor = rows) -> Tensor:
            whole = torch.zeros(N, D, dtype=v.dtype)
            whole[rows] = v
            return pull(whole)

        chosen = Y[torch.arange(M) % 2 == parity]
        expected += clipped_pullback(X[rows], chosen, F[rows], 0.7, 2.0, widened)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e6, 1e30, 3e38])
@pytest.mark.parametrize("points", [1e-20, 1.0, 1e15, 1e38])
@pytest.mark.parametrize("lam", [1e-6, 1.0, 1e12])
def test_each_record_contributes_at_most_the_bound(scale: float, points: float, lam: float) -> None:
    """For every Jacobian, all points and every λ."""
    for record in numbers(M, D, seed=3, scale=points):
        found = clipped_pullback(X, record.unsqueeze(0), F, lam, 0.5, linear(scale))
        assert float(found.norm()) <= 0.5


def test_no_record_changes_another_records_contribution() -> None:
    """The sum equals that of separate contributions to the last bit."""
    pull = linear(1e4)
    one_by_one = torch.zeros(P, dtype=torch.float64)
    for record in Y:
        one_by_one += clipped_pullback(X, record.unsqueeze(0), F, 0.7, 0.5, pull)
    assert torch.equal(clipped_pullback(X, Y, F, 0.7, 0.5, pull), one_by_one)
    without = clipped_pullback(X, Y[:-1], F, 0.7, 0.5, pull)
    added = clipped_pullback(X, Y[-1:], F, 0.7, 0.5, pull)
    assert torch.equal(without + added, one_by_one)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_contribution_that_is_not_finite_is_zero(value: float) -> None:
    wrong = torch.cat([Y, torch.full((1, D), value)])
    pull = linear()
    assert torch.equal(clipped_pullback(X, wrong, F, 0.7, 2.0, pull),
                       clipped_pullback(X, Y, F, 0.7, 2.0, pull))  # fmt: skip
    nothing = clipped_pullback(X, Y, F, 0.7, 2.0, lambda v: pull(v) * math.inf)
    assert not bool(nothing.any())


def test_a_record_without_rows_or_no_record_at_all_gives_zero() -> None:
    nowhere = torch.zeros(N, M, dtype=torch.bool)
    assert not bool(clipped_pullback(X, Y, F, 0.7, 2.0, linear(), nowhere).any())
    empty = clipped_pullback(X, Y[:0], F, 0.7, 2.0, linear())
    assert empty.shape == (P,)
    assert not bool(empty.any())


def test_shapes_and_bounds_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="clip bound Δ must be"):
        clipped_pullback(X, Y, F, 0.7, 0.0, linear())
    with pytest.raises(ValueError, match=r"potential \(n,\)"):
        clipped_pullback(X, Y, F[:-1], 0.7, 1.0, linear())


# Over the whole range of floats, in exact arithmetic


@pytest.mark.medium
@settings(max_examples=200)
@given(
    scale=st.sampled_from([1e-45, 1e-38, 1e-20, 1.0, 1e20, 1e38]),
    points=st.sampled_from([1e-30, 1.0, 1e15, 1e38]),
    lam=st.sampled_from([1e-12, 1.0, 1e12]),
    bound=WIDE_BOUNDS,
    seed=st.integers(0, 100),
)
def test_contributions_and_sums_keep_the_bound_exactly(
    scale: float, points: float, lam: float, bound: float, seed: int
) -> None:
    """For every Jacobian: its products may vanish, be subnormal or overflow."""
    records, pull = numbers(M, D, seed=seed, scale=points), linear(scale)
    whole = clipped_pullback(X, records, F, lam, bound, pull)
    assert whole.dtype == torch.float64
    for j in range(0, M, 3):
        alone = clipped_pullback(X, records[j : j + 1], F, lam, bound, pull)
        assert squared_distance(alone, torch.zeros_like(alone)) <= Fraction(bound) ** 2
        others = torch.cat((records[:j], records[j + 1 :]))
        without = clipped_pullback(X, others, F, lam, bound, pull)
        assert squared_distance(whole, without) <= Fraction(bound) ** 2


def test_a_bound_near_each_length_is_kept_exactly() -> None:
    pull = linear(1e3)
    for record in numbers(M, D, seed=3):
        long = clipped_pullback(X, record.unsqueeze(0), F, 1.0, 1e30, pull)
        length = float(long.norm())
        for factor in (0.51, 1 - 2.0**-17, 1.0, 1 + 2.0**-52):
            bound = factor * length
            found = clipped_pullback(X, record.unsqueeze(0), F, 1.0, bound, pull)
            kept = squared_distance(found, torch.zeros_like(found))
            assert (bound * (1 - 2.0**-15)) ** 2 <= kept <= Fraction(bound) ** 2
