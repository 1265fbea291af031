"""Numbers of users; the list of those that take part is tested with the source that has them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedsink.data.users import user_number


def test_a_users_number_is_fixed_for_ever() -> None:
    """A later version must not deal users differently."""
    assert user_number("f4031_33") == EXPECTED


EXPECTED = 3664484432072681533


@given(st.lists(st.text(), unique=True, max_size=50))
def test_numbers_are_int64_and_tell_users_apart(identifiers: list[str]) -> None:
    numbers = [user_number(identifier) for identifier in identifiers]
    assert len(set(numbers)) == len(identifiers)
    assert all(0 <= number < 2**63 for number in numbers)
