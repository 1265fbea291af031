"""The server's side of one message of secure aggregation: it forwards, and unmasks one sum.

`Trips` of the clients are in `client`. A client whose answer does not come, or is malformed, has
dropped out. The server needs no key of its own: what it must not do, clients refuse.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsink.secagg.client import (
    ANSWER_BYTES,
    OF_SELF_MASK,
    pair,
    survivors_in,
)
from fedsink.secagg.graph import neighbourhoods
from fedsink.secagg.identities import SIGNATURE_BYTES, Trust, verified
from fedsink.secagg.masks import agreed, centred, expand, public_of, reduced
from fedsink.secagg.parameters import Parameters, threshold
from fedsink.secagg.refusals import VoidMessageError
from fedsink.secagg.shamir import reconstruct, weights
from fedsink.secagg.wire import BOX_BYTES, NUMBER_BYTES, Entry, Roster, joined, rows


class ServerSession:
    """Collects the clients' answers of one message, trip by trip.

    Every `take_…` returns whether the answer is of use.

    Args:
        parameters: of the message.
        trust: of the server, if it knows the clients' keys: a row that clients would refuse is
            then left out of the roster, where it would end the message.
    """

    def __init__(self, parameters: Parameters, trust: Trust | None = None) -> None:
        self.parameters, self._trust = parameters, trust
        self._entries: dict[int, Entry] = {}
        self._roster: Roster | None = None
        self._circles: dict[int, tuple[int, ...]] = {}
        self._boxes: dict[int, dict[int, bytes]] = {}  # receiver → sender → encrypted shares
        self._shared: set[int] = set()
        self._vectors: dict[int, np.ndarray[Any, Any]] = {}
        self._survivors: bytes | None = None
        self._signatures: dict[int, bytes] = {}
        self._shares: dict[int, dict[int, tuple[bytes, int]]] = {}  # owner → place → kind, share

    def take_keys(self, client: int, content: bytes) -> bool:
        """Takes a client's row of the roster."""
        try:
            [(stated, rest)] = rows(content, Entry.WIDTH, "keys")
        except ValueError:
            return False
        entry = Entry.from_row(stated, rest)
        if stated != client or client not in self.parameters.clients:
            return False
        if not verified(
            entry.identity, entry.signature, "keys", self.parameters.digest(), entry.signed
        ):
            return False
        if self._trust and not self._trust.trusts(client, entry.identity, entry.certificate):
            return False
        self._entries[client] = entry
        return True

    def roster(self) -> bytes:
        """Returns the roster; raises VoidMessageError where too few clients sent keys."""
        if self._roster is None:
            self._require("keys", len(self._entries))
            self._roster = Roster.of(self._entries.values())
            near = neighbourhoods(
                sorted(self._entries), self.parameters.neighbours, self._roster.digest
            )
            self._circles = {c: tuple(sorted((c, *others))) for c, others in near.items()}
        return self._roster.content

    def members(self) -> list[int]:
        """Returns the clients in the roster."""
        return sorted(self._circles)

    def take_shares(self, client: int, content: bytes) -> bool:
        """Takes the shares that a client encrypted for its neighbours."""
        try:
            boxes = dict(rows(content, NUMBER_BYTES + BOX_BYTES, "shares"))
        except ValueError:
            return False
        if client not in self._circles or {*boxes, client} != set(self._circles[client]):
            return False
        for receiver, box in boxes.items():
            self._boxes.setdefault(receiver, {})[client] = box
        self._shared.add(client)
        return True

    def sharers(self) -> list[int]:
        """Returns the clients that take part in trip 2; raises VoidMessageError for too few."""
        self._require("shares", len(self._shared))
        return sorted(self._shared)

    def forwarded(self, client: int) -> bytes:
        """Returns the shares that neighbours encrypted for a client."""
        return joined(list(self._boxes.get(client, {}).items()))

    def take_masked(self, client: int, vector: np.ndarray[Any, Any]) -> bool:
        """Takes a masked vector."""
        fits = vector.shape == (self.parameters.length,) and vector.dtype == self.parameters.dtype
        if client not in self._shared or not fits or self._survivors is not None:
            return False
        self._vectors[client] = vector
        return True

    def vectors(self) -> list[int]:
        """Returns the clients whose masked vectors are there."""
        return sorted(self._vectors)

    def survivors(self) -> bytes:
        """Returns the set of survivors; raises VoidMessageError where they are too few."""
        if self._survivors is None:
            self._require("masked", len(self._vectors))
            self._survivors = joined([(client, b"") for client in self._vectors])
        return self._survivors

    def take_signature(self, client: int, signature: bytes) -> bool:
        """Takes a survivor's signature over the set."""
        if client not in self._vectors or self._roster is None or self._survivors is None:
            return False
        key = self._roster.entries[client].identity
        signed = (self._roster.digest, self._survivors)
        if len(signature) != SIGNATURE_BYTES or not verified(key, signature, "survivors", *signed):
            return False
        self._signatures[client] = signature
        return True

    def signatures(self) -> bytes:
        """Returns the signatures; raises VoidMessageError where they are too few."""
        self._require("survivors", len(self._signatures))
        return joined(list(self._signatures.items()))

    def signers(self) -> list[int]:
        """Returns the clients that take part in trip 4."""
        return sorted(self._signatures)

    def take_unmask(self, client: int, content: bytes) -> bool:
        """Takes a survivor's shares of its neighbours' secrets."""
        try:
            answers = rows(content, ANSWER_BYTES, "shares")
        except ValueError:
            return False
        if client not in self._signatures:
            return False
        for owner, rest in answers:
            given = rest[:1], int.from_bytes(rest[1:], "big")
            self._shares.setdefault(owner, {})[client + 1] = given
        return True

    def result(self) -> tuple[np.ndarray[Any, Any], tuple[int, ...]]:
        """Returns the sum of the survivors' vectors, int64 in −2^(b−1), …, and the survivors.

        Raises:
            VoidMessageError: a secret's shares are too few, or do not fit together.
        """
        survivors = sorted(survivors_in(self.survivors()))
        total = np.zeros(self.parameters.length, self.parameters.dtype)
        for client in survivors:
            total = total + self._vectors[client]
            total = total - expand(self._secret(client, OF_SELF_MASK), self.parameters)
        for client in sorted(self._shared - set(survivors)):
            total = total - self._left_by(client, survivors)
        return centred(reduced(total, self.parameters.bits), self.parameters.bits), tuple(survivors)

    def _left_by(self, dropped: int, survivors: list[int]) -> np.ndarray[Any, Any]:
        """Returns the sum of the masks that survivors share with a client that dropped out."""
        roster = self._known_roster()
        left = np.zeros(self.parameters.length, self.parameters.dtype)
        partners = [c for c in survivors if c in self._circles[dropped]]
        if not partners:
            return left
        private = self._secret(dropped, bytes([1]))
        if public_of(private) != roster.entries[dropped].mask:
            raise VoidMessageError("unmask", 0, threshold(len(self._circles[dropped])))
        for client in partners:
            seed = agreed(private, roster.entries[client].mask, pair(roster, client, dropped))
            mask = expand(seed, self.parameters)
            left = left + mask if client < dropped else left - mask
        return left

    def _secret(self, owner: int, kind: bytes) -> bytes:
        """Returns a client's secret from the shares of its neighbours."""
        needed = threshold(len(self._circles[owner]))
        members = {member + 1 for member in self._circles[owner]}
        found = {
            place: value
            for place, (stated, value) in sorted(self._shares.get(owner, {}).items())
            if stated == kind and place in members
        }
        if len(found) < needed:
            raise VoidMessageError("unmask", len(found), needed)
        chosen = dict(list(found.items())[:needed])
        secret = reconstruct(chosen, weights(list(chosen)))
        if secret is None:
            raise VoidMessageError("unmask", len(found), needed)
        return secret

    def _known_roster(self) -> Roster:
        assert self._roster is not None
        return self._roster

    def _require(self, trip: str, clients: int) -> None:
        # In a large cohort each neighbourhood has its own threshold, which `result` checks.
        least = self.parameters.minimum
        if len(self.parameters.clients) - 1 <= self.parameters.neighbours:
            size = len(self._entries) if self._roster is not None else clients
            least = max(least, threshold(max(size, 1)))
        if clients < least:
            raise VoidMessageError(trip, clients, least)
