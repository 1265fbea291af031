from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsink.data.corruption import Corruption
from fedsink.errors import ConfigError


@given(share=st.floats(0, 1), clients=st.integers(1, 300), seed=st.integers(0, 2**32))
def test_a_share_chooses_exactly_so_many_clients_and_the_same_ones_again(
    share: float, clients: int, seed: int
) -> None:
    chosen = Corruption("invert", share, seed).chosen(clients)
    assert len(chosen) == round(share * clients)
    assert chosen <= set(range(clients))
    assert chosen == Corruption("invert", share, seed).chosen(clients)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 100))
def test_a_larger_share_adds_clients_to_a_smaller_ones(a: float, b: float, seed: int) -> None:
    small, large = (Corruption("invert", share, seed).chosen(50) for share in sorted((a, b)))
    assert small <= large


def test_seeds_choose_different_clients_and_every_client_can_be_chosen() -> None:
    drawn = [Corruption("invert", 0.5, seed).chosen(20) for seed in range(40)]
    assert len(set(drawn)) > 35
    assert frozenset.union(*drawn) == frozenset(range(20))
    assert frozenset.intersection(*drawn) == frozenset()


def test_listed_clients_are_chosen() -> None:
    assert Corruption("invert", clients=(4, 1)).chosen(5) == {1, 4}
    assert Corruption("invert", clients=()).chosen(5) == frozenset()
    with pytest.raises(ConfigError, match="names client 4, and the 4 clients are 0 to 3"):
        Corruption("invert", clients=(4, 1)).chosen(4)


def test_inverting_twice_changes_nothing_and_stays_in_range() -> None:
    images = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    original = images.clone()
    inverted = Corruption("invert", 1.0)(images)
    torch.testing.assert_close(inverted, 1 - original)
    torch.testing.assert_close(Corruption("invert", 1.0)(inverted), original)
    assert torch.equal(images, original)  # shared data stays as it is
    assert Corruption("invert", 1.0)(torch.tensor([0.0, 1.0])).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (None, None),
        ({"kind": "invert", "share": 0.5}, Corruption("invert", 0.5)),
        ({"kind": "invert", "share": 1, "seed": 3}, Corruption("invert", 1, 3)),
        ({"kind": "invert", "clients": [2, 0]}, Corruption("invert", clients=(2, 0))),
    ],
)
def test_it_is_read_from_a_configuration_and_can_be_shipped(
    values: Any, expected: Corruption | None
) -> None:
    read = Corruption.from_config(values)
    assert read == expected
    assert pickle.loads(pickle.dumps(read)) == read
    assert hash(read) == hash(expected)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("invert", r"data\.corrupt is null or such as .*, not 'invert'"),
        ({}, r"configuration lacks data\.corrupt\.kind"),
        ({"kind": "blur", "share": 0.5}, r"data\.corrupt\.kind is .*invert.*, not 'blur'"),
        ({"kind": "invert"}, "takes share or clients, one of them"),
        ({"kind": "invert", "share": 0.5, "clients": [1]}, "takes share or clients, one of them"),
        ({"kind": "invert", "share": -0.1}, r"share must be in \[0, 1\], not -0\.1"),
        ({"kind": "invert", "share": 1.1}, r"share must be in \[0, 1\], not 1\.1"),
        ({"kind": "invert", "share": float("nan")}, r"share must be in \[0, 1\], not nan"),
        ({"kind": "invert", "share": True}, r"share must be in \[0, 1\], not True"),
        ({"kind": "invert", "share": "half"}, r"share must be in \[0, 1\], not 'half'"),
        ({"kind": "invert", "share": 0.5, "seed": -1}, r"data\.corrupt\.seed must be a whole"),
        ({"kind": "invert", "share": 0.5, "seed": None}, r"data\.corrupt\.seed must be a whole"),
        ({"kind": "invert", "clients": [1, 1]}, r"must list numbers of clients, each once"),
        ({"kind": "invert", "clients": [-1]}, r"must list numbers of clients, each once"),
        ({"kind": "invert", "clients": [0.5]}, r"must list numbers of clients, each once"),
        ({"kind": "invert", "clients": [True]}, r"must list numbers of clients, each once"),
        ({"kind": "invert", "clients": 3}, r"must list numbers of clients, each once"),
        ({"kind": "invert", "shares": 0.5}, r"Unknown key data\.corrupt\.shares"),
    ],
)
def test_a_bad_value_is_refused_in_one_sentence(values: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Corruption.from_config(values)
    assert "\n" not in str(caught.value)
