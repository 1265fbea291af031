"""Public numbers of one message of secure aggregation, and an owner's conditions on them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from fedsink.secagg.graph import is_secure, neighbourhood, two_thirds
from fedsink.secagg.refusals import CohortError, MalformedTripError, WeakThresholdError
from fedsink.values import Checks

PROTOCOL = 2
"""Version of the protocol; part of everything that is signed."""

KEY_BYTES = 32
SIGNATURE_BYTES = 64
LEAST_COHORT = 3
"""Least `minimum_cohort` of an owner: in a sum of two each client computes the other's reply."""
NO_CERTIFICATE = bytes(SIGNATURE_BYTES)
_LONGEST = 256
_checks = Checks(MalformedTripError)


@dataclass(frozen=True)
class Parameters:
    """Numbers that all clients of a message agree on.

    0 neighbours or a threshold of 0 are those of `graph.neighbourhood`; for another k the threshold
    is the least above two thirds of k + 1.
    """

    run: str  # public name
    message: str  # names the sum within the run; a client masks one vector for it
    clients: tuple[int, ...]  # the n ≥ 2 that are asked, increasing, below 2^32
    bits: int  # b, 16 to 60; vectors are added modulo 2^b
    length: int  # number of values in a vector
    minimum: int  # least number of survivors whose sum may be unmasked
    neighbours: int = 0  # k
    threshold: int = 0  # t, number of shares, out of k + 1, that give a secret

    def __post_init__(self) -> None:
        for name in ("run", "message"):
            text = getattr(self, name)
            if not isinstance(text, str) or not 0 < len(text) <= _LONGEST:
                raise MalformedTripError(f"The {name} has a name of at most {_LONGEST} characters.")
        least = {"bits": 16, "length": 1, "minimum": 2, "neighbours": 0, "threshold": 0}
        for name, smallest in least.items():
            value = _checks.count(name, getattr(self, name), minimum=smallest)
            object.__setattr__(self, name, value)
        if self.bits > 60:
            raise MalformedTripError(f"bits must be 16 to 60, not {self.bits}.")
        clients = self.clients
        whole = isinstance(clients, tuple) and all(
            type(client) is int and 0 <= client < 1 << 32 for client in clients
        )
        if not whole or list(clients) != sorted(set(clients)) or len(clients) < 2:
            raise MalformedTripError(
                "The clients of a message are a tuple of two or more numbers that increase."
            )
        if self.minimum > len(clients):
            raise MalformedTripError(
                f"A minimum of {self.minimum} survivors needs as many clients, not {len(clients)}."
            )
        k, t = neighbourhood(len(clients))
        neighbours = self.neighbours or k
        least_shares = t if neighbours == k else two_thirds(neighbours + 1)
        object.__setattr__(self, "neighbours", neighbours)
        object.__setattr__(self, "threshold", self.threshold or least_shares)
        if not is_secure(len(clients), self.neighbours, self.threshold):
            raise WeakThresholdError(
                f"With {self.neighbours} neighbours and a threshold of {self.threshold} shares a "
                f"secret of one of {len(clients)} clients is not safe: leave both out."
            )

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of masked values: unsigned, of 32 bits where they are enough."""
        return np.dtype("<u4" if self.bits <= 32 else "<u8")

    @property
    def quorum(self) -> int:
        """Number of survivors that have to sign: above two thirds of the n clients."""
        return two_thirds(len(self.clients))

    @property
    def least(self) -> int:
        """Least number of clients in a roster, of sharers and of survivors."""
        return max(self.minimum, self.quorum, self.threshold)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all numbers and the protocol's version."""
        values = {"protocol": PROTOCOL, **self.to_dict()}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).digest()

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "clients": list(self.clients)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Parameters:
        try:
            return cls(**{**values, "clients": tuple(values["clients"])})
        except (TypeError, KeyError) as error:
            raise MalformedTripError(f"These are no parameters of a message: {error}.") from error


class Trust(Protocol):
    """Decides whose signatures count."""

    def trusts(self, client: int, public: bytes, certificate: bytes) -> bool: ...


@dataclass(frozen=True)
class Rules:
    """Conditions of a client's owner."""

    trust: Trust
    minimum_cohort: int = 2  # least number of clients in a sum
    threshold: float = 2 / 3  # a secret must need more of a neighbourhood's shares than this part

    def check(self, parameters: Parameters) -> None:
        """Refuses the parameters of a message (CohortError, WeakThresholdError)."""
        if parameters.least < self.minimum_cohort:
            raise CohortError(
                f"The message would unmask a sum over {parameters.least} clients, and the owner "
                f"demands {self.minimum_cohort}."
            )
        shares = parameters.neighbours + 1
        if parameters.threshold <= self.threshold * shares:
            raise WeakThresholdError(
                f"{parameters.threshold} of {shares} shares would give a secret, and the owner "
                f"demands more than {self.threshold:.4g} of them: lower threshold in [aggregation]."
            )
