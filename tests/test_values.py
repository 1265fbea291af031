from __future__ import annotations

import math

import numpy as np
import pytest

from fedsink.errors import ConfigError, PrivacyError
from fedsink.values import checks, privacy_checks


def test_numbers_of_other_libraries_become_built_in():
    assert type(privacy_checks.positive("x", np.float64(2))) is float
    assert type(privacy_checks.count("x", np.int64(2))) is int
    assert type(privacy_checks.probability("x", 1)) is float


@pytest.mark.parametrize("value", [True, None, "1", 0, -1, math.nan, math.inf, 1 + 0j, [1]])
@pytest.mark.parametrize("check", [checks, privacy_checks])
def test_what_is_no_positive_number_is_refused(check, value):
    with pytest.raises(check.error, match="x must be"):
        check.positive("x", value)
    if value != 0:
        with pytest.raises(check.error, match="x must be"):
            check.count("x", value)


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [("[0, 1)", (0, 0.5), (1, -0.1, math.nan, False)), ("(0, 1]", (0.5, 1), (0, 1.1, math.nan))],
)
def test_an_interval_is_read_as_it_is_written(interval, inside, outside):
    for value in inside:
        assert checks.within("x", value, interval) == value
    for value in outside:
        with pytest.raises(ConfigError):
            checks.within("x", value, interval)


@pytest.mark.parametrize("check", [checks, privacy_checks])
@pytest.mark.parametrize("digits", [309, 5000])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_whole_number_that_no_float_holds_is_refused(check, digits, sign):
    value = sign * 10**digits
    for refuse in (check.positive, check.number, check.probability):
        with pytest.raises(check.error, match=r"x must .*000|x must .*thousands of digits"):
            refuse("x", value)


def test_a_missing_library_is_named():
    with pytest.raises(
        PrivacyError, match=r"package no-such-library .*pip install no-such-library"
    ):
        privacy_checks.require("no_such_library.part")


def test_a_choice_of_one_word_is_named():
    with pytest.raises(ConfigError, match=r"^kind is invert, not 'foo'\.$"):
        checks.choice("kind", "foo", "invert")
