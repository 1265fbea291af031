from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedsink.clients.node import Node, close_nodes
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.policy_file import read_policy
from fedsink.clients.records.shard import Shard
from fedsink.data.labelled import number_of
from fedsink.data.partition import ByUser, Iid
from fedsink.data.sources import forget
from fedsink.data.spec import DataSpec
from fedsink.errors import DataError

from ...support.policies import CENTRAL, limits, policy
from ...support.writers import some, write_leaf


def test_users_and_slots_stay_beside_their_records_and_others_are_another_content() -> None:
    images, labels, numbers = torch.zeros(2, 3), torch.zeros(2), torch.tensor([2**62, 5])
    contents = {Shard(images, labels).fingerprint()}
    for name in ("users", "slots"):
        assert getattr(Shard.checked(images, labels, 1), name) is None
        assert getattr(Shard.checked(images, labels, 1, **{name: numbers}), name) is numbers
        for other in (numbers, numbers.flip(0)):
            contents.add(Shard(images, labels, **{name: other}).fingerprint())
    assert len(contents) == 5


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


# Pictures by user at the clients: dealt whole, altered whole, or held by a separate node


USERS = 6
SPEC = DataSpec("tiny", (1, 4, 4), ("a", "b"), 60)


def _pictures(spec: DataSpec, split: str) -> tuple[Tensor, Tensor, Tensor]:
    """60 pictures of six users, the users in turn."""
    random = torch.Generator().manual_seed(5)
    images = torch.rand(60, 1, 4, 4, generator=random)
    return images, torch.arange(60) % 2, torch.arange(60) % USERS


@pytest.fixture
def pictures(install_source: Callable[..., None]) -> NodeSettings:
    """A client for each user."""
    install_source(_pictures)
    forget()
    return NodeSettings(SPEC, ByUser(), USERS, seed=7)


def shards(settings: NodeSettings) -> list[Shard]:
    close_nodes()
    return [Node(settings, client).shard for client in range(settings.clients)]


def test_a_client_holds_whole_users_and_their_numbers(pictures: NodeSettings) -> None:
    for clients, each in ((USERS, 1), (2, 3)):
        held = [shard.users for shard in shards(replace(pictures, clients=clients))]
        assert all(users is not None for users in held)
        sets = [set(users.tolist()) for users in held if users is not None]
        assert [len(users) for users in sets] == [each] * clients
        assert set.union(*sets) == set(range(USERS))
    (mixed, *_) = shards(replace(pictures, partition=Iid(), clients=2))
    assert mixed.users is not None
    assert len(mixed.users) == len(mixed) == 30


def test_those_who_are_kept_hold_what_they_held_and_the_others_nothing(
    pictures: NodeSettings,
) -> None:
    some = replace(pictures, keep=(4, 1, 5))
    for client, (before, after) in enumerate(zip(shards(pictures), shards(some), strict=True)):
        if client in (1, 4, 5):
            assert after.fingerprint() == before.fingerprint()
        else:
            assert (len(before), len(after)) == (10, 0)
            assert after.images.shape == (0, 1, 4, 4)


def policy_of(records: int) -> str:
    """The policy of a node that holds the pictures of one writer."""
    return policy(
        budget={"add-remove": limits(10.0)},
        mechanisms=CENTRAL,
        data={
            "lineage": "writer",
            "name": "femnist",
            "root": "leaf",
            "shape": [1, 28, 28],
            "classes": ["0", "1", "Aa"],
            "nominal_records": records,
        },
    )


def test_a_node_under_a_policy_reads_its_writers_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_leaf(tmp_path / "leaf", "train", some({"f0001_41": "01aAz9"}))
    path = tmp_path / "policy.toml"
    path.write_text(policy_of(4))
    shard = Node(NodeSettings.from_policy(read_policy(path)), 0).shard
    assert shard.labels.tolist() == [0, 1, 2, 2]
    assert shard.users is not None
    assert set(shard.users.tolist()) == {number_of("f0001_41")}
    path.write_text(policy_of(3))
    close_nodes()
    with pytest.raises(DataError, match="more records than its policy's public nominal_records=3"):
        _ = Node(NodeSettings.from_policy(read_policy(path)), 0).shard
