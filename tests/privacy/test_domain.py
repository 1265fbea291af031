"""The public numeric domain: its ends are inside, and any value beyond is refused."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

from fedsink.errors import PrivacyError
from fedsink.privacy import domain
from fedsink.privacy.domain import Interval

INTERVALS = [value for value in vars(domain).values() if isinstance(value, Interval)]
COUNTS = (domain.ROUNDS, domain.RECORDS)
every_interval = pytest.mark.parametrize("interval", INTERVALS, ids=lambda interval: interval.name)


@every_interval
def test_both_ends_are_inside_and_nothing_beyond_them(interval: Interval) -> None:
    for end, beyond in ((interval.low, -math.inf), (interval.high, math.inf)):
        assert interval.check(end) == end
        outside = math.nextafter(end, beyond)
        sentence = (
            f"{interval.name} must be a number from {interval.low:.4g} to {interval.high:.4g}, "
            f"received {outside!r}: choose one that is far from the limits of floats."
        )
        with pytest.raises(PrivacyError, match=f"^{re.escape(sentence)}$"):
            interval.check(outside)


@every_interval
@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 10**400, -(10**400), True, None, "1", [1], 1j]
)
def test_what_is_no_number_inside_is_refused(interval: Interval, value: Any) -> None:
    with pytest.raises(PrivacyError, match=r"must be a number from .*, received "):
        interval.check(value)


def test_a_number_inside_becomes_a_float() -> None:
    checked = domain.CLIP_BOUND.check(2)
    assert (checked, type(checked)) == (2.0, float)


@pytest.mark.parametrize("interval", COUNTS, ids=lambda interval: interval.name)
def test_a_count_is_a_whole_number_inside(interval: Interval) -> None:
    for end in (int(interval.low), int(interval.high)):
        counted = interval.check_count(end)
        assert (counted, type(counted)) == (end, int)
    for value in (int(interval.low) - 1, 1.5, 2.0, True, None, "3", math.nan):
        with pytest.raises(PrivacyError, match=f"{interval.name} must be an integer ≥ 1, received"):
            interval.check_count(value)  # type: ignore[arg-type]
    for value in (int(interval.high) + 1, 10**400):
        with pytest.raises(PrivacyError, match=f"{interval.name} must be at most .*, received"):
            interval.check_count(value)


@every_interval
def test_a_tensor_is_held_with_all_its_entries_or_not_at_all(interval: Interval) -> None:
    inside = torch.linspace(interval.low, interval.high, 7, dtype=torch.float64)
    inside[-1] = interval.high  # as linspace may miss it
    assert interval.holds(inside)
    assert interval.holds(inside.reshape(7, 1).expand(7, 3))
    below, above = math.nextafter(interval.low, -math.inf), math.nextafter(interval.high, math.inf)
    for wrong in (below, above, math.nan, math.inf, -math.inf):
        for place in (0, 3, 6):
            values = inside.clone()
            values[place] = wrong
            assert not interval.holds(values)


@every_interval
@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0), (2**40, 0)])
def test_nothing_at_all_is_held(interval: Interval, shape: tuple[int, ...]) -> None:
    assert interval.holds(torch.zeros(shape))


def test_float32_entries_are_compared_as_they_are() -> None:
    """2²⁰ has a float32 neighbour above it that is outside."""
    end = torch.tensor([domain.ROWS.high], dtype=torch.float32)
    assert domain.ROWS.holds(end)
    assert domain.ROWS.holds(-end)
    assert not domain.ROWS.holds(torch.nextafter(end, torch.tensor(math.inf)))


def test_squares_and_sums_inside_the_domain_stay_far_from_the_edges_of_float64() -> None:
    """Costs, their multiples and scales of noise: normal numbers with room."""
    cost = 4 * domain.ROWS.high**2 * 1e9 + domain.COST_WEIGHT.high * domain.ROWS.high * 1e9
    assert cost / domain.REGULARISATION.low < 1e60
    smallest = domain.CLIP_BOUND.low * domain.NOISE_MULTIPLIER.low
    assert smallest**2 > 1e-60
    largest = 2 * domain.CLIP_BOUND.high * domain.NOISE_MULTIPLIER.high
    assert 2.0**-126 < smallest < largest < 2.0**120  # so a release of float32 can carry it
