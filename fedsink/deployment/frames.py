"""Bytes as lines of a log that other lines run through: framed, hashed and of bounded size.

A frame is one line, ``fedsink-frame TRANSFER NUMBER OF SHA256 BASE64``. The hash is over the four
words before it and the bytes, so that no frame can stand in another's place.

>>> receiver = Receiver()
>>> [receiver.take(line) for line in ("round 1/2", *frames(b"results"), "round 2/2")]
[False, True, False]
>>> receiver.content()
b'results'
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import secrets
from collections.abc import Iterator

from fedsink.errors import TransferError

MOST_BYTES = 128 << 20
"""What one transfer may hold: a log keeps all of it in memory."""

CHUNK = 48 << 10
"""Bytes of one frame, a line of 64 KiB."""

_MARK = "fedsink-frame"
_FRAME = re.compile(rf"{_MARK} ([0-9a-f]{{16}}) (\d{{1,6}}) (\d{{1,6}}) ([0-9a-f]{{64}}) (\S*)")
_LONGEST = 4 * -(-CHUNK // 3)  # characters of a frame's base64


def frames(content: bytes) -> Iterator[str]:
    """The lines that carry `content`.

    Raises:
        TransferError: it is longer than `MOST_BYTES`.
    """
    if len(content) > MOST_BYTES:
        raise TransferError(
            f"{len(content)} bytes are more than the {MOST_BYTES} that one transfer may hold: copy "
            "the run folder from the server's disk."
        )
    return _frames(content, secrets.token_hex(8), max(1, -(-len(content) // CHUNK)))


def _frames(content: bytes, transfer: str, total: int) -> Iterator[str]:
    for number in range(total):
        chunk = content[number * CHUNK : (number + 1) * CHUNK]
        text = base64.b64encode(chunk).decode()
        yield f"{_MARK} {transfer} {number} {total} {_hash(transfer, number, total, chunk)} {text}"


class Receiver:
    """Picks the frames of one transfer out of a log, in whatever pieces it comes.

    Guarantees:
        - What it returns is what was sent, all of it; or it raises.
        - It keeps no more than `MOST_BYTES`, whatever the log holds.
    """

    def __init__(self) -> None:
        self._transfer: str | None = None
        self._total = 0
        self._size = 0
        self._chunks: list[bytes] = []
        self._hashes: list[str] = []
        self._damage: str | None = None

    @property
    def begun(self) -> bool:
        """Whether the log held anything that was meant to be a frame."""
        return self._transfer is not None or self._damage is not None

    def take(self, line: str) -> bool:
        """Take one line of the log; whether it was meant to be a frame."""
        if _MARK not in line:
            return False
        if self._damage is None:
            self._damage = self._problem(line)
        return True

    def content(self) -> bytes:
        """All that was sent.

        Raises:
            TransferError: frames are missing, damaged, doubled or too many.
        """
        if self._damage is None and len(self._chunks) < max(1, self._total):
            self._damage = f"it ends after {len(self._chunks)} of {self._total} frames"
        if self._damage is not None:
            self._chunks.clear()
            raise TransferError(
                f"The results did not arrive whole ({self._damage}): ask for them again."
            )
        return b"".join(self._chunks)

    def _problem(self, line: str) -> str | None:
        """Take a frame, or say what is wrong with it."""
        match = _FRAME.search(line)
        if match is None:
            return "a frame is no frame"
        transfer, number, total = match[1], int(match[2]), int(match[3])
        if self._transfer is None:
            self._transfer, self._total = transfer, total
        if (transfer, total) != (self._transfer, self._total):
            return "frames of another transfer are among them"
        if total * CHUNK >= MOST_BYTES + CHUNK or len(match[5]) > _LONGEST:
            return f"they are more than {MOST_BYTES} bytes"
        if number < len(self._chunks) and match[4] == self._hashes[number]:
            return None  # a log may repeat what it was not sure to have delivered
        if number != len(self._chunks) or number >= total:
            return f"frame {number} follows {len(self._chunks)} of {total}"
        try:
            chunk = base64.b64decode(match[5], validate=True)
        except binascii.Error:
            return f"frame {number} is no base64"
        if _hash(transfer, number, total, chunk) != match[4]:
            return f"frame {number} is not what its SHA-256 says"
        self._size += len(chunk)
        if self._size > MOST_BYTES:
            return f"they are more than {MOST_BYTES} bytes"
        self._chunks.append(chunk)
        self._hashes.append(match[4])
        return None


def _hash(transfer: str, number: int, total: int, chunk: bytes) -> str:
    return hashlib.sha256(f"{transfer} {number} {total} ".encode() + chunk).hexdigest()
