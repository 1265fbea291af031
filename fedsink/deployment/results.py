"""Carries public results of a run, or the reason why there are none, to a submitter in a log.

The server writes lines between other lines of the run's log; the submitter reads them back. A frame
is one line, ``fedsink-frame TRANSFER NUMBER OF SHA256 BASE64``. The hash is over the four words
before it and the bytes, so that no frame can stand in another's place.

>>> results = Results("trial", {"metrics.json": b"{}"})
>>> receiver = Receiver()
>>> [receiver.take(line) for line in ("round 1/2", *frames(results.to_bytes()), "round 2/2")]
[False, True, False]
>>> Results.from_bytes(receiver.content()) == results
True
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from fedsink.errors import FedsinkError, TransferError
from fedsink.reporting.output_files import write_atomic
from fedsink.server.folder import RunFolder
from fedsink.values import read_json

_PUBLIC = re.compile(
    r"config\.yaml|privacy\.json|nodes\.json|SHA256SUMS|metrics\.jsonl?|generator\.(safetensors|json)"
    r"|samples/round-\d{6,12}\.png"
)
_HEAD = 8  # bytes that say how long the description is

MOST_BYTES = 128 << 20
"""Most bytes of one transfer: a log keeps all of it in memory."""

CHUNK = 48 << 10
"""Bytes of one frame, a line of 64 KiB."""

_MARK = "fedsink-frame"
_FRAME = re.compile(rf"{_MARK} ([0-9a-f]{{16}}) (\d{{1,6}}) (\d{{1,6}}) ([0-9a-f]{{64}}) (\S*)")
_LONGEST = 4 * -(-CHUNK // 3)  # characters of a frame's base64


@dataclass(frozen=True)
class Results:
    """Tells a submitter how a run ended.

    Guarantees:
        - Only files travel that `docs/run-folder.md` calls public: no checkpoint, no key.
        - Reading returns what was written, byte for byte, or raises.

    Attributes:
        name: of the run.
        files: content by path in the run folder; empty where the run failed.
        failure: `message` (one sentence) and `exit_code` of a run that failed, or None.
    """

    name: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    failure: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, name: str, folder: RunFolder) -> Self:
        """Collects the public results in the folder of a finished run."""
        paths = sorted(path for path in folder.path.rglob("*") if path.is_file())
        named = {path.relative_to(folder.path).as_posix(): path for path in paths}
        return cls(name, {n: path.read_bytes() for n, path in named.items() if is_public(n)})

    def to_bytes(self) -> bytes:
        """Returns a description of the results, and the files one after the other."""
        described = {
            "name": self.name,
            "failure": None if self.failure is None else dict(self.failure),
            "files": [
                [name, len(content), hashlib.sha256(content).hexdigest()]
                for name, content in self.files.items()
            ],
        }
        head = json.dumps(described).encode()
        return b"".join([len(head).to_bytes(_HEAD, "big"), head, *self.files.values()])

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Reads what `to_bytes` returned.

        Raises:
            TransferError: the bytes are no results, or name a file that is no public result.
        """
        try:
            end = _HEAD + int.from_bytes(content[:_HEAD], "big")
            described = read_json(content[_HEAD:end])
            name, failure, listed = (described[key] for key in ("name", "failure", "files"))
            if failure is not None:
                failure = {
                    "message": str(failure["message"]),
                    "exit_code": int(failure["exit_code"]),
                }
            files: dict[str, bytes] = {}
            for path, size, digest in listed:
                if not is_public(path) or path in files:
                    raise TransferError(f"The results hold {str(path)[:80]!r}: no result of a run.")
                start, end = end, end + int(size)
                files[path] = content[start:end]
                if size < 0 or hashlib.sha256(files[path]).hexdigest() != digest:
                    raise TransferError(f"{path} is not what its SHA-256 says.")
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            raise TransferError(
                f"What the server sent is not a run's results: {type(error).__name__}."
            ) from error
        if end != len(content):
            raise TransferError("What the server sent is not a run's results: bytes are left over.")
        return cls(str(name), files, failure)

    def unpack(self, folder: Path) -> None:
        """Makes the run folder: all of its files, or nothing at all.

        Args:
            folder: does not exist, or is empty.

        Raises:
            OSError: the folder cannot be written, or holds something.
        """
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
        made.mkdir()
        try:
            for name, content in self.files.items():
                write_atomic(made / name, content)
            os.rename(made, folder)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise


def is_public(name: object) -> bool:
    """Tells public results of a run from its other files, by their path in the run folder."""
    return isinstance(name, str) and _PUBLIC.fullmatch(name) is not None


def failure_of(error: Exception) -> dict[str, Any]:
    """Returns `message` (one sentence) and `exit_code` of an error."""
    known = isinstance(error, FedsinkError)
    message = str(error) if known else f"{type(error).__name__}: {error or 'no message'}."
    return {
        "message": " ".join(message.split()),  # libraries speak over several lines
        "exit_code": error.exit_code if isinstance(error, FedsinkError) else 1,
    }


def frames(content: bytes) -> Iterator[str]:
    """Yields the lines that carry `content`.

    Raises:
        TransferError: `content` is longer than `MOST_BYTES`.
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
    """Picks the frames of one transfer out of a log, line by line.

    Guarantees:
        - `content` returns all that was sent, or raises.
        - A receiver keeps at most `MOST_BYTES`, whatever the log holds.
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
        """True once the log held a line that was meant to be a frame."""
        return self._transfer is not None or self._damage is not None

    def take(self, line: str) -> bool:
        """Takes one line of the log; returns whether it was meant to be a frame."""
        if _MARK not in line:
            return False
        if self._damage is None:
            self._damage = self._problem(line)
        return True

    def content(self) -> bytes:
        """Returns all that was sent.

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
        """Takes a frame, or returns the error in it."""
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
            return None  # a log may repeat lines that may not have been delivered
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
