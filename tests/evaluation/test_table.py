from __future__ import annotations

import pytest

from fedsink.evaluation.table import format_table


def test_aligns_numbers_right_and_text_left():
    rows = [
        {"data": "synthetic", "logreg": 0.5, "images": 1000},
        {"data": "real", "logreg": 0.92345, "images": 60000},
    ]
    assert format_table(rows) == (
        "data       logreg  images\n"
        "---------  ------  ------\n"
        "synthetic   0.500    1000\n"
        "real        0.923   60000"
    )


def test_missing_cells_and_keys_of_later_rows():
    assert format_table([{"a": 1.0}, {"b": "x", "a": None}]) == (
        "    a  b\n-----  -\n1.000  -\n    -  x"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e-5, "1e-05"), (0.0, "0.000"), (0.0006, "0.001"), (-0.0001, "-0.0001"), (True, "True")],
)
def test_small_numbers_keep_significant_digits(value, text):
    assert format_table([{"v": value}]).splitlines()[2].strip() == text


def test_line_breaks_cannot_break_the_table():
    assert len(format_table([{"a": "x\ny"}]).splitlines()) == 3


@pytest.mark.parametrize("rows", [[], [{}]])
def test_refuses_a_table_of_nothing(rows):
    with pytest.raises(ValueError, match="at least one row with one column"):
        format_table(rows)
