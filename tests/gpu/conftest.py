"""A machine with a GPU may lack `cryptography`: words that only look random are drawn there.

These tests compare devices on the same draws, whatever they are.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np


class Mixed:
    """Stands where AES is: each block of a counter, mixed with the key as SplitMix64 mixes."""

    def __init__(self, algorithm: bytes, mode: None) -> None:
        self._key = np.frombuffer(algorithm, dtype="<u8")

    def encryptor(self) -> Mixed:
        return self

    def update(self, counters: bytes) -> bytes:
        words = np.frombuffer(counters, dtype="<u8").reshape(-1, 2).copy()
        for key in self._key:
            words = words[:, ::-1] * np.uint64(0x9E3779B97F4A7C15) + key  # each from the other one
            for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
                words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
            words[:, 0] += words[:, 1]
        return words.tobytes()


try:
    import cryptography  # noqa: F401
except ModuleNotFoundError:
    module = ModuleType("cryptography.hazmat.primitives.ciphers")
    module.__dict__.update(
        Cipher=Mixed, algorithms=SimpleNamespace(AES=bytes), modes=SimpleNamespace(ECB=lambda: None)
    )
    parents = ("cryptography", "cryptography.hazmat", "cryptography.hazmat.primitives")
    sys.modules.update({name: ModuleType(name) for name in parents} | {module.__name__: module})
