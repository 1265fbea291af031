"""Messages as bytes: rows of fixed width, a client's number first."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedsink.secagg.identities import KEY_BYTES, SIGNATURE_BYTES
from fedsink.secagg.shamir import SHARE_BYTES

NUMBER_BYTES = 4
BOX_BYTES = 2 * SHARE_BYTES + 16  # two shares and AES-GCM's tag


def number(client: int) -> bytes:
    """A client's number as 4 bytes."""
    return client.to_bytes(NUMBER_BYTES, "big")


def rows(content: bytes, width: int, what: str) -> list[tuple[int, bytes]]:
    """Returns (client, rest) of each row, ordered by client.

    Raises:
        ValueError: the length is no multiple of the width, or clients do not increase.
    """
    if not isinstance(content, bytes) or len(content) % width:
        raise ValueError(f"Malformed {what}: rows have {width} bytes.")
    found = [
        (int.from_bytes(content[start : start + NUMBER_BYTES], "big"),
         content[start + NUMBER_BYTES : start + width])
        for start in range(0, len(content), width)
    ]  # fmt: skip
    clients = [client for client, _ in found]
    if clients != sorted(set(clients)):
        raise ValueError(f"Malformed {what}: clients have to increase.")
    return found


@dataclass(frozen=True)
class Entry:
    """Keys that one client advertises, with its signature.

    Attributes:
        client: its number.
        identity: Ed25519 public key.
        certificate: of that key, by an authority.
        channel: X25519 public key that shares are encrypted for.
        mask: X25519 public key that masks are agreed with.
        signature: of the identity, over the parameters' digest and `signed`.
    """

    client: int
    identity: bytes
    certificate: bytes
    channel: bytes
    mask: bytes
    signature: bytes

    WIDTH = NUMBER_BYTES + 3 * KEY_BYTES + 2 * SIGNATURE_BYTES

    @property
    def signed(self) -> bytes:
        """The part that the signature covers."""
        return number(self.client) + self.identity + self.channel + self.mask

    def to_bytes(self) -> bytes:
        """One row of a roster."""
        return (
            number(self.client) + self.identity + self.certificate + self.channel + self.mask
            + self.signature
        )  # fmt: skip

    @classmethod
    def from_row(cls, client: int, rest: bytes) -> Entry:
        """Reads a row."""
        parts, start = [], 0
        for width in (KEY_BYTES, SIGNATURE_BYTES, KEY_BYTES, KEY_BYTES, SIGNATURE_BYTES):
            parts.append(rest[start : start + width])
            start += width
        return cls(client, *parts)


@dataclass(frozen=True)
class Roster:
    """Keys of all clients that take part in a message, as every one of them sees them.

    Attributes:
        content: the rows.
    """

    content: bytes

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Roster:
        """The roster with these entries."""
        ordered = sorted(entries, key=lambda entry: entry.client)
        return cls(b"".join(entry.to_bytes() for entry in ordered))

    @cached_property
    def entries(self) -> dict[int, Entry]:
        """Entries by client; raises ValueError where the roster is malformed."""
        found = rows(self.content, Entry.WIDTH, "roster")
        return {client: Entry.from_row(client, rest) for client, rest in found}

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the roster; part of every key and signature after it."""
        return hashlib.sha256(self.content).digest()


def joined(content: Sequence[tuple[int, bytes]]) -> bytes:
    """Rows of (client, rest), ordered by client."""
    return b"".join(number(client) + rest for client, rest in sorted(content))
