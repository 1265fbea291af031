from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from fedsink.clients.shard import Shard
from fedsink.errors import DataError


def test_users_stay_beside_their_records() -> None:
    users = torch.tensor([2**62, 5])
    assert Shard.checked(torch.zeros(2, 3), torch.zeros(2), 1).users is None
    held = Shard.checked(torch.zeros(2, 3), torch.zeros(2), 1, users=users).users
    assert held is not None
    assert torch.equal(held, users)


def test_slots_stay_beside_their_records_and_others_are_another_content() -> None:
    images, labels, slots = torch.zeros(2, 3), torch.zeros(2), torch.tensor([2**62, 5])
    assert Shard.checked(images, labels, 1).slots is None
    held = Shard.checked(images, labels, 1, slots=slots)
    assert held.slots is not None
    assert torch.equal(held.slots, slots)
    others = (None, slots, slots.flip(0))
    contents = {Shard(images, labels, slots=other).fingerprint() for other in others}
    assert len(contents | {Shard(images, labels, users=slots).fingerprint()}) == 4


def test_coordinates_are_the_views_and_computed_once_per_view() -> None:
    images = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    shard = Shard(images, torch.zeros(3, dtype=torch.int64))
    pixels = shard.coordinates({"name": "pixel", "shape": [1, 4, 4]})
    assert torch.equal(pixels, 2 * images.flatten(1) - 1)
    assert shard.coordinates({"shape": [1, 4, 4], "name": "pixel"}) is pixels
    band = shard.coordinates({"name": "dct", "shape": [1, 4, 4], "radius": 2})
    assert band.shape == (3, 4)


def test_only_two_views_are_kept_the_last_ones_asked_for() -> None:
    shard = Shard(torch.rand(3, 1, 4, 4), torch.zeros(3, dtype=torch.int64))
    views = [{"name": "dct", "shape": [1, 4, 4], "radius": r} for r in (1, 2, 3)]
    first, second = shard.coordinates(views[0]), shard.coordinates(views[1])
    assert shard.coordinates(views[0]) is first  # now the second is the older one
    shard.coordinates(views[2])
    assert shard.coordinates(views[0]) is first
    assert shard.coordinates(views[1]) is not second


@pytest.mark.parametrize("shape", [[1, 5000, 5000], [1, 4], [4], "1x4x4", None, [[1], 4, 4]])
@pytest.mark.parametrize("name", ["dct", "pixel"])
def test_a_view_of_another_shape_is_refused_before_it_is_built(name: str, shape: Any) -> None:
    """A DCT of 5000×5000 pixels would take minutes and gigabytes."""
    shard = Shard(torch.rand(3, 1, 4, 4), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="for records of another shape than the data's"):
        shard.coordinates({"name": name, "shape": shape, "radius": 1e9})


def test_a_view_never_has_more_coordinates_than_a_record_has_values() -> None:
    shard = Shard(torch.rand(3, 2, 4, 5), torch.zeros(3, dtype=torch.int64))
    for view in (
        {"name": "dct", "shape": [2, 4, 5], "radius": 1e9, "frequency_weight": 1e-3},
        {"name": "pixel", "shape": [2, 4, 5]},
    ):
        assert shard.coordinates(view).shape == (3, 40)
        assert float(shard.coordinates(view).norm(dim=1).max()) <= shard.norm_bound(view)


def images(value: float) -> Tensor:
    records = torch.full((3, 1, 2, 2), 0.5)
    records[1, 0, 0, 1] = value
    return records


@pytest.mark.parametrize(
    ("records", "labels", "message"),
    [
        (images(math.nan), [0, 1, 2], "A private record is not finite: remove or fix it."),
        (images(math.inf), [0, 1, 2], "A private record is not finite: remove or fix it."),
        (images(1.25), [0, 1, 2], "leaves the public range [0, 1]: rescale the data."),
        (images(-0.125), [0, 1, 2], "leaves the public range [0, 1]: rescale the data."),
        (128.5 * torch.ones(3, 2), [0, 1, 2], "leaves the public range [-128, 128]"),
        (images(0.5), [0, 7, 2], "label lies outside the 3 public classes: extend data.classes"),
        (images(0.5), [0, -7, 2], "label lies outside the 3 public classes"),
    ],
)
def test_bad_records_are_refused_at_load_and_no_value_is_told(
    records: Tensor, labels: list[int], message: str
) -> None:
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        Shard.checked(records, torch.tensor(labels), 3)
    for told in ("1.25", "0.125", "128.5", "7", "nan"):
        assert told not in str(caught.value)


@pytest.mark.parametrize("records", [images(0.0), images(1.0), torch.full((3, 2), -128.0)])
def test_records_of_the_public_range_are_accepted(records: Tensor) -> None:
    shard = Shard.checked(records, torch.tensor([0, 2, 2]), 3)
    assert shard.images is records
    assert len(Shard.checked(records[:0], torch.zeros(0).long(), 3)) == 0


@pytest.mark.parametrize(
    ("side", "radius"), [(28, 14.0), (28, 8.0), (8, 6.0)], ids=["28", "28 low", "8"]
)
def test_no_record_moves_a_bit_of_another_ones_coordinates(side: int, radius: float) -> None:
    """A product of matrices rounds by its number of rows, and λ is the server's to choose."""
    images = torch.rand(20, 1, side, side, generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(20, dtype=torch.int64)
    view = {"name": "dct", "shape": [1, side, side], "radius": radius}
    whole = Shard(images, labels).coordinates(view)
    for n in range(1, 21):
        assert torch.equal(Shard(images[:n], labels[:n]).coordinates(view), whole[:n])
        left = torch.arange(20) != n - 1
        assert torch.equal(Shard(images[left], labels[left]).coordinates(view), whole[left])
