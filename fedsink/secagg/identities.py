"""Who signs: a client's Ed25519 identity, and the keys that an owner trusts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedsink.secagg.parameters import KEY_BYTES, NO_CERTIFICATE


def is_weak(public: bytes) -> bool:
    """Returns True if the order of an encoded point of edwards25519 divides 8."""
    # For such a key the signature R = 1, S = 0, which anybody can write, verifies for about one
    # message in eight or more. Orders 1 and 2 have y = ±1. A point of order 4 has y = 0; one of
    # order 8 doubles to it: x² = -y², and the curve -x² + y² = 1 + dx²y² leaves dy⁴ + 2y² = 1.
    p = 2**255 - 19
    d = -121665 * pow(121666, -1, p)
    y = int.from_bytes(public, "little") % 2**255  # the highest bit is the sign of x
    return y * (y * y - 1) * (d * y**4 + 2 * y * y - 1) % p == 0


def verifies(public: bytes, signature: bytes, content: bytes) -> bool:
    """Tells whether a key has signed these bytes; a weak key never has."""
    if len(public) != KEY_BYTES or is_weak(public):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


def _covered(domain: str, *parts: bytes) -> bytes:
    """Returns the bytes that are signed; each part has its length in front."""
    head = f"fedsink secagg {domain}\0".encode()
    return head + b"".join(len(part).to_bytes(8, "big") + part for part in parts)


@lru_cache(maxsize=1 << 12)  # simulated clients in one process verify the same signatures
def verified(public: bytes, signature: bytes, domain: str, *parts: bytes) -> bool:
    """Tells whether a key has signed these parts for this purpose."""
    return verifies(public, signature, _covered(domain, *parts))


@dataclass(frozen=True)
class Identity:
    """A client's signing key."""

    key: Ed25519PrivateKey
    certificate: bytes = NO_CERTIFICATE  # an authority's, over client number and public key

    @property
    def public(self) -> bytes:
        return self.key.public_key().public_bytes_raw()

    def sign(self, domain: str, *parts: bytes) -> bytes:
        return self.key.sign(_covered(domain, *parts))

    @classmethod
    def derived(cls, seed: bytes) -> Identity:
        """Returns the identity of a simulated client, from 32 bytes."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))


@dataclass(frozen=True)
class Peers:
    """Trusts listed keys."""

    keys: Mapping[int, bytes]  # public key by client number

    def trusts(self, client: int, public: bytes, certificate: bytes) -> bool:
        return self.keys.get(client) == public


@dataclass(frozen=True)
class Authority:
    """Trusts keys that a consortium's authority has certified for the client."""

    key: bytes  # the authority's public one

    def trusts(self, client: int, public: bytes, certificate: bytes) -> bool:
        return verified(self.key, certificate, "certificate", client.to_bytes(4, "big"), public)


def certify(authority: Ed25519PrivateKey, client: int, public: bytes) -> bytes:
    """Returns the authority's certificate for a client's key."""
    return Identity(authority).sign("certificate", client.to_bytes(4, "big"), public)
