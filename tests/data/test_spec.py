from __future__ import annotations

import dataclasses

import pytest

from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError


def test_lists_become_tuples_and_the_spec_is_hashable() -> None:
    spec = DataSpec("digits", [1, 8, 8], ["a", "b"], 10)  # type: ignore[arg-type]
    assert spec.shape == (1, 8, 8)
    assert spec.classes == ("a", "b")
    assert hash(spec) == hash(DataSpec("digits", (1, 8, 8), ("a", "b"), 10))


def test_the_spec_cannot_be_changed() -> None:
    spec = DataSpec("digits", (1, 8, 8), ("a",), 10)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.nominal_records = 11  # type: ignore[misc]


def test_a_runs_table_is_the_spec_and_what_is_done_to_simulated_clients() -> None:
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
        ({"classes": ()}, r"at least one class, each once, got \(\)"),
        ({"classes": ("a", "a")}, r"each once, got \('a', 'a'\)"),
        ({"nominal_records": 0}, r"nominal_records must be at least 1, got 0"),
    ],
)
def test_impossible_descriptions_are_refused(change: dict[str, object], message: str) -> None:
    valid = {"name": "x", "shape": (1, 8, 8), "classes": ("a",), "nominal_records": 1}
    with pytest.raises(ConfigError, match=message):
        DataSpec(**(valid | change))  # type: ignore[arg-type]
