"""Shamir's secret sharing: any t of m shares give a secret, fewer tell nothing (Shamir 1979)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache

PRIME = 2**256 + 297
"""The field's size; a secret has 256 bits, a share fits `SHARE_BYTES`."""

SECRET_BYTES, SHARE_BYTES = 32, 33


def share(secret: bytes, shares: int, needed: int, random: Callable[[int], bytes]) -> list[bytes]:
    """Returns f(1), …, f(m) of a random polynomial f of degree t − 1 with f(0) the secret.

    Args:
        secret: 32 bytes.
        shares: m.
        needed: t, number of shares that give the secret.
        random: returns fresh random bytes.
    """
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
    """Returns the secret of t shares by their places 1, …, m; None where they belong to none.

    Lagrange's formula at 0: f(0) = Σ_x f(x)·Π_{y≠x} y/(y − x).
    """
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
