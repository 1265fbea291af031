from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsink.secagg.masks import (
    PRIME,
    SHARE_BYTES,
    agreed,
    centred,
    encoded,
    expand,
    packed,
    public_of,
    reconstruct,
    share,
    unpacked,
)
from fedsink.secagg.refusals import MalformedTripError, WeakKeyError

from ..support.aggregation import source

DTYPES = {16: "<u4", 31: "<u4", 32: "<u4", 33: "<u8", 60: "<u8"}
bits = st.sampled_from(list(DTYPES))


@given(bits, st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9))
def test_integers_come_back_modulo_two_to_the_b(bits: int, values: list[int]) -> None:
    words = encoded(np.array(values), np.dtype(DTYPES[bits]))
    sent = packed(words, bits)
    assert len(sent) == len(values) * -(-bits // 8)
    back = centred(unpacked(sent, len(values), bits, np.dtype(DTYPES[bits])), bits)
    half = 1 << (bits - 1)
    assert back.tolist() == [(value + half) % (2 * half) - half for value in values]


@pytest.mark.parametrize("bits", [17, 31, 60])
def test_a_value_of_too_many_bits_is_malformed(bits: int) -> None:
    width, dtype = -(-bits // 8), np.dtype(DTYPES[31] if bits < 33 else DTYPES[60])
    with pytest.raises(MalformedTripError, match="more than"):
        unpacked((1 << bits).to_bytes(width, "little"), 1, bits, dtype)


def test_two_clients_agree_on_a_secret_for_one_purpose() -> None:
    one, other = b"\1" * 32, b"\2" * 32
    assert agreed(one, public_of(other), b"p") == agreed(other, public_of(one), b"p")
    assert agreed(one, public_of(other), b"p") != agreed(one, public_of(other), b"q")
    with pytest.raises(WeakKeyError):
        agreed(one, bytes(32), b"p")
    long = bytes(200)  # a purpose ends with the request, whose last byte counts like the first
    purposes = {long[:place] + b"\1" + long[place + 1 :] for place in range(200)} | {long}
    assert len({agreed(one, public_of(other), purpose) for purpose in purposes}) == 201


def test_a_mask_is_chacha20_of_its_seed() -> None:
    """RFC 7539, appendix A.1, test vector 1: key, nonce and counter are zeros."""
    expected = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    assert expand(bytes(32), 8, np.dtype("<u4")).tobytes().hex() == expected
    assert expand(bytes(32), 4, np.dtype("<u8")).tobytes().hex() == expected
    # Test vector 3: the key ends with 1; its counter of 1 is the second block.
    second = "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
    assert expand(bytes(31) + b"\1", 24, np.dtype("<u4"))[16:].tobytes().hex() == second


@pytest.mark.parametrize("dtype", ["<u4", "<u8"])
def test_masks_are_uniform_and_independent_between_seeds(dtype: str) -> None:
    length, size = 20_000, np.dtype(dtype).itemsize
    masks = [expand(bytes([n]) * 32, length, np.dtype(dtype)) for n in range(2)]
    for words in (*masks, masks[0] - masks[1], masks[0] ^ masks[1]):
        ones = np.unpackbits(words.view(np.uint8).reshape(length, size), axis=1).mean(axis=0)
        assert np.abs(ones - 0.5).max() < 5 * 0.5 / length**0.5
        counts = np.bincount(words.view(np.uint8), minlength=256)
        expected = length * size / 256
        chi2 = ((counts - expected) ** 2 / expected).sum()
        assert abs(chi2 - 255) < 5 * (2 * 255) ** 0.5


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


def test_every_coefficient_is_uniform_over_the_field_and_apart_from_the_others() -> None:
    """Else t − 1 shares tell something: a short coefficient is seen in a share's high bits."""
    random, draws = source("coefficients"), 400
    found: dict[str, list[int]] = {"first": [], "second": [], "difference": [], "share": []}
    for _ in range(draws):
        secret = random(32)
        one, two = (
            int.from_bytes(value) - int.from_bytes(secret) for value in share(secret, 2, 3, random)
        )
        second = (two - 2 * one) * pow(2, -1, PRIME) % PRIME  # of a₁x + a₂x² at 1 and 2
        first = (one - second) % PRIME
        found["first"].append(first)
        found["second"].append(second)
        found["difference"].append((first - second) % PRIME)
        found["share"].append(one % PRIME)
    for what, values in found.items():
        octets = np.frombuffer(b"".join(v.to_bytes(33) for v in values), np.uint8)
        ones = np.unpackbits(octets.reshape(draws, 33)[:, 1:], axis=1).mean(axis=0)
        assert np.abs(ones - 0.5).max() < 6 * 0.5 / draws**0.5, what


def test_shares_that_give_no_secret_of_32_bytes_are_seen() -> None:
    assert reconstruct({1: (PRIME - 1).to_bytes(SHARE_BYTES)}) is None


def test_the_field_is_a_prime_field_over_all_secrets() -> None:
    assert PRIME > 2**256
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 3, 5, 7, 11, 13))


@given(st.binary(min_size=32, max_size=32), st.integers(2, 9))
def test_shares_below_t_give_another_secret(secret: bytes, needed: int) -> None:
    shares = share(secret, needed, needed, os.urandom)
    assert reconstruct(dict(enumerate(shares[:-1], start=1))) != secret
