from __future__ import annotations

import pytest

from fedsink.pages import tables


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (0.0, "0"), (12, "12"), (1437, "1,437"), (0.2, "0.2"), (1e-5, "1e-5"),
        (2.34567, "2.346"), (12345.6, "12,346"), (3.4e7 + 0.5, "3.4e7"), (float("inf"), "∞"),
        (-0.123456, "-0.1235"),
    ],
)  # fmt: skip
def test_numbers_are_short(value: float, text: str) -> None:
    assert tables.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0312, "0.031 s"), (59.6, "1 min 0 s"), (3600, "1 h 0 min"), (90061, "25 h 1 min")],
)
def test_times_have_two_units(seconds: float, text: str) -> None:
    assert tables.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (5e12, "5,000.0 GB")]
)
def test_sizes_have_units(count: int, text: str) -> None:
    assert tables.size(count) == text
