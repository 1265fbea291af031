"""A client's side of one message of secure aggregation: five trips, each answered once.

The lines are those of Bonawitz et al. 2017, Figure 4, for a client u:

| trip | the server sends | client u answers |
|---|---|---|
| 0 keys | the parameters | its public keys c_u and s_u, signed |
| 1 shares | the roster U₁ of all keys | shares of s_u and b_u, encrypted for each neighbour |
| 2 masked | U₂, who shared, shares for u, and r | y_u = x_u + PRG(b_u) + Σ_v ±PRG(s_uv) mod 2^b |
| 3 survivors | U₃, who sent y | its signature over U₁, U₂ and U₃ |
| 4 unmask | the signatures | for v in U₃ a share of b_v, for other v in U₂ one of s_v |

A survivor's b_u and a dropped client's s_u become known; a client of whom both were known would
have no mask left. Three things differ from Figure 4. Clients sign U₂ beside U₃: a server that told
clients different sets U₂ could cut the survivors into groups without a mask in common. More
than two thirds of *all* clients have to sign, not of a neighbourhood: any two such sets have an
honest client in common, which signs one statement only. And s_uv depends on r, the digest of the
request whose answer x_u is: keys may be exchanged before there is a request, and answers to
different requests have no sum.
"""

from __future__ import annotations

import hashlib
import os
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from json import dumps
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from fedsink.secagg.graph import Circle
from fedsink.secagg.identities import Identity, verified
from fedsink.secagg.masks import (
    SECRET_BYTES,
    SHARE_BYTES,
    Words,
    agreed,
    check_public,
    encoded,
    expand,
    packed,
    public_of,
    share,
)
from fedsink.secagg.parameters import SIGNATURE_BYTES, Parameters, Rules
from fedsink.secagg.refusals import (
    AnsweredError,
    CohortError,
    MalformedTripError,
    OutOfTurnError,
    RosterError,
    SecretSharesError,
    SurvivorsError,
    UnsignedSurvivorsError,
    UntrustedPeerError,
)
from fedsink.secagg.wire import NONCE_BYTES, Entry, KeyRoster, joined, names, number, opened, rows
from fedsink.values import read_json

TRIPS = "keys", "shares", "masked", "survivors", "unmask"
OF_MASK_KEY, OF_SELF_MASK = b"\0", b"\1"
"""Says of which secret a share is that a client gives in the last trip."""


@dataclass
class _Memory:
    """All that a client keeps of one message between trips."""

    # The first three are empty once y_u is sent, `shares` once the client has unmasked.

    channel: bytes = b""  # private key of c_u
    mask: bytes = b""  # of s_u
    seed: bytes = b""  # b_u
    roster: bytes = b""  # U₁ with its keys
    shares: bytes = b""  # of both secrets of each neighbour in U₂, and of its own
    sharers: bytes = b""  # U₂
    survivors: bytes = b""  # U₃
    # (SHA-256 of what was asked, answer) of each trip so far.
    answers: list[tuple[bytes, bytes]] = field(default_factory=list)


class ClientSession:
    """One client in one message.

    A trip that is asked again with the same content is answered with the same bytes (the masked
    vector until the client has unmasked); with other content it is refused. A refusal changes
    nothing. A session can be stored between trips (`to_bytes`); until the masked vector has left it
    is as secret as the client's vector, and until the last trip it holds shares of its neighbours'
    secrets. A client keeps one session for a run and message: a second one would mask its vector
    again.

    Guarantees:
        - Nothing is shared for a roster that the owner's rules refuse.
        - The vector is computed once, after all that comes before it was checked.
        - At most one masked vector leaves, for one roster, one set of sharers and one request.
        - Vectors for different requests leave masks in their sum.
        - Of each peer a share of at most one of its two secrets is given.
        - Shares are given for one statement of roster, sharers and survivors, signed by more than
          two thirds of the clients that were asked.
        - No sum over fewer survivors than the parameters' and the owner's minimum is unmasked.
        - Once the masked vector has left, the session does not hold its masks; after the last trip
          it holds no secret except the shares that it gave to the server.
        - Malformed bytes raise MalformedTripError.

    A trip refuses by an error of `refusals`.
    """

    def __init__(
        self,
        parameters: Parameters,
        client: int,
        identity: Identity,
        rules: Rules,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        if client not in parameters.clients:
            raise RosterError(f"Client {client} is not asked in this message.")
        rules.check(parameters)
        self.parameters, self.client = parameters, client
        self._identity, self._rules, self._random = identity, rules, random
        self._memory = _Memory()

    # Trip 0 ------------------------------------------------------------------------------------

    def keys(self) -> bytes:
        """Returns in trip 0 this client's row of the roster, the same whenever it is asked."""
        return self._once(0, b"", self._advertise)

    def _advertise(self, _: bytes) -> bytes:
        channel, mask = self._random(SECRET_BYTES), self._random(SECRET_BYTES)
        signer = self._identity.public, self._identity.certificate
        entry = Entry(self.client, *signer, public_of(channel), public_of(mask), b"")
        signature = self._identity.sign("keys", self.parameters.digest, entry.signed)
        self._memory.channel, self._memory.mask = channel, mask
        return number(self.client) + entry.rest + signature

    # Trip 1 ------------------------------------------------------------------------------------

    def shares(self, roster: bytes) -> bytes:
        """Returns in trip 1 shares of both secrets, encrypted for its neighbours in U₁."""
        return self._once(1, roster, self._share)

    def _share(self, content: bytes) -> bytes:
        roster = _read(content)
        self._check_roster(roster)
        around = self._around(roster)
        seed = self._random(SECRET_BYTES)
        of_mask, of_seed = (
            share(secret, len(around), self.parameters.threshold, self._random)
            for secret in (self._memory.mask, seed)
        )
        both = {peer: m + s for peer, m, s in zip(around, of_mask, of_seed, strict=True)}
        boxes = joined(
            (peer, self._encrypted(roster, peer, shares))
            for peer, shares in both.items()
            if peer != self.client
        )
        memory = self._memory
        memory.seed, memory.roster = seed, content
        memory.shares = joined([(self.client, both[self.client])])
        return boxes

    def _check_roster(self, roster: KeyRoster) -> None:
        entries = roster.entries
        if len(entries) < self._least:
            raise CohortError(f"{len(entries)} clients sent keys, and {self._least} are needed.")
        own = entries.get(self.client)
        if own is None or number(self.client) + own.rest != self._memory.answers[0][1]:
            raise RosterError("The roster does not hold this client's keys as it sent them.")
        if strangers := entries.keys() - set(self.parameters.clients):
            raise RosterError(f"Client {min(strangers)} is in the roster and was not asked.")
        keys = [key for e in entries.values() for key in (e.identity, e.channel, e.mask)]
        if len(set(keys)) != len(keys):
            raise RosterError("A key stands twice in the roster.")
        digest = self.parameters.digest
        for client, entry in entries.items():
            if not self._rules.trust.trusts(client, entry.identity, entry.certificate):
                raise UntrustedPeerError(f"The owner does not trust the key of client {client}.")
            if not verified(entry.identity, entry.signature, "keys", digest, entry.signed):
                raise UntrustedPeerError(f"Client {client} did not sign its keys for this message.")
            check_public(entry.channel)
            check_public(entry.mask)

    # Trip 2 ------------------------------------------------------------------------------------

    def masked(
        self, forwarded: bytes, request: bytes, vector: Callable[[], NDArray[np.int64]]
    ) -> bytes:
        """Returns in trip 2 the masked vector y_u, `masks.packed`.

        `forwarded` is U₂ with the shares that neighbours encrypted for this client, `request` the
        digest r of what the vector answers. `vector` computes x_u, once and after everything is
        checked. What it raises, this raises, and the trip can be asked again.
        """
        return self._once(
            2, forwarded, lambda content: self._mask(content, request, vector), request
        )

    def _mask(
        self, content: bytes, request: bytes, vector: Callable[[], NDArray[np.int64]]
    ) -> bytes:
        sharers, boxes = opened(content)
        shares = self._decrypted(self._roster, sharers, boxes)
        x = np.asarray(vector())
        if x.shape != (self.parameters.length,) or x.dtype != np.int64:
            raise MalformedTripError(
                f"The message adds {self.parameters.length} integers of 64 bits, not "
                f"{x.dtype}{list(x.shape)}."
            )
        masks = self._masks(boxes, request)
        reply = packed(masks + encoded(x, self.parameters.dtype), self.parameters.bits)
        memory = self._memory
        memory.channel = memory.mask = memory.seed = b""
        memory.shares = joined([*rows(memory.shares, 2 * SHARE_BYTES, "shares"), *shares.items()])
        memory.sharers = sharers
        return reply

    def _decrypted(
        self, roster: KeyRoster, sharers: bytes, boxes: Mapping[int, bytes]
    ) -> dict[int, bytes]:
        everybody = names(sharers, "sharers")
        if self.client not in everybody or not everybody <= roster.entries.keys():
            raise SecretSharesError("The sharers are not this roster's, or leave this client out.")
        if len(everybody) < self._least:
            raise CohortError(f"{len(everybody)} clients shared, and {self._least} are needed.")
        expected = everybody.intersection(self._around(roster)) - {self.client}
        if boxes.keys() != expected:
            raise SecretSharesError("The shares are not those of the neighbours that shared.")
        if len(boxes) + 1 < self.parameters.threshold:
            raise CohortError(
                f"{len(boxes) + 1} clients around this one shared, and "
                f"{self.parameters.threshold} are needed."
            )
        return {peer: self._opened(roster, peer, box) for peer, box in boxes.items()}

    def _masks(self, peers: Mapping[int, bytes], request: bytes) -> Words:
        """Returns PRG(b_u) + Σ_v ±PRG(s_uv), plus for v < u and minus for v > u."""
        size = self.parameters.length, self.parameters.dtype
        total, roster = expand(self._memory.seed, *size).copy(), self._roster
        for peer in peers:
            purpose = pair(roster, request, self.client, peer)
            mask = expand(agreed(self._memory.mask, roster.entries[peer].mask, purpose), *size)
            if peer < self.client:
                total += mask
            else:
                total -= mask
        return total

    # Trip 3 ------------------------------------------------------------------------------------

    def survivors(self, survivors: bytes) -> bytes:
        """Returns in trip 3 this client's signature over roster, sharers and survivors U₃."""
        return self._once(3, survivors, self._sign)

    def _sign(self, content: bytes) -> bytes:
        survivors = names(content, "survivors")
        memory, roster = self._memory, self._roster
        if self.client not in survivors or not survivors <= names(memory.sharers, "sharers"):
            raise SurvivorsError("The survivors are not the sharers', or leave this client out.")
        near = len(survivors.intersection(self._around(roster)))
        if len(survivors) < self._least or near < self.parameters.threshold:
            raise CohortError(
                f"{len(survivors)} clients survive, {near} of them around this one; {self._least} "
                f"and {self.parameters.threshold} are needed."
            )
        memory.survivors = content
        return self._identity.sign("survivors", roster.digest, memory.sharers, content)

    # Trip 4 ------------------------------------------------------------------------------------

    def unmask(self, signatures: bytes) -> bytes:
        """Returns in trip 4 one share of each client around this one, and forgets all secrets."""
        # `signatures` are survivors', over the statement that this client signed.
        return self._once(4, signatures, self._reveal)

    def _reveal(self, content: bytes) -> bytes:
        memory, roster = self._memory, self._roster
        survivors = names(memory.survivors, "survivors")
        signatures = rows(content, SIGNATURE_BYTES, "signatures")
        statement = roster.digest, memory.sharers, memory.survivors
        for client, signature in signatures:
            if client not in survivors or not verified(
                roster.entries[client].identity, signature, "survivors", *statement
            ):
                raise UnsignedSurvivorsError(f"Client {client} did not sign these survivors.")
        if len(signatures) < self.parameters.quorum:
            raise UnsignedSurvivorsError(
                f"{len(signatures)} clients have signed the survivors, and "
                f"{self.parameters.quorum} are needed."
            )
        shares = rows(memory.shares, 2 * SHARE_BYTES, "shares")
        memory.shares = b""
        memory.answers[2] = memory.answers[2][0], b""
        return joined(
            (peer, OF_SELF_MASK + both[SHARE_BYTES:])
            if peer in survivors
            else (peer, OF_MASK_KEY + both[:SHARE_BYTES])
            for peer, both in shares
        )

    # ------------------------------------------------------------------------------------------

    def _once(
        self, trip: int, content: bytes, answer: Callable[[bytes], bytes], request: bytes = b""
    ) -> bytes:
        """Returns a trip's answer: the same for the same content, and none for other content."""
        if not isinstance(content, bytes):
            raise MalformedTripError(f"The trip {TRIPS[trip]!r} is asked with bytes.")
        answers = self._memory.answers
        question = hashlib.sha256(hashlib.sha256(request).digest() + content).digest()
        if trip > len(answers):
            raise OutOfTurnError(
                f"The trip {TRIPS[trip]!r} comes after {TRIPS[trip - 1]!r}, which was not asked."
            )
        if trip == len(answers):
            answers.append((question, answer(content)))
        elif answers[trip][0] != question or not answers[trip][1]:
            raise AnsweredError(
                f"This client has answered the trip {TRIPS[trip]!r} already: for other content, or "
                "it has forgotten the answer, since it has unmasked."
            )
        return answers[trip][1]

    @property
    def has_masked(self) -> bool:
        """True once the masked vector has been computed."""
        return len(self._memory.answers) > TRIPS.index("masked")

    @property
    def _least(self) -> int:
        return max(self.parameters.least, self._rules.minimum_cohort)

    @property
    def _roster(self) -> KeyRoster:
        return _read(self._memory.roster)

    def _around(self, roster: KeyRoster) -> tuple[int, ...]:
        return _circle(roster, self.parameters.neighbours).around(self.client)

    def _encrypted(self, roster: KeyRoster, receiver: int, shares: bytes) -> bytes:
        nonce = self._random(NONCE_BYTES)
        bound = _bound(roster, self.client, receiver)
        return nonce + self._channel(roster, receiver).encrypt(nonce, shares, bound)

    def _opened(self, roster: KeyRoster, sender: int, box: bytes) -> bytes:
        bound = _bound(roster, sender, self.client)
        cipher = self._channel(roster, sender)
        try:
            return cipher.decrypt(box[:NONCE_BYTES], box[NONCE_BYTES:], bound)
        except InvalidTag:
            raise SecretSharesError(
                f"Client {sender} did not encrypt these shares for this client in this message."
            ) from None

    def _channel(self, roster: KeyRoster, peer: int) -> AESGCM:
        return AESGCM(agreed(self._memory.channel, roster.entries[peer].channel, b"channel"))

    # ------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Returns everything that the session keeps; secret until the message is over."""
        memory = {
            name: b64encode(value).decode()
            for name, value in vars(self._memory).items()
            if name != "answers"
        }
        answers = [[b64encode(part).decode() for part in pair] for pair in self._memory.answers]
        values = {"parameters": self.parameters.to_dict(), "client": self.client}
        return dumps({**values, "memory": memory, "answers": answers}).encode()

    @classmethod
    def from_bytes(
        cls,
        content: bytes,
        identity: Identity,
        rules: Rules,
        random: Callable[[int], bytes] = os.urandom,
    ) -> ClientSession:
        """Reads what `to_bytes` wrote; refuses parameters that a new session would refuse, too."""
        try:
            values: dict[str, Any] = read_json(content)
            parameters = Parameters.from_dict(values["parameters"])
            session = cls(parameters, values["client"], identity, rules, random)
            session._memory = _Memory(
                **{name: b64decode(text) for name, text in values["memory"].items()},
                answers=[
                    (b64decode(question), b64decode(answer))
                    for question, answer in values["answers"]
                ],
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise MalformedTripError(f"This is no session of a message: {error}.") from error
        return session


@lru_cache(maxsize=8)  # simulated clients in one process read the same roster
def _read(content: bytes) -> KeyRoster:
    return KeyRoster(content)


@lru_cache(maxsize=8)
def _circle(roster: KeyRoster, neighbours: int) -> Circle:
    return Circle(list(roster.entries), neighbours, roster.digest)


def pair(roster: KeyRoster, request: bytes, one: int, other: int) -> bytes:
    """Returns the purpose of the mask that two clients share: theirs, for this request only."""
    # The roster's digest stands for run, message and parameters: each row is signed for them.
    low, high = sorted((one, other))
    return b"mask" + roster.digest + number(low) + number(high) + request


def _bound(roster: KeyRoster, sender: int, receiver: int) -> bytes:
    return roster.digest + number(sender) + number(receiver)  # associated data of two shares
