"""Numbers of names; a list of users is tested with the source that tells users apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedsink.data.identifiers import number_of


def test_the_number_of_a_name_is_fixed_for_ever() -> None:
    """A later version must not deal users or records differently."""
    assert number_of("f4031_33") == EXPECTED


EXPECTED = 3664484432072681533


@given(st.lists(st.text(), unique=True, max_size=50))
def test_numbers_are_int64_and_tell_names_apart(identifiers: list[str]) -> None:
    numbers = [number_of(identifier) for identifier in identifiers]
    assert len(set(numbers)) == len(identifiers)
    assert all(0 <= number < 2**63 for number in numbers)
