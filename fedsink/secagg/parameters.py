"""Public numbers of one message of secure aggregation."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedsink.values import checks

PROTOCOL = 1
"""Version of the protocol; part of everything that is signed."""

_SMALL, _NEIGHBOURS = 128, 100
_LONGEST = 256


@dataclass(frozen=True)
class Parameters:
    """Numbers that all clients of a message agree on.

    Attributes:
        run: public name of the run.
        message: names the sum: the digest of the request that all its clients get, so that one
            request is summed once.
        clients: numbers of the clients that are asked, increasing.
        bits: b; vectors are added modulo 2^b.
        length: number of values in a vector.
        minimum: least number of survivors whose sum may be unmasked.

    Raises:
        ConfigError: a value is out of range.
    """

    run: str
    message: str
    clients: tuple[int, ...]
    bits: int
    length: int
    minimum: int

    def __post_init__(self) -> None:
        for name in ("run", "message"):
            text = getattr(self, name)
            if not isinstance(text, str) or not 0 < len(text) <= _LONGEST:
                raise ValueError(f"The {name} has a name of at most {_LONGEST} characters.")
        checks.count("length", self.length)
        checks.count("minimum", self.minimum, minimum=2)
        if checks.count("bits", self.bits, minimum=2) > 62:
            raise ValueError(f"bits must be at most 62, not {self.bits}.")
        clients = self.clients
        whole = all(isinstance(c, int) and 0 <= c < 1 << 32 for c in clients)
        if not whole or list(clients) != sorted(set(clients)):
            raise ValueError("The clients of a message are different numbers, increasing.")
        if self.minimum > len(clients):
            raise ValueError(
                f"A minimum of {self.minimum} survivors needs as many clients, not {len(clients)}."
            )

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of masked values: unsigned, of 32 bits where they are enough."""
        return np.dtype(np.uint32 if self.bits <= 32 else np.uint64)

    @property
    def neighbours(self) -> int:
        """k, number of clients that a client shares its secrets with, besides itself."""
        others = len(self.clients) - 1
        return others if len(self.clients) <= _SMALL else _NEIGHBOURS

    def digest(self) -> bytes:
        """SHA-256 of all numbers and the protocol's version."""
        stated = {"protocol": PROTOCOL, **asdict(self)}
        return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).digest()

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; `from_dict` inverts it."""
        return {**asdict(self), "clients": list(self.clients)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Parameters:
        """Reads what `to_dict` wrote; raises ValueError for all else."""
        try:
            return cls(**{**values, "clients": tuple(values["clients"])})
        except (TypeError, KeyError) as error:
            raise ValueError(f"These are no parameters of secure aggregation: {error}.") from error


def threshold(size: int) -> int:
    """t, number of shares that give a secret: the least above two thirds of a neighbourhood.

    Bonawitz et al. 2017, Theorem 6.5: against a server that lies, two sets of t out of m clients
    have an honest client in common where fewer than m/3 collude with it.

    >>> [threshold(size) for size in (3, 4, 10, 64)]
    [3, 3, 7, 43]
    """
    return 2 * size // 3 + 1
