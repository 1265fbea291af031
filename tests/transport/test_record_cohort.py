from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsink.transport import clipped_record_field, record_cohort
from fedsink.transport.record_cohort import clipped_record_fields

BOUND, LAM = 0.7, 2.0


def cloud(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, F = cloud(6, 4, seed=1), cloud(6, seed=2)
Y = cloud(5, 7, 4, seed=3)
PRESENT = torch.rand(5, 7, generator=torch.Generator().manual_seed(4)) < 0.6
PRESENT[2] = False


def test_a_cohort_equals_the_loop_over_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = torch.stack([clipped_record_field(X, y, F, LAM, BOUND) for y in Y])
    some = torch.stack(
        [clipped_record_field(X, y[p], F, LAM, BOUND) for y, p in zip(Y, PRESENT, strict=True)]
    )
    # Nothing but the matmul may answer here.
    monkeypatch.delattr(record_cohort, "clipped_record_field")
    torch.testing.assert_close(clipped_record_fields(X, Y, F, LAM, BOUND), alone)
    fields = clipped_record_fields(X, Y, F, LAM, BOUND, present=PRESENT)
    torch.testing.assert_close(fields, some)
    assert fields[2].abs().max() == 0.0


@pytest.mark.parametrize("value", [1e150, math.inf, math.nan])
def test_a_cohort_with_hostile_records_equals_the_loop(value: float) -> None:
    y = Y.clone()
    y[1, 3, 2] = value
    fields = clipped_record_fields(X, y, F, LAM, BOUND)
    for k in range(5):
        assert torch.equal(fields[k], clipped_record_field(X, y[k], F, LAM, BOUND))
    assert fields.isfinite().all()


def test_what_stands_in_an_empty_place_does_not_matter() -> None:
    y = Y.masked_fill(~PRESENT.unsqueeze(-1), math.nan)
    torch.testing.assert_close(
        clipped_record_fields(X, y, F, LAM, BOUND, present=PRESENT),
        clipped_record_fields(X, Y, F, LAM, BOUND, present=PRESENT),
        rtol=0,
        atol=0,
    )


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e9])
def test_each_contribution_in_a_cohort_has_norm_at_most_the_bound(scale: float) -> None:
    fields = clipped_record_fields(X, scale * Y[:, :1], F, LAM, BOUND)
    assert float(fields.flatten(1).norm(dim=1).max()) <= BOUND
    pair = scale * Y[:, :2]
    both = clipped_record_fields(X, pair, F, LAM, BOUND)
    present = torch.tensor([True, False]).expand(5, 2)
    one = clipped_record_fields(X, pair, F, LAM, BOUND, present=present)
    assert float((both - one).flatten(1).norm(dim=1).max()) <= BOUND


def test_no_record_changes_another_clients_field() -> None:
    before = clipped_record_fields(X, Y, F, LAM, BOUND)
    for value in (3.0, 1e9, math.nan):
        y = Y.clone()
        y[0, 0] = value
        after = clipped_record_fields(X, y, F, LAM, BOUND)
        moved = (after - before).flatten(1).norm(dim=1)
        assert float(moved[1:].max()) <= 2.0**-16 * BOUND
        assert float(moved[0]) <= 2.0 * BOUND


def test_empty_cohorts() -> None:
    assert clipped_record_fields(X, Y[:0], F, LAM, BOUND).shape == (0, 6, 4)
    assert clipped_record_fields(X, Y[:, :0], F, LAM, BOUND).abs().sum() == 0.0


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Records \(K, m, d\) are needed, got shape \(7, 4\)"):
        clipped_record_fields(X, Y[0], F, LAM, BOUND)
    with pytest.raises(ValueError, match=r"boolean of shape \(5, 7\), got torch.bool of shape"):
        clipped_record_fields(X, Y, F, LAM, BOUND, present=PRESENT[0])
    with pytest.raises(ValueError, match=r"clip bound Δ must be a positive finite number, got 0"):
        clipped_record_fields(X, Y, F, LAM, 0.0)


# Over the whole range of floats, in exact arithmetic

WIDE_BOUNDS = st.one_of(
    st.floats(5e-324, 1e150, allow_subnormal=True),
    st.sampled_from([5e-324, 1e-310, 2.0**-1000, 1e-200, 1e-140, 2.0**-149, 0.5, 1e6, 1e150]),
)


def squared_distance(one: Tensor, other: Tensor) -> Fraction:
    """‖a − b‖², exactly."""
    pairs = zip(one.flatten().tolist(), other.flatten().tolist(), strict=True)
    return sum(((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs), Fraction(0))


@st.composite
def cohorts(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, float, Tensor]:
    """Points, the records of up to three clients, potentials, λ, and who is there."""
    n, k, m, d = (draw(st.integers(1, most)) for most in (3, 3, 4, 3))
    entries = st.one_of(
        st.floats(-30.0, 30.0),
        st.sampled_from([0.0, 1e8, -1e150, 1.7e308, 5e-324, 1e-150, math.inf, math.nan]),
    )

    def tensor(*shape: int) -> Tensor:
        size = math.prod(shape)
        values = draw(st.lists(entries, min_size=size, max_size=size))
        return torch.tensor(values, dtype=torch.float64).reshape(shape)

    lam = draw(st.sampled_from([1e-300, 1e-6, 0.5, 1e6, 1e300]))
    there = draw(st.lists(st.booleans(), min_size=k * m, max_size=k * m))
    return tensor(n, d), tensor(k, m, d), tensor(n), lam, torch.tensor(there).reshape(k, m)


@settings(max_examples=300)
@given(cohort=cohorts(), bound=WIDE_BOUNDS)
def test_each_clients_sum_keeps_the_bound_exactly(
    cohort: tuple[Tensor, Tensor, Tensor, float, Tensor], bound: float
) -> None:
    """A record less moves its own client's field by at most Δ."""
    x, y, f, lam, present = cohort
    whole = clipped_record_fields(x, y, f, lam, bound, present=present)
    for place in range(y.shape[1]):
        alone, less = torch.zeros_like(present), present.clone()
        alone[:, place], less[:, place] = present[:, place], False
        one = clipped_record_fields(x, y, f, lam, bound, present=alone)
        rest = clipped_record_fields(x, y, f, lam, bound, present=less)
        for k in range(len(y)):
            assert squared_distance(one[k], torch.zeros_like(one[k])) <= Fraction(bound) ** 2
            assert squared_distance(whole[k], rest[k]) <= Fraction(bound) ** 2
