from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsink.errors import PrivacyError
from fedsink.privacy.fixed_point import FixedPoint

GRID = FixedPoint(granularity=2.0**-6, bits=20, radius=100.0)
VALUES = st.floats(-150.0, 150.0, width=64)


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=20))
def test_rounding_moves_two_totals_apart_by_at_most_root_d(pairs):
    one, two = torch.tensor(pairs, dtype=torch.float64).T
    distance = float((one - two).norm()) / GRID.granularity
    integers = GRID.rounded(torch.stack([one, two])).double()
    assert float((integers[0] - integers[1]).norm()) <= distance + len(pairs) ** 0.5 + 1e-6


def test_the_bound_of_the_roundings_is_met():
    """Totals on both sides of a half move a whole step in every coordinate."""
    low = torch.full((1, 9), 0.5 * GRID.granularity - 1e-9, dtype=torch.float64)
    high = torch.full((1, 9), 0.5 * GRID.granularity + 1e-9, dtype=torch.float64)
    apart = GRID.rounded(high).double() - GRID.rounded(low).double()
    assert float(apart.norm()) == 3.0


@given(st.lists(VALUES, min_size=1, max_size=20))
def test_integers_lie_within_the_radius_and_short_totals_are_kept(values):
    total = torch.tensor([values], dtype=torch.float64)
    integers = GRID.rounded(total)
    assert float(integers.double().norm()) <= GRID.radius / GRID.granularity + len(values) ** 0.5
    if float(total.norm()) < GRID.radius * 0.999:
        error = (GRID.decoded(integers) - total).abs().amax()
        assert float(error) <= GRID.granularity / 2 * (1 + 1e-9)


def test_a_long_total_is_projected_on_the_ball_and_not_cut():
    total = torch.tensor([[300.0, 400.0]], dtype=torch.float64)
    assert GRID.decoded(GRID.rounded(total)).tolist() == [pytest.approx([60.0, 80.0], abs=0.02)]


def test_a_total_may_be_a_single_number():
    totals = torch.tensor([0.3, -1000.0])
    assert GRID.rounded(totals).tolist() == [19, -6400]


@pytest.mark.parametrize("bits", [16, 17, 32, 59, 60])
def test_sums_are_decoded_up_to_the_last_integer_that_fits(bits):
    grid = FixedPoint(0.5, bits, 1.0)
    half = 2 ** (bits - 1)
    for whole in (0, 1, -1, half - 1, -half):
        assert float(grid.decoded(torch.tensor(whole))) == whole * 0.5
    assert float(grid.decoded(torch.tensor(half))) == -half * 0.5


@given(st.lists(st.integers(-(2**59), 2**59 - 1), min_size=1, max_size=64))
def test_sums_modulo_the_modulus_are_exact_whatever_overflows(parts):
    grid = FixedPoint(1.0, 60, 1.0)
    with np.errstate(over="ignore"):
        added = torch.tensor(parts, dtype=torch.int64).sum()
    exact = (sum(parts) + 2**59) % 2**60 - 2**59
    assert int(grid.wrapped(added)) == exact


@pytest.mark.parametrize(
    "values",
    [
        (0.3, 32, 1.0), (0.0, 32, 1.0), (-1.0, 32, 1.0), (math.nan, 32, 1.0), (math.inf, 32, 1.0),
        (1.0, 15, 1.0), (1.0, 61, 1.0), (1.0, 32.0, 1.0), (1.0, True, 1.0), (1.0, None, 1.0),
        (1.0, 32, 0.0), (1.0, 32, -1.0), (1.0, 32, math.nan), (1.0, 32, math.inf),
        (1.0, 32, 2.0**31), (2.0**-101, 60, 2.0**-60), ("1", 32, 1.0), (True, 32, 1.0),
    ],
)  # fmt: skip
def test_bad_values_are_refused(values):
    with pytest.raises(PrivacyError):
        FixedPoint(*values)


def test_a_total_that_is_not_finite_is_refused():
    for value in (math.nan, math.inf):
        with pytest.raises(PrivacyError, match="not finite"):
            GRID.rounded(torch.tensor([[0.0, value]]))


def test_it_is_read_as_it_was_written():
    assert FixedPoint.from_dict(GRID.to_dict()) == GRID
    assert FixedPoint.from_dict(None) is None
