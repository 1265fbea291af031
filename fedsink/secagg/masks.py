"""Keys agreed by two clients, masks modulo 2^b, and shares of a secret."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedsink.secagg.refusals import MalformedTripError, WeakKeyError

Words = NDArray[Any]
"""Residues modulo 2^b, uint32 or uint64."""

_FIELD = 2**255 - 19
_ORDER_8 = 325606250916557431795983626356110631294008115727848805560023387167927233504
_OTHER_8 = 39382357235489614581723060781553021112529911719440698176882885853963445705823
_SMALL = {0, 1, _FIELD - 1, _ORDER_8, _OTHER_8}


def check_public(public: bytes) -> None:
    """Refuses an X25519 public key of small order, or one that is not in its only short form."""
    # Points of order 1, 2, 4 and 8 on the curve and its twist give everybody the same secret. RFC
    # 7748 reads u and u + p, and both values of the highest bit, as one point: a key could stand in
    # a roster twice.
    u = int.from_bytes(public, "little")
    if u >= _FIELD or u in _SMALL:
        raise WeakKeyError("A public key in the roster is weak: everybody knows its secrets.")


def agreed(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """Returns 32 bytes that only the owners of two X25519 keys know; each purpose has others."""
    check_public(public)
    key = X25519PrivateKey.from_private_bytes(private)
    secret = key.exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(SHA256(), 32, salt=None, info=b"fedsink secagg\0" + purpose).derive(secret)


def public_of(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def expand(seed: bytes, length: int, dtype: np.dtype[Any]) -> Words:
    """Returns PRG(seed): words that are uniform to whoever does not know the seed; ChaCha20."""
    # 2^b divides the number of words: residues are uniform as well, and masks are reduced once. A
    # seed is for one vector: it comes from keys that are fresh for each message.
    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), None).encryptor()
    return np.frombuffer(stream.update(bytes(length * dtype.itemsize)), dtype)


def encoded(vector: NDArray[np.int64], dtype: np.dtype[Any]) -> Words:
    """Returns integers as words: residues modulo 2^32 or 2^64, of which 2^b is a divisor."""
    return np.asarray(vector, np.int64).view(np.uint64).astype(dtype)


def centred(words: Words, bits: int) -> NDArray[np.int64]:
    """Returns the integers in −2^(b−1), …, 2^(b−1) − 1 that are congruent modulo 2^b, int64."""
    left = np.uint64(64 - bits)
    return (words.astype(np.uint64) << left).view(np.int64) >> np.int64(64 - bits)


def packed(words: Words, bits: int) -> bytes:
    """Returns residues modulo 2^b, ⌈b/8⌉ bytes each."""
    residues = words & words.dtype.type((1 << bits) - 1)
    octets = residues.view(np.uint8).reshape(len(words), words.dtype.itemsize)
    return octets[:, : -(-bits // 8)].tobytes()


def unpacked(content: bytes, length: int, bits: int, dtype: np.dtype[Any]) -> Words:
    """Reads what `packed` wrote, and refuses another number of bytes or a value of 2^b or more."""
    width = -(-bits // 8)
    if not isinstance(content, bytes) or len(content) != length * width:
        raise MalformedTripError(f"Malformed masked vector: it has {length} values of {bits} bits.")
    octets = np.zeros((length, dtype.itemsize), np.uint8)
    octets[:, :width] = np.frombuffer(content, np.uint8).reshape(length, width)
    words = octets.view(dtype).reshape(length)
    if bits % 8 and int(words.max()) >> bits:
        raise MalformedTripError(f"Malformed masked vector: a value has more than {bits} bits.")
    return words


PRIME = 2**256 + 297
"""The field's size; a secret has 256 bits, a share fits `SHARE_BYTES`."""

SECRET_BYTES, SHARE_BYTES = 32, 33


def share(secret: bytes, shares: int, needed: int, random: Callable[[int], bytes]) -> list[bytes]:
    """Returns f(1), …, f(m) of a random polynomial f of degree t − 1 with f(0) the secret."""
    # Shamir (1979): any t = `needed` of these m shares give the secret, and fewer tell nothing.
    coefficients = [int.from_bytes(secret, "big")]
    # 48 bytes: a residue is uniform up to 2^-127.
    coefficients += [int.from_bytes(random(48), "big") % PRIME for _ in range(needed - 1)]

    def value(x: int) -> bytes:
        y = 0
        for coefficient in reversed(coefficients):  # Horner's rule
            y = (y * x + coefficient) % PRIME
        return y.to_bytes(SHARE_BYTES, "big")

    return [value(x) for x in range(1, shares + 1)]


def reconstruct(shares: Mapping[int, bytes]) -> bytes | None:
    """Returns the secret of t shares by their places 1, …, m; None where they belong to none."""
    # Lagrange's formula at 0: f(0) = Σ_x f(x)·Π_{y≠x} y/(y − x).
    values = (int.from_bytes(value, "big") for value in shares.values())
    secret = sum(w * y for w, y in zip(_weights(tuple(shares)), values, strict=True)) % PRIME
    return None if secret >= 1 << 256 else secret.to_bytes(SECRET_BYTES, "big")


@lru_cache(maxsize=64)  # without drop-outs the places are the same for every secret
def _weights(places: tuple[int, ...]) -> list[int]:
    every = math.prod(places)
    found = []
    for x in places:
        below = math.prod(y - x for y in places if y != x)
        found.append(every // x * pow(below, -1, PRIME) % PRIME)
    return found
