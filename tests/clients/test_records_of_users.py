"""Pictures by user at the clients: dealt whole, altered whole, or held by a separate node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedsink.clients.node import Node, close_nodes
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.policy_file import read_policy
from fedsink.clients.shard import Shard
from fedsink.data.labelled import number_of
from fedsink.data.partition import ByUser, Iid
from fedsink.data.sources import load
from fedsink.data.spec import DataSpec
from fedsink.errors import DataError

from ..support.policies import CENTRAL, limits, policy
from ..support.writers import some, write_leaf

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
    load.cache_clear()
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


def test_another_user_of_the_same_records_is_another_content() -> None:
    images, labels, users = _pictures(SPEC, "train")
    prints = {Shard(images, labels, whose).fingerprint() for whose in (None, users, users.flip(0))}
    assert len(prints) == 3


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
