from __future__ import annotations

from typing import Any

import pytest

from fedsink.protocol.requests import new_run_name, run_name, table


@pytest.mark.parametrize("name", ["a", "ward 7, first try", "ε = 3", "x" * 200])
def test_a_printable_name_is_taken_as_it_is(name: str) -> None:
    assert run_name(name) == name


@pytest.mark.parametrize("name", ["", "x" * 201, "two\nlines", "a\x00b", "\x1b[31m", None, 7, b"a"])
def test_anything_else_is_refused_without_being_repeated_in_full(name: object) -> None:
    with pytest.raises(ValueError, match="must be 1 to 200 printable characters") as caught:
        run_name(name)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 150


def test_no_two_new_names_are_equal() -> None:
    names = {run_name(new_run_name()) for _ in range(100)}
    assert len(names) == 100


@pytest.mark.parametrize("value", [None, True, 3, 0.5, "a", [], [["name", "pixel"]]])
def test_a_table_is_an_object(value: Any) -> None:
    assert table({"a": 1}) == {"a": 1}
    with pytest.raises(TypeError, match=f"^a {type(value).__name__} is not an object$"):
        table(value)
