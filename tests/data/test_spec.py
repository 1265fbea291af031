from __future__ import annotations

import dataclasses
import math
import re

import pytest

from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError


def test_lists_become_tuples_and_the_spec_is_frozen_and_hashable() -> None:
    spec = DataSpec("digits", [1, 8, 8], ["a", "b"], 10)  # type: ignore[arg-type]
    assert spec.shape == (1, 8, 8)
    assert spec.classes == ("a", "b")
    assert hash(spec) == hash(DataSpec("digits", (1, 8, 8), ("a", "b"), 10))
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.nominal_records = 11  # type: ignore[misc]


def test_a_runs_table_is_the_spec_and_a_key_of_earlier_versions() -> None:
    table = {"name": "x", "shape": [2], "classes": ["a"], "nominal_records": 1, "corrupt": None}
    assert DataSpec.from_config(table) == DataSpec("x", (2,), ("a",), 1)
    with pytest.raises(ConfigError, match=r"Unknown key data\.nominal; there are name, shape"):
        DataSpec.from_config({**table, "nominal": 1})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": (8, 8)}, r"data\.shape must be .* got \(8, 8\)"),
        ({"shape": ()}, r"data\.shape must be .* got \(\)"),
        ({"shape": (1, 0, 8)}, r"positive sizes, got \(1, 0, 8\)"),
        *(
            ({"shape": value}, rf"data\.shape must be .* got {re.escape(repr(value))}: write")
            for value in (
                *(32, "32", None, True, 3.5, {}, {"a": 1}, "3,32,32", [[3, 32, 32]]),
                *((3, 32), (1, 2, 3, 4), (-1, 8, 8), (True,), (1.0, 8, 8), ("3", "8", "8")),
            )
        ),
        *(
            (
                {"classes": value},
                rf"data\.classes must be a list of names, got {re.escape(repr(value))}",
            )
            for value in (
                *("cat", "cat,dog", 3, None, True, {}, {"a": 1}),
                *((True, False), (None,), (1.0,), (["a"],), ("a", None), (b"a",)),
            )
        ),
        *(
            (
                {"nominal_records": value},
                rf"a whole number of at least 1, not {re.escape(repr(value))}",
            )
            for value in (0, -1, True, 1.0, 1.5, math.nan, math.inf, "5", None, [5])
        ),
        *(
            ({"shape": value}, r"at most 4,194,304 values and sides of at most 4096, and the shape")
            for value in ((2**22 + 1,), (1, 1, 4097), (1, 4097, 1), (2, 2048, 2048), (10**12,))
        ),
        ({"classes": tuple(range(2**16 + 1))}, "at most 65,536 classes, got 65,537"),
        *(
            ({"range": value}, rf"data\.range must be .* got {re.escape(repr(value))}: write")
            for value in (
                *((0,), (0, 1, 2), (1, 0), (5, 5), (0, math.nan), (-math.inf, 0), (0, math.inf)),
                *((0, 2**33), (0, 10**400), ("0", "9"), (False, True), 4095, "0,4095", {}),
            )
        ),
        ({"classes": ("",)}, r"each once, got \(''"),
        ({"classes": (1, "1")}, r"each once, got \('1', '1'\)"),
        ({"classes": ()}, r"at least one class, each once, got \(\)"),
        ({"classes": ("a", "a")}, r"each once, got \('a', 'a'\)"),
    ],
)
def test_impossible_descriptions_are_refused(change: dict[str, object], message: str) -> None:
    valid = {"name": "x", "shape": (1, 8, 8), "classes": ("a",), "nominal_records": 1}
    with pytest.raises(ConfigError, match=message):
        DataSpec(**(valid | change))  # type: ignore[arg-type]


def test_the_largest_sizes_are_possible() -> None:
    for shape in ((2**22,), (1, 2048, 2048), (1, 4096, 1024), (3, 1, 4096)):
        DataSpec("x", shape, tuple(map(str, range(2**16))), 1)


def test_a_range_is_two_numbers_and_may_be_left_out() -> None:
    table = {"name": "x", "shape": [1, 8, 8], "classes": ["a"], "nominal_records": 1}
    assert DataSpec.from_config(table).range is None
    assert DataSpec.from_config({**table, "range": [-1024, 3071.5]}).range == (-1024.0, 3071.5)
    hash(DataSpec.from_config({**table, "range": [0, 4095]}))
