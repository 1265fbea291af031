from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsink.data.labelled import LabelledData, Reading, checked_records, number_of
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError, DataError

SPEC = DataSpec("pictures", (1, 2, 2), ("a", "b"), 3)
POINT = DataSpec("points", (2,), ("a",), 1)


def checked(
    values: torch.Tensor,
    labels: torch.Tensor,
    spec: DataSpec,
    users: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
) -> LabelledData:
    return checked_records(Reading(values, labels, users, slots), spec)


def test_bytes_are_scaled_when_taken() -> None:
    values = torch.tensor([0, 51, 255, 255], dtype=torch.uint8).reshape(1, 1, 2, 2)
    data = checked(values, torch.tensor([1]), SPEC)
    images, labels = data.take(torch.tensor([0, 0]))
    assert data.values.dtype == torch.uint8
    assert images.dtype == torch.float32
    torch.testing.assert_close(images[1].flatten(), torch.tensor([0.0, 0.2, 1.0, 1.0]))
    assert labels.tolist() == [1, 1]
    assert labels.dtype == torch.int64


def test_taking_copies_so_that_the_shared_data_stays_intact() -> None:
    data = checked(torch.full((2, 1, 2, 2), 0.5), torch.tensor([0, 1]), SPEC)
    images, labels = data.take(torch.tensor([0, 1]))
    images.zero_()
    labels.zero_()
    assert float(data.values.min()) == 0.5
    assert data.labels.tolist() == [0, 1]


def test_an_empty_draw_has_zero_rows_and_points_keep_their_range() -> None:
    data = checked(torch.full((2, 1, 2, 2), 200, dtype=torch.uint8), torch.tensor([0, 1]), SPEC)
    images, labels = data.take(torch.empty(0, dtype=torch.int64))
    assert images.shape == (0, 1, 2, 2)
    assert images.dtype == torch.float32
    assert labels.shape == (0,)
    points = checked(torch.tensor([[-3.0, 7.0]]), torch.tensor([0]), POINT)
    assert points.take(torch.tensor([0]))[0].tolist() == [[-3.0, 7.0]]


def test_records_of_some_users_keep_their_order_and_their_users() -> None:
    values = torch.arange(5, dtype=torch.uint8).reshape(5, 1, 1, 1).expand(5, 1, 2, 2)
    users = torch.tensor([7, 9, 7, 2, 9])
    labels, slots = torch.tensor([0, 1, 0, 1, 0]), torch.tensor([4, 5, 6, 7, 8])
    data = checked(values, labels, SPEC, users, slots).of_users({9, 2, 1000})
    assert data.values[:, 0, 0, 0].tolist() == [1, 3, 4]
    assert data.labels.tolist() == [1, 1, 0]
    assert data.users is not None
    assert data.users.tolist() == [9, 2, 9]
    assert data.slots is not None
    assert data.slots.tolist() == [5, 7, 8]
    assert checked(values, labels, SPEC, users).of_users({9}).slots is None


def test_users_that_are_not_there_and_records_without_users_are_refused() -> None:
    values, labels = torch.zeros(2, 1, 2, 2), torch.tensor([0, 1])
    with pytest.raises(DataError, match="marks none of the users of these records True"):
        checked(values, labels, SPEC, torch.tensor([7, 9])).of_users({8})
    with pytest.raises(ConfigError, match="this source tells none apart"):
        checked(values, labels, SPEC).of_users({8})


def test_a_float64_that_float32_cannot_hold_is_refused() -> None:
    with pytest.raises(DataError, match="finite"):
        checked(torch.tensor([[1e39, 0.0]], dtype=torch.float64), torch.tensor([0]), POINT)


def test_the_number_of_a_name_is_fixed_for_ever() -> None:
    """A later version must not deal users or records differently."""
    assert number_of("f4031_33") == EXPECTED


EXPECTED = 3664484432072681533


@pytest.mark.medium
@given(st.lists(st.text(), unique=True, max_size=50))
def test_numbers_are_int64_and_tell_names_apart(identifiers: list[str]) -> None:
    numbers = [number_of(identifier) for identifier in identifiers]
    assert len(set(numbers)) == len(identifiers)
    assert all(0 <= number < 2**63 for number in numbers)
