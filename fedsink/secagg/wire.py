"""Messages as bytes: rows of fixed width, a client's number first.

A message has one form only: equal content has equal bytes, so that digests and signatures of bytes
are digests and signatures of what they say. Reading raises MalformedTripError and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from struct import Struct

from fedsink.secagg.masks import SHARE_BYTES
from fedsink.secagg.parameters import KEY_BYTES, SIGNATURE_BYTES
from fedsink.secagg.refusals import MalformedTripError

NUMBER_BYTES = 4
NONCE_BYTES = 12
BOX_BYTES = NONCE_BYTES + 2 * SHARE_BYTES + 16  # two shares under AES-GCM, and its tag


def number(client: int) -> bytes:
    return client.to_bytes(NUMBER_BYTES, "big")


def joined(content: Iterable[tuple[int, bytes]]) -> bytes:
    """Returns the bytes of rows (client, rest), ordered by client."""
    return b"".join(number(client) + rest for client, rest in sorted(content))


def rows(content: bytes, rest: int, what: str) -> list[tuple[int, bytes]]:
    """Reads what `joined` wrote: (client, rest) of each row, with so many bytes in the rest."""
    width = NUMBER_BYTES + rest
    if not isinstance(content, bytes) or len(content) % width:
        raise MalformedTripError(f"Malformed {what}: rows have {width} bytes.")
    found = []
    last = -1
    for start in range(0, len(content), width):
        client = int.from_bytes(content[start : start + NUMBER_BYTES], "big")
        if client <= last:
            raise MalformedTripError(f"Malformed {what}: client {client} stands after {last}.")
        found.append((client, content[start + NUMBER_BYTES : start + width]))
        last = client
    return found


def named(clients: Iterable[int]) -> bytes:
    """Returns the bytes of a set of clients; `names` reads them."""
    return joined((client, b"") for client in clients)


def names(content: bytes, what: str) -> frozenset[int]:
    return frozenset(client for client, _ in rows(content, 0, what))


@dataclass(frozen=True)
class Entry:
    """Keys that one client advertises, with its signature."""

    client: int
    identity: bytes  # Ed25519 public key
    certificate: bytes  # of that key, by an authority
    channel: bytes  # c_u, X25519 public key that shares are encrypted for
    mask: bytes  # s_u, X25519 public key that masks are agreed with
    signature: bytes  # of the identity, over the parameters' digest and `signed`

    _PARTS = Struct(f"{KEY_BYTES}s{SIGNATURE_BYTES}s{KEY_BYTES}s{KEY_BYTES}s{SIGNATURE_BYTES}s")
    REST = _PARTS.size

    @property
    def signed(self) -> bytes:
        """The part that the signature covers."""
        return number(self.client) + self.identity + self.certificate + self.channel + self.mask

    @property
    def rest(self) -> bytes:
        """All of a row after the client's number."""
        return self.identity + self.certificate + self.channel + self.mask + self.signature

    @classmethod
    def of_row(cls, client: int, rest: bytes) -> Entry:
        return cls(client, *cls._PARTS.unpack(rest))


@dataclass(frozen=True)
class KeyRoster:
    """Keys of all clients that take part in a message, as every one of them sees them."""

    content: bytes  # the rows

    @cached_property
    def entries(self) -> dict[int, Entry]:
        found = rows(self.content, Entry.REST, "roster")
        return {client: Entry.of_row(client, rest) for client, rest in found}

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the roster; part of every key and signature after it."""
        return hashlib.sha256(self.content).digest()


def forwarded(sharers: Iterable[int], boxes: Iterable[tuple[int, bytes]]) -> bytes:
    """Returns what trip 2 sends: U₂, and the shares that neighbours encrypted for a client."""
    everybody = named(sharers)
    return number(len(everybody)) + everybody + joined(boxes)


def opened(content: bytes) -> tuple[bytes, dict[int, bytes]]:
    """Reads what `forwarded` wrote: U₂ as `named` wrote it, and boxes by sender."""
    if not isinstance(content, bytes) or len(content) < NUMBER_BYTES:
        raise MalformedTripError("Malformed shares: their head is missing.")
    start = NUMBER_BYTES
    end = start + int.from_bytes(content[:start], "big")
    if end > len(content):
        raise MalformedTripError("Malformed shares: clients are missing.")
    return content[start:end], dict(rows(content[end:], BOX_BYTES, "shares"))
