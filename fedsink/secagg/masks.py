"""Keys agreed by two clients, and masks: pseudorandom vectors modulo 2^b."""

from __future__ import annotations

from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedsink.secagg.parameters import Parameters


def agreed(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """Returns 32 bytes that only the owners of two X25519 keys know, for one purpose.

    Args:
        private: of one client.
        public: of the other.
        purpose: names use, roster and clients; other purposes give independent bytes.

    Raises:
        ValueError: the public key is of small order, so that everybody knows the secret.
    """
    key = X25519PrivateKey.from_private_bytes(private)
    secret = key.exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(SHA256(), 32, salt=None, info=b"fedsink secagg\0" + purpose).derive(secret)


def public_of(private: bytes) -> bytes:
    """Returns the X25519 public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def expand(seed: bytes, parameters: Parameters) -> np.ndarray[Any, Any]:
    """Returns a vector that is uniform modulo 2^b to whoever does not know the seed.

    AES-256 in counter mode. A seed is for one vector only: it comes from keys that are fresh for
    each message.
    """
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    words = stream.update(bytes(parameters.length * parameters.dtype.itemsize))
    return reduced(np.frombuffer(words, parameters.dtype), parameters.bits)


def reduced(values: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """Returns unsigned values modulo 2^b."""
    kind = values.dtype.type
    return values if bits == 8 * values.dtype.itemsize else values & kind((1 << bits) - 1)


def encoded(vector: np.ndarray[Any, Any], parameters: Parameters) -> np.ndarray[Any, Any]:
    """Returns signed integers as residues modulo 2^b."""
    return reduced(vector.astype(np.int64).view(np.uint64), parameters.bits).astype(
        parameters.dtype
    )


def centred(residues: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """Returns the integers in −2^(b−1), …, 2^(b−1) − 1 of these residues, int64."""
    values = residues.astype(np.int64)
    return np.where(values >= 1 << (bits - 1), values - (1 << bits), values)
