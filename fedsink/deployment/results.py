"""Carries public results of a run, or the reason why there are none, to a submitter in a log.

The server writes lines between other lines of the run's log; the submitter reads them back. A frame
is one line, ``fedsink-frame SHA256 NUMBER OF BASE64``, with the SHA-256 of the whole.

>>> results, receiver = Results("trial", {"metrics.json": b"{}"}), Receiver()
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
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors.numpy import load, save

from fedsink.errors import FedsinkError, TransferError
from fedsink.reporting.output_files import new_folder, write_atomic
from fedsink.server.folder import RunFolder
from fedsink.values import read_json

_PUBLIC = re.compile(
    r"config\.yaml|privacy\.json|nodes\.json|SHA256SUMS|metrics\.jsonl?|generator\.(safetensors|json)"
    r"|samples/round-\d{6,12}\.png"
)
MOST_BYTES = 128 << 20
"""Most bytes of one transfer: a log keeps all of it in memory."""

CHUNK = 48 << 10
"""Bytes of one frame, a line of 64 KiB."""

_ABOUT = "about"  # the description's name, which no public file has
_MARK = "fedsink-frame"
_FRAME = re.compile(rf"{_MARK} ([0-9a-f]{{64}}) (\d{{1,6}}) (\d{{1,6}}) (\S*)")
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
        """Returns the files and a description as tensors of bytes, in safetensors' format."""
        about = {"name": self.name, "failure": self.failure and dict(self.failure)}
        contents = {_ABOUT: json.dumps(about).encode(), **self.files}
        return save({name: np.frombuffer(held, np.uint8) for name, held in contents.items()})

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Reads what `to_bytes` returned; raises TransferError for anything else."""
        try:
            files = {name: tensor.tobytes() for name, tensor in load(content).items()}
            about = read_json(files.pop(_ABOUT))
            name, failure = str(about["name"]), about["failure"]
            if failure is not None:
                code = int(failure["exit_code"])
                failure = {"message": str(failure["message"]), "exit_code": code}
        except Exception as error:  # whatever a reader of somebody else's bytes raises
            raise TransferError(
                f"What the server sent is not a run's results: {type(error).__name__}."
            ) from error
        for path in files:
            if not is_public(path):
                raise TransferError(f"The results hold {path[:80]!r}: no result of a run.")
        return cls(name, files, failure)

    def unpack(self, folder: Path) -> None:
        """Makes the run folder, which holds nothing so far: all of its files, or none at all."""
        with new_folder(folder) as made:
            for name, content in self.files.items():
                write_atomic(made / name, content)


def is_public(name: str) -> bool:
    """Returns True for public results of a run, by their path in the run folder."""
    return _PUBLIC.fullmatch(name) is not None


def failure_of(error: Exception) -> dict[str, Any]:
    """Returns `message` (one sentence) and `exit_code` of an error."""
    known = isinstance(error, FedsinkError)
    message = str(error) if known else f"{type(error).__name__}: {error or 'no message'}."
    # Libraries speak over several lines.
    return {"message": " ".join(message.split()), "exit_code": getattr(error, "exit_code", 1)}


def frames(content: bytes) -> list[str]:
    """Returns the lines that carry `content`; more than `MOST_BYTES` are a TransferError."""
    if len(content) > MOST_BYTES:
        raise TransferError(
            f"{len(content)} bytes are more than the {MOST_BYTES} that one transfer may hold: copy "
            "the run folder from the server's disk."
        )
    whole, total = hashlib.sha256(content).hexdigest(), max(1, -(-len(content) // CHUNK))
    chunks = (content[number * CHUNK : (number + 1) * CHUNK] for number in range(total))
    texts = (base64.b64encode(chunk).decode() for chunk in chunks)
    return [f"{_MARK} {whole} {number} {total} {text}" for number, text in enumerate(texts)]


class Receiver:
    """Picks the frames of one transfer out of a log, line by line.

    Guarantees:
        - `content` returns all that was sent, or raises.
        - A receiver keeps at most `MOST_BYTES`, whatever the log holds.

    Attributes:
        begun: True once the log held a line that was meant to be a frame.
    """

    def __init__(self) -> None:
        self.begun = False
        self._transfer: tuple[str, int] | None = None  # SHA-256 and number of frames
        self._chunks: list[bytes] = []
        self._damage: str | None = None

    def take(self, line: str) -> bool:
        """Takes one line of the log; returns True if it was meant to be a frame."""
        if _MARK in line:
            self.begun, self._damage = True, self._damage or self._problem(line)
        return _MARK in line

    def content(self) -> bytes:
        """Returns all that was sent; raises TransferError if it did not arrive whole."""
        whole, total = self._transfer or ("", 0)
        content = b"".join(self._chunks)
        if self._damage is None and len(self._chunks) < max(1, total):
            self._damage = f"it ends after {len(self._chunks)} of {total} frames"
        if self._damage is None and hashlib.sha256(content).hexdigest() != whole:
            self._damage = "they are not what their SHA-256 says"
        if self._damage is not None:
            raise TransferError(
                f"The results did not arrive whole ({self._damage}): ask for them again."
            )
        return content

    def _problem(self, line: str) -> str | None:
        """Takes a frame, or returns the error in it."""
        if (match := _FRAME.search(line)) is None:
            return "a frame is no frame"
        number, total, taken = int(match[2]), int(match[3]), len(self._chunks)
        self._transfer = self._transfer or (match[1], total)
        if (match[1], total) != self._transfer:
            return "frames of another transfer are among them"
        if number > taken or number >= total:
            return f"frame {number} follows {taken} of {total}"
        try:
            chunk = base64.b64decode(match[4][: _LONGEST + 1], validate=True)
        except binascii.Error:
            return f"frame {number} is no base64 of {CHUNK} bytes"
        if number < taken:  # a log may repeat lines that may not have been delivered
            return None if chunk == self._chunks[number] else f"frame {number} came twice, changed"
        if sum(map(len, self._chunks)) + len(chunk) > MOST_BYTES:
            return f"they are more than {MOST_BYTES} bytes"
        self._chunks.append(chunk)
        return None
