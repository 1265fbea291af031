from __future__ import annotations

import torch

from fedsink.clients.shard import Shard


def test_members_are_the_indices_of_a_class() -> None:
    shard = Shard(torch.zeros(5, 2), torch.tensor([1, 0, 1, 2, 1]))
    assert shard.members(1).tolist() == [0, 2, 4]
    assert shard.members(7).tolist() == []
    assert shard.members(None).tolist() == [0, 1, 2, 3, 4]
    assert len(shard) == 5


def test_coordinates_are_the_views_and_computed_once_per_view() -> None:
    images = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    shard = Shard(images, torch.zeros(3, dtype=torch.int64))
    pixels = shard.coordinates({"name": "pixel", "shape": [1, 4, 4]})
    assert torch.equal(pixels, 2 * images.flatten(1) - 1)
    assert shard.coordinates({"shape": [1, 4, 4], "name": "pixel"}) is pixels
    band = shard.coordinates({"name": "dct", "shape": [1, 4, 4], "radius": 2})
    assert band.shape == (3, 4)
