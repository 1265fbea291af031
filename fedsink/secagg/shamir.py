"""Shamir's secret sharing: any t of n shares give a secret, fewer tell nothing (Shamir 1979)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

PRIME = 2**256 + 297
"""The field's size; a secret has 256 bits, a share fits `SHARE_BYTES`."""

SECRET_BYTES, SHARE_BYTES = 32, 33


def share(
    secret: bytes, places: Sequence[int], needed: int, random: Callable[[int], bytes]
) -> dict[int, int]:
    """Returns one share for each place: the value there of a random polynomial of degree t − 1.

    Args:
        secret: 32 bytes.
        places: different numbers, 1 to 2^32.
        needed: t, number of shares that give the secret.
        random: returns fresh random bytes.
    """
    coefficients = [int.from_bytes(secret, "big")]
    # 48 bytes: a residue is uniform up to 2^-127.
    coefficients += [int.from_bytes(random(48), "big") % PRIME for _ in range(needed - 1)]

    def value(x: int) -> int:
        y = 0
        for coefficient in reversed(coefficients):  # Horner's rule
            y = (y * x + coefficient) % PRIME
        return y

    return {x: value(x) for x in places}


def weights(places: Sequence[int]) -> dict[int, int]:
    """Returns Lagrange's weights at 0: Σ w_x·f(x) = f(0) for polynomials of a lower degree."""
    found = {}
    for x in places:
        above = below = 1
        for other in places:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        found[x] = above * pow(below, -1, PRIME) % PRIME
    return found


def reconstruct(shares: Mapping[int, int], weight_of: Mapping[int, int]) -> bytes | None:
    """Returns the secret of t shares, given the `weights` of their places; None: it is none."""
    secret = sum(weight_of[x] * y for x, y in shares.items()) % PRIME
    return None if secret >= 1 << 256 else secret.to_bytes(SECRET_BYTES, "big")
