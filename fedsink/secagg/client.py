"""A client's side of one message of secure aggregation: five trips, each answered once.

The lines are those of Bonawitz et al. 2017, Figure 4, for a client u:

| trip | the server sends | client u answers |
|---|---|---|
| 0 keys | the parameters | its public keys c_u and s_u, signed |
| 1 shares | the roster of all keys | encrypted shares of its secrets s_u and b_u |
| 2 masked | its neighbours' shares | y_u = x_u + PRG(b_u) ± Σ_v PRG(s_uv) mod 2^b |
| 3 survivors | the set U₃ of those who sent y | its signature over U₃ |
| 4 unmask | signatures of U₃ | for v in U₃ a share of b_v, for v dropped a share of s_v |

A survivor's b_u and a dropped client's s_u become known; a client of whom both were known would
have no mask left.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedsink.secagg.graph import neighbourhoods
from fedsink.secagg.identities import (
    SIGNATURE_BYTES,
    Identity,
    Trust,
    verified,
)
from fedsink.secagg.masks import agreed, encoded, expand, public_of, reduced
from fedsink.secagg.parameters import Parameters, threshold
from fedsink.secagg.refusals import (
    AnsweredError,
    RosterError,
    SecretSharesError,
    SurvivorsError,
)
from fedsink.secagg.shamir import SECRET_BYTES, SHARE_BYTES, share
from fedsink.secagg.wire import BOX_BYTES, NUMBER_BYTES, Entry, Roster, joined, number, rows

OF_SELF_MASK, OF_MASK_KEY = b"\0", b"\1"
"""Says of which secret a share is that a client gives in the last trip."""

ANSWER_BYTES = NUMBER_BYTES + 1 + SHARE_BYTES


@dataclass(frozen=True)
class Rules:
    """Conditions of a client's owner.

    Attributes:
        trust: decides whose keys count.
        minimum_cohort: least number of clients in a roster.
    """

    trust: Trust
    minimum_cohort: int = 2


@dataclass
class _Memory:
    """All that a client keeps of one message between trips; secrets are empty once it is over."""

    channel: bytes
    mask: bytes
    seed: bytes
    entry: bytes
    roster: bytes = b""
    boxes: dict[int, str] = field(default_factory=dict)
    answers: dict[str, tuple[str, str]] = field(default_factory=dict)
    over: bool = False


class ClientSession:
    """One client in one message.

    A trip that is asked again with the same content is answered with the same bytes, and with other
    content it is refused. A session can be stored between trips (`to_bytes`): then the content is
    as secret as the client's vector.

    Guarantees:
        - Nothing is masked for a roster that the owner's rules refuse.
        - At most one masked vector leaves, for one roster and one set of forwarded shares.
        - Of each peer a share of at most one of its two secrets is given.
        - Shares are given for one set of survivors, which at least t neighbours have signed.
        - After the last trip the session holds no secret.
        - A malformed message raises ValueError, and changes nothing.

    Args:
        parameters: of the message.
        client: this client's number.
        identity: signs.
        rules: of the client's owner.
        random: returns fresh random bytes.

    Raises:
        RosterError: the parameters ask for a cohort or a sum that is too small.
        ValueError: the client is not one of the message's.
    """

    def __init__(
        self,
        parameters: Parameters,
        client: int,
        identity: Identity,
        rules: Rules,
        random: Callable[[int], bytes] = os.urandom,
        memory: _Memory | None = None,
    ) -> None:
        if client not in parameters.clients:
            raise ValueError(f"Client {client} is not in this message's cohort.")
        if len(parameters.clients) < rules.minimum_cohort:
            raise RosterError(
                f"The message asks {len(parameters.clients)} clients, and the owner demands "
                f"{rules.minimum_cohort}."
            )
        self.parameters, self.client = parameters, client
        self._identity, self._rules, self._random = identity, rules, random
        self._memory = self._begin() if memory is None else memory

    def _begin(self) -> _Memory:
        channel, mask, seed = (self._random(SECRET_BYTES) for _ in range(3))
        entry = Entry(
            self.client,
            self._identity.public,
            self._identity.certificate,
            public_of(channel),
            public_of(mask),
            b"",
        )
        signature = self._identity.sign("keys", self.parameters.digest(), entry.signed)
        return _Memory(channel, mask, seed, entry.to_bytes() + signature)

    @property
    def has_roster(self) -> bool:
        """True once this client has shared its secrets among a roster."""
        return bool(self._memory.roster)

    def keys(self) -> bytes:
        """Trip 0: returns this client's row of the roster."""
        return self._memory.entry

    def shares(self, roster: bytes) -> bytes:
        """Trip 1: returns both secrets' shares, encrypted for each neighbour.

        Raises:
            RosterError: keys are missing, changed, unsigned, not trusted, or too few.
            AnsweredError: another roster was answered before, or the message is over.
        """
        return self._once("shares", roster, self._share)

    def _share(self, content: bytes) -> bytes:
        roster = Roster(content)
        self._check_roster(roster)
        members = self._circle(roster)
        needed = threshold(len(members))
        secrets = (self._memory.mask, self._memory.seed)
        places = {member: member + 1 for member in members}
        of_mask, of_seed = (
            share(secret, list(places.values()), needed, self._random) for secret in secrets
        )
        boxes = []
        for member, place in places.items():
            both = b"".join(s[place].to_bytes(SHARE_BYTES, "big") for s in (of_mask, of_seed))
            if member == self.client:
                self._memory.boxes[member] = both.hex()
            else:
                box = self._channel(roster, self.client, member).encrypt(
                    bytes(12), both, self._bound(roster, self.client, member)
                )
                boxes.append((member, box))
        self._memory.roster = content
        return joined(boxes)

    def masked(self, forwarded: bytes, vector: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Trip 2: returns the masked vector, residues modulo 2^b.

        Args:
            forwarded: shares that the neighbours encrypted for this client.
            vector: x_u, integers.

        Raises:
            SecretSharesError: shares do not decrypt, are from strangers, or too few.
            AnsweredError: other shares or another vector were answered before.
            ValueError: the vector's length is not the message's.
        """
        if vector.shape != (self.parameters.length,):
            raise ValueError(
                f"The message adds vectors of {self.parameters.length} values, not {vector.shape}."
            )
        content = forwarded + hashlib.sha256(vector.astype(np.int64).tobytes()).digest()
        self._once("masked", content, lambda _: self._open(forwarded))
        return self._mask(vector)

    def _open(self, forwarded: bytes) -> bytes:
        roster = self._known_roster()
        neighbours = self._circle(roster)
        opened: dict[int, str] = {}
        for sender, box in rows(forwarded, NUMBER_BYTES + BOX_BYTES, "shares"):
            if sender == self.client or sender not in neighbours:
                raise SecretSharesError(f"Client {sender} is no neighbour in this message.")
            try:
                both = self._channel(roster, sender, self.client).decrypt(
                    bytes(12), box, self._bound(roster, sender, self.client)
                )
            except InvalidTag:
                raise SecretSharesError(
                    f"The shares from client {sender} are not those that it encrypted for this "
                    "client in this message."
                ) from None
            opened[sender] = both.hex()
        needed = threshold(len(neighbours))
        if len(opened) + 1 < needed:
            raise SecretSharesError(
                f"{len(opened) + 1} neighbours have shared their secrets, and {needed} are needed."
            )
        self._memory.boxes |= opened
        return b""

    def _mask(self, vector: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        roster = self._known_roster()
        total = encoded(vector, self.parameters) + expand(self._memory.seed, self.parameters)
        for peer in self._memory.boxes:
            if peer == self.client:
                continue
            seed = agreed(
                self._memory.mask, roster.entries[peer].mask, pair(roster, self.client, peer)
            )
            mask = expand(seed, self.parameters)
            total = total + mask if self.client < peer else total - mask
        return reduced(total, self.parameters.bits)

    def survivors(self, survivors: bytes) -> bytes:
        """Trip 3: returns this client's signature over the set of survivors.

        Raises:
            SurvivorsError: they are too few, not all in the roster, or this client is not one.
            AnsweredError: another set was signed before.
        """
        return self._once("survivors", survivors, self._sign)

    def _sign(self, content: bytes) -> bytes:
        if "masked" not in self._memory.answers:
            raise SurvivorsError("This client has sent no vector in this message.")
        survivors = survivors_in(content)
        roster = self._known_roster()
        if self.client not in survivors or not survivors <= roster.entries.keys():
            raise SurvivorsError("The survivors are not this message's, or leave this client out.")
        neighbours = self._circle(roster)
        near, needed = len(survivors & set(neighbours)), threshold(len(neighbours))
        if len(survivors) < self.parameters.minimum or near < needed:
            raise SurvivorsError(
                f"{len(survivors)} survivors, {near} of them neighbours, are too few: "
                f"{self.parameters.minimum} and {needed} are needed."
            )
        strangers = survivors & set(neighbours) - self._memory.boxes.keys()
        if strangers:
            raise SurvivorsError("Clients that shared no secret are named as survivors.")
        return self._identity.sign("survivors", roster.digest, content)

    def unmask(self, signatures: bytes) -> bytes:
        """Trip 4: returns one share of each neighbour, and forgets all secrets.

        Raises:
            SurvivorsError: fewer than t neighbours have signed the set that this client signed.
            AnsweredError: other signatures were answered before.
        """
        answer = self._once("unmask", signatures, self._reveal)
        self._forget()
        return answer

    def _reveal(self, content: bytes) -> bytes:
        if "survivors" not in self._memory.answers:
            raise SurvivorsError("This client has signed no survivors in this message.")
        roster, signed = self._known_roster(), bytes.fromhex(self._asked("survivors"))
        survivors, neighbours = survivors_in(signed), self._circle(roster)
        count = 0
        for client, signature in rows(content, NUMBER_BYTES + SIGNATURE_BYTES, "signatures"):
            if client not in survivors:
                raise SurvivorsError(f"Client {client} signed, and is no survivor.")
            key = roster.entries[client].identity
            if not verified(key, signature, "survivors", roster.digest, signed):
                raise SurvivorsError(f"Client {client} has not signed these survivors.")
            count += client in neighbours
        if count < threshold(len(neighbours)):
            raise SurvivorsError(
                f"{count} neighbours have signed the survivors, and {threshold(len(neighbours))} "
                "are needed."
            )
        answers = []
        for peer, both in sorted(self._memory.boxes.items()):
            of_mask, of_seed = both[: 2 * SHARE_BYTES], both[2 * SHARE_BYTES :]
            kind, given = (OF_SELF_MASK, of_seed) if peer in survivors else (OF_MASK_KEY, of_mask)
            answers.append((peer, kind + bytes.fromhex(given)))
        return joined(answers)

    def _once(self, trip: str, content: bytes, answer: Callable[[bytes], bytes]) -> bytes:
        """Returns the answer of a trip; the same content has the same answer, other content none.

        Raises:
            AnsweredError: the trip was answered for other content, or the message is over.
        """
        if not isinstance(content, bytes):
            raise ValueError("A trip's content is bytes.")
        memory = self._memory
        known = hashlib.sha256(content).hexdigest()
        if trip in memory.answers:
            asked, answered = memory.answers[trip]
            same = asked == content.hex() if trip == "survivors" else asked == known
            if not same or (memory.over and trip == "masked"):
                raise AnsweredError(f"This client has answered the trip {trip!r} of this message.")
            return bytes.fromhex(answered)
        if memory.over:
            raise AnsweredError("This message is over.")
        answered = answer(content)
        memory.answers[trip] = (content.hex() if trip == "survivors" else known), answered.hex()
        return answered

    def _asked(self, trip: str) -> str:
        return self._memory.answers[trip][0]

    def _forget(self) -> None:
        memory = self._memory
        memory.channel = memory.mask = memory.seed = b""
        memory.boxes, memory.over = {}, True

    def _check_roster(self, roster: Roster) -> None:
        """Raises RosterError for a roster that this client takes no part in."""
        entries, trust = roster.entries, self._rules.trust
        least = max(self._rules.minimum_cohort, self.parameters.minimum)
        if len(entries) < least:
            raise RosterError(f"The roster has {len(entries)} clients, and {least} are needed.")
        own = entries.get(self.client)
        if own is None or own.to_bytes() != self._memory.entry:
            raise RosterError("The roster does not hold this client's keys as it sent them.")
        keys = [key for e in entries.values() for key in (e.identity, e.channel, e.mask)]
        if len(set(keys)) != len(keys):
            raise RosterError("A key stands twice in the roster.")
        digest = self.parameters.digest()
        for client, entry in entries.items():
            if client not in self.parameters.clients:
                raise RosterError(f"Client {client} is in the roster and not in the cohort.")
            if not trust.trusts(client, entry.identity, entry.certificate):
                raise RosterError(f"The key of client {client} is none that the owner trusts.")
            if not verified(entry.identity, entry.signature, "keys", digest, entry.signed):
                raise RosterError(f"Client {client} has not signed its keys for this message.")

    def _circle(self, roster: Roster) -> tuple[int, ...]:
        """Returns this client and its neighbours, increasing."""
        near = neighbourhoods(list(roster.entries), self.parameters.neighbours, roster.digest)[
            self.client
        ]
        return tuple(sorted((*near, self.client)))

    def _known_roster(self) -> Roster:
        if not self._memory.roster:
            raise RosterError("This client has seen no roster in this message.")
        return Roster(self._memory.roster)

    def _channel(self, roster: Roster, sender: int, receiver: int) -> AESGCM:
        """Returns the cipher of one direction; its key is used once, so that its nonce is zero."""
        peer = receiver if sender == self.client else sender
        purpose = b"channel\0" + self._bound(roster, sender, receiver)
        try:
            key = agreed(self._memory.channel, roster.entries[peer].channel, purpose)
        except ValueError:
            raise RosterError(f"The channel key of client {peer} is weak.") from None
        return AESGCM(key)

    def _bound(self, roster: Roster, sender: int, receiver: int) -> bytes:
        return roster.digest + number(sender) + number(receiver)

    def to_bytes(self) -> bytes:
        """Returns everything that the session keeps; secret until the message is over."""
        memory = self._memory
        stated = {
            "parameters": self.parameters.to_dict(),
            "client": self.client,
            **{
                name: getattr(memory, name).hex()
                for name in ("channel", "mask", "seed", "entry", "roster")
            },
            "boxes": memory.boxes,
            "answers": memory.answers,
            "over": memory.over,
        }
        return json.dumps(stated).encode()

    @classmethod
    def from_bytes(
        cls,
        content: bytes,
        identity: Identity,
        rules: Rules,
        random: Callable[[int], bytes] = os.urandom,
    ) -> ClientSession:
        """Reads what `to_bytes` wrote; raises ValueError for all else."""
        try:
            stated: Mapping[str, Any] = json.loads(content)
            memory = _Memory(
                *(
                    bytes.fromhex(stated[name])
                    for name in ("channel", "mask", "seed", "entry", "roster")
                ),
                {int(peer): both for peer, both in stated["boxes"].items()},
                {trip: (asked, said) for trip, (asked, said) in stated["answers"].items()},
                over=stated["over"],
            )
            parameters = Parameters.from_dict(stated["parameters"])
            return cls(parameters, stated["client"], identity, rules, random, memory)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"This is no session of secure aggregation: {error}.") from error


def pair(roster: Roster, one: int, other: int) -> bytes:
    """Returns the name of the mask that two clients share in a roster."""
    low, high = sorted((one, other))
    return b"mask\0" + roster.digest + number(low) + number(high)


def survivors_in(content: bytes) -> set[int]:
    """Returns the clients in a set of survivors; raises ValueError where it is malformed."""
    return {client for client, _ in rows(content, NUMBER_BYTES, "survivors")}
