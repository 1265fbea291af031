"""The server's side of one message of secure aggregation.

The trips are those of `client`. A client whose answer does not come, or is not one, has dropped
out. The server has no key: what it must not do, clients refuse.

>>> from fedsink.secagg.client import ClientSession
>>> from fedsink.secagg.identities import Identity, Peers
>>> from fedsink.secagg.parameters import Rules
>>> identities = {client: Identity.derived(bytes([client]) * 32) for client in range(4)}
>>> rules = Rules(Peers({client: i.public for client, i in identities.items()}))
>>> parameters = Parameters("run", "0", tuple(identities), bits=32, length=2, minimum=3)
>>> clients = {c: ClientSession(parameters, c, i, rules) for c, i in identities.items()}
>>> server = ServerSession(parameters)
>>> all(server.take_keys(client, session.keys()) for client, session in clients.items())
True
>>> all(server.take_shares(c, clients[c].shares(server.roster())) for c in server.members())
True
>>> def masked(client):
...     forwarded = server.forwarded(client)
...     return clients[client].masked(forwarded, b"request", lambda: np.array([client, -1]))
>>> all(server.take_masked(c, masked(c)) for c in server.sharers() if c != 3)  # 3 drops out
True
>>> signatures = {c: clients[c].survivors(server.survivors()) for c in server.vectors()}
>>> all(server.take_signature(c, signature) for c, signature in signatures.items())
True
>>> all(server.take_unmask(c, clients[c].unmask(server.signatures())) for c in server.signers())
True
>>> server.result(b"request")
MaskedSum(total=array([ 3, -3]), survivors=(0, 1, 2))
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsink.secagg.client import OF_MASK_KEY, OF_SELF_MASK, TRIPS, pair
from fedsink.secagg.graph import Circle
from fedsink.secagg.identities import verified
from fedsink.secagg.masks import (
    SHARE_BYTES,
    Words,
    agreed,
    centred,
    expand,
    public_of,
    reconstruct,
    unpacked,
)
from fedsink.secagg.parameters import SIGNATURE_BYTES, Parameters, Trust
from fedsink.secagg.refusals import MalformedTripError, VoidMessageError, WrongShareError
from fedsink.secagg.wire import BOX_BYTES, Entry, KeyRoster, forwarded, joined, named, rows


class MaskedSum(NamedTuple):
    """The sum that the server learns."""

    total: NDArray[np.int64]  # of the survivors' vectors, in −2^(b−1), …, 2^(b−1) − 1
    survivors: tuple[int, ...]  # increasing


class ServerSession:
    """Collects the clients' answers of one message, trip by trip.

    Every `take_…` tells whether the answer is of use; an answer that comes once the next trip has
    begun is not. What a trip sends is fixed when it is first read, and raises VoidMessageError
    where too few clients are left. With the clients' own `trust`, a row that they would refuse is
    left out of the roster, where it would end the message.
    """

    def __init__(self, parameters: Parameters, trust: Trust | None = None) -> None:
        self.parameters, self._trust = parameters, trust
        self._entries: dict[int, Entry] = {}
        self._roster: KeyRoster | None = None  # U₁
        self._boxes: dict[int, dict[int, bytes]] = {}  # U₂: sender → receiver → encrypted shares
        self._sharers: tuple[int, ...] = ()
        self._vectors: set[int] = set()
        self._total = np.zeros(parameters.length, parameters.dtype)
        self._survivors: tuple[int, ...] = ()  # U₃
        self._statement: tuple[bytes, ...] = ()  # that survivors sign
        self._signatures: dict[int, bytes] = {}
        self._signers: tuple[int, ...] = ()
        self._given: dict[tuple[int, bytes], dict[int, bytes]] = {}  # owner, kind → client → share
        self._answered: set[int] = set()

    # Trip 0 ------------------------------------------------------------------------------------

    def take_keys(self, client: int, content: bytes) -> bool:
        """Takes a client's row of the roster."""
        if self._roster is not None or client not in self.parameters.clients:
            return False
        try:
            entries = [Entry.of_row(*row) for row in rows(content, Entry.REST, "keys")]
        except MalformedTripError:
            return False
        if len(entries) != 1 or entries[0].client != client:
            return False
        entry, trust = entries[0], self._trust
        if trust is not None and not trust.trusts(client, entry.identity, entry.certificate):
            return False
        digest = self.parameters.digest
        if not verified(entry.identity, entry.signature, "keys", digest, entry.signed):
            return False
        self._entries[client] = entry
        return True

    # Trip 1 ------------------------------------------------------------------------------------

    def roster(self) -> bytes:
        """Returns U₁ with its keys, for each of its `members`."""
        return self._fixed().content

    def _fixed(self) -> KeyRoster:
        if self._roster is None:
            self._require(0, len(self._entries))
            self._roster = KeyRoster(joined((c, entry.rest) for c, entry in self._entries.items()))
            self._circle = Circle(
                list(self._entries), self.parameters.neighbours, self._roster.digest
            )
        return self._roster

    def members(self) -> tuple[int, ...]:
        return tuple(sorted(self._entries))

    def take_shares(self, client: int, content: bytes) -> bool:
        """Takes the shares that a client encrypted for its neighbours."""
        if self._roster is None or self._sharers or client not in self._entries:
            return False
        try:
            boxes = dict(rows(content, BOX_BYTES, "shares"))
        except MalformedTripError:
            return False
        if {*boxes, client} != set(self._circle.around(client)):
            return False
        self._boxes[client] = boxes
        return True

    # Trip 2 ------------------------------------------------------------------------------------

    def sharers(self) -> tuple[int, ...]:
        """Returns U₂, the clients that are asked for their vectors."""
        if not self._sharers:
            self._require(1, len(self._boxes))
            self._sharers = tuple(sorted(self._boxes))
        return self._sharers

    @property
    def is_shared(self) -> bool:
        """True once enough clients have sent shares for their vectors to be asked for."""
        return len(self._boxes) >= self.needed(1)

    def forwarded(self, client: int) -> bytes:
        """Returns U₂ and the shares that neighbours encrypted for one of its clients."""
        sharers = self.sharers()
        return forwarded(
            sharers,
            (
                (sender, self._boxes[sender][client])
                for sender in self._circle.around(client)
                if sender in self._boxes and sender != client
            ),
        )

    def take_masked(self, client: int, content: bytes) -> bool:
        """Adds a masked vector to the sum; one that was added is not added again."""
        parameters = self.parameters
        if client in self._vectors or client not in self._sharers or self._survivors:
            return False
        try:
            vector = unpacked(content, parameters.length, parameters.bits, parameters.dtype)
        except MalformedTripError:
            return False
        self._total += vector
        self._vectors.add(client)
        return True

    # Trip 3 ------------------------------------------------------------------------------------

    def survivors(self) -> bytes:
        """Returns U₃, for each of `vectors`."""
        if not self._survivors:
            self._require(2, len(self._vectors))
            self._survivors = tuple(sorted(self._vectors))
            sets = named(self._sharers), named(self._survivors)
            self._statement = self._fixed().digest, *sets
        return self._statement[-1]

    def vectors(self) -> tuple[int, ...]:
        """Returns the clients whose masked vectors are in the sum."""
        return tuple(sorted(self._vectors))

    def take_signature(self, client: int, content: bytes) -> bool:
        """Takes a survivor's signature over roster, sharers and survivors."""
        if client not in self._survivors or self._signers:
            return False
        if not isinstance(content, bytes) or len(content) != SIGNATURE_BYTES:
            return False
        key = self._entries[client].identity
        if not verified(key, content, "survivors", *self._statement):
            return False
        self._signatures[client] = content
        return True

    # Trip 4 ------------------------------------------------------------------------------------

    def signatures(self) -> bytes:
        """Returns the signatures, for each of `signers`."""
        return joined((client, self._signatures[client]) for client in self.signers())

    def signers(self) -> tuple[int, ...]:
        if not self._signers:
            self._require(3, len(self._signatures))
            self._signers = tuple(sorted(self._signatures))
        return self._signers

    def take_unmask(self, client: int, content: bytes) -> bool:
        """Takes one share of each client around a survivor."""
        if client not in self._signers or client in self._answered:
            return False
        try:
            given = dict(rows(content, 1 + SHARE_BYTES, "shares"))
        except MalformedTripError:
            return False
        kinds = {
            owner: OF_SELF_MASK if owner in self._survivors else OF_MASK_KEY
            for owner in self._circle.around(client)
            if owner in self._boxes
        }
        if {owner: share[:1] for owner, share in given.items()} != kinds:
            return False
        for owner, share in given.items():
            self._given.setdefault((owner, share[:1]), {})[client] = share[1:]
        self._answered.add(client)
        return True

    def result(self, request: bytes) -> MaskedSum:
        """Removes from Σ y_u the survivors' self masks, and their masks with the dropped."""
        size = self.parameters.length, self.parameters.dtype
        if not self._signers:
            self._require(3, 0)
        total = self._total.copy()
        for client in self._survivors:
            total -= expand(self._secret(client, OF_SELF_MASK), *size)
        for dropped in sorted(set(self._sharers) - self._vectors):
            total -= self._left_by(dropped, request)
        return MaskedSum(centred(total, self.parameters.bits), self._survivors)

    def _left_by(self, dropped: int, request: bytes) -> Words:
        """Returns the masks with a dropped client that are left in the survivors' sum."""
        size = self.parameters.length, self.parameters.dtype
        left = np.zeros(*size)
        near = self._vectors.intersection(self._circle.around(dropped))
        private = self._secret(dropped, OF_MASK_KEY) if near else b""
        if near and public_of(private) != self._entries[dropped].mask:
            raise WrongShareError(dropped)
        for client in near:
            public = self._entries[client].mask
            purpose = pair(self._fixed(), request, client, dropped)
            mask = expand(agreed(private, public, purpose), *size)
            if dropped < client:
                left += mask
            else:
                left -= mask
        return left

    def _secret(self, owner: int, kind: bytes) -> bytes:
        """Returns a secret from the shares that clients around its owner gave."""
        given, needed = self._given.get((owner, kind), {}), self.parameters.threshold
        places = enumerate(self._circle.around(owner), start=1)
        found = {place: given[client] for place, client in places if client in given}
        if len(found) < needed:
            raise VoidMessageError(TRIPS[4], len(found), needed)
        secret = reconstruct(dict(list(found.items())[:needed]))
        if secret is None:
            raise WrongShareError(owner)
        return secret

    def needed(self, trip: int) -> int:
        """Returns the least number of answers with which a trip does not end the message."""
        # In a large cohort each neighbourhood needs its own t of them, which `result` sees.
        return self.parameters.least if trip < 3 else self.parameters.quorum

    def _require(self, trip: int, clients: int) -> None:
        if clients < self.needed(trip):
            raise VoidMessageError(TRIPS[trip], clients, self.needed(trip))
