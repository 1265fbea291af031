from __future__ import annotations

import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsink.secagg.shamir import PRIME, SHARE_BYTES, reconstruct, share

from ..support.aggregation import source


@given(st.binary(min_size=32, max_size=32), st.integers(1, 9), st.data())
def test_any_t_shares_give_the_secret(secret: bytes, shares: int, data: st.DataObject) -> None:
    needed = data.draw(st.integers(1, shares))
    all_shares = share(secret, shares, needed, os.urandom)
    places = data.draw(st.permutations(range(1, shares + 1)))[:needed]
    assert reconstruct({place: all_shares[place - 1] for place in places}) == secret


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32])
def test_every_set_of_t_shares_gives_extreme_secrets(secret: bytes) -> None:
    shares = share(secret, 6, 4, source(secret))
    for places in itertools.combinations(range(1, 7), 4):
        assert reconstruct({place: shares[place - 1] for place in places}) == secret


def test_t_minus_one_shares_fit_every_secret() -> None:
    """For any other secret there is a share of the missing place with which it comes out."""
    shares = share(b"\1" * 32, 3, 3, source(1))
    known = {1: int.from_bytes(shares[0]), 2: int.from_bytes(shares[1])}
    for other in (0, 1, PRIME - 298):
        # Lagrange at 0 with places 1, 2, 3: f(0) = 3 f(1) - 3 f(2) + f(3).
        missing = (other - 3 * known[1] + 3 * known[2]) % PRIME
        full = {1: shares[0], 2: shares[1], 3: missing.to_bytes(SHARE_BYTES)}
        assert reconstruct(full) == other.to_bytes(32)


def test_shares_that_give_no_secret_of_32_bytes_are_seen() -> None:
    assert reconstruct({1: (PRIME - 1).to_bytes(SHARE_BYTES)}) is None


def test_the_field_is_a_prime_field_over_all_secrets() -> None:
    assert PRIME > 2**256
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 3, 5, 7, 11, 13))


@given(st.binary(min_size=32, max_size=32), st.integers(2, 9))
def test_shares_below_t_give_another_secret(secret: bytes, needed: int) -> None:
    shares = share(secret, needed, needed, os.urandom)
    assert reconstruct(dict(enumerate(shares[:-1], start=1))) != secret
