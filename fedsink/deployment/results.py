"""Carries public results of a run, or the reason why there are none, to a submitter in a log.

The server writes lines between other lines of the run's log; the submitter reads them back. A frame
is one line, ``fedsink-frame SHA256 NUMBER OF BASE64``, with the SHA-256 of the whole.

>>> receiver = Receiver()
>>> [receiver.take(line) for line in ("round 1/2", *frames({"metrics.json": b"{}"}), "round 2/2")]
[False, True, False]
>>> receiver.results()
({'metrics.json': b'{}'}, None)
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from fedsink.errors import FedsinkError, TransferError
from fedsink.server.folder import RunFolder
from fedsink.values import read_json

_PUBLIC = re.compile(
    r"config\.yaml|privacy\.json|nodes\.json|SHA256SUMS|metrics\.jsonl?|generator\.(safetensors|json)"
    r"|samples/round-\d{6,12}\.png"
)
CHUNK = 48 << 10  # bytes of one frame, a line of 64 KiB
MOST_FRAMES = 2730  # of one transfer, 128 MiB: a log keeps all of it in memory
FAILED = "failed.json"  # travels alone, in place of results
_MARK = "fedsink-frame"
_FRAME = re.compile(rf"{_MARK} ([0-9a-f]{{64}}) (\d{{1,6}}) (\d{{1,6}}) (\S{{0,{4 * CHUNK // 3}}})")


def public_files(folder: RunFolder) -> dict[str, bytes]:
    """Returns the public results in the folder of a finished run, by their paths in it.

    Guarantees:
        - Only files travel that `docs/run-folder.md` calls public: no checkpoint, no key.
    """
    paths = (path for path in folder.path.rglob("*") if path.is_file())
    named = sorted((path.relative_to(folder.path).as_posix(), path) for path in paths)
    return {name: path.read_bytes() for name, path in named if is_public(name)}


def is_public(name: str) -> bool:
    """Returns True for public results of a run, by their path in the run folder."""
    return _PUBLIC.fullmatch(name) is not None


def failure_of(error: Exception) -> dict[str, Any]:
    """Returns `message` (one sentence) and `exit_code` of an error."""
    ours = isinstance(error, FedsinkError)
    message = str(error) if ours else f"{type(error).__name__}: {error or 'no message'}."
    # Libraries speak over several lines.
    return {"message": " ".join(message.split()), "exit_code": getattr(error, "exit_code", 1)}


def frames(files: Mapping[str, bytes]) -> list[str]:
    """Returns the lines that carry files; more than `MOST_FRAMES` are a TransferError."""
    content = save({name: np.frombuffer(held, np.uint8) for name, held in files.items()})
    whole, total = hashlib.sha256(content).hexdigest(), max(1, -(-len(content) // CHUNK))
    if total > MOST_FRAMES:
        raise TransferError(
            f"{len(content)} bytes are more than the {MOST_FRAMES * CHUNK} that one transfer may "
            "hold: copy the run folder from the server's disk."
        )
    chunks = (content[number * CHUNK : (number + 1) * CHUNK] for number in range(total))
    texts = (base64.b64encode(chunk).decode() for chunk in chunks)
    return [f"{_MARK} {whole} {number} {total} {text}" for number, text in enumerate(texts)]


class Receiver:
    """Picks the frames of one transfer out of a log, line by line.

    Guarantees:
        - `results` returns all that was sent, byte for byte, or raises.
        - A receiver keeps at most `MOST_FRAMES`, whatever the log holds.
    """

    def __init__(self) -> None:
        self.begun = False  # the log held a line that was meant to be a frame
        self._transfer: tuple[str, int] | None = None  # SHA-256 and number of frames
        self._chunks: dict[int, bytes] = {}

    def take(self, line: str) -> bool:
        """Takes one line of the log; returns True if it was meant to be a frame."""
        if match := _FRAME.search(line):
            number, transfer = int(match[2]), (match[1], int(match[3]))
            self._transfer = self._transfer or transfer
            if transfer == self._transfer and number < MOST_FRAMES:
                with contextlib.suppress(binascii.Error):
                    self._chunks.setdefault(number, base64.b64decode(match[4], validate=True))
        self.begun |= _MARK in line
        return _MARK in line

    def results(self) -> tuple[dict[str, bytes], dict[str, Any] | None]:
        """Returns the files by path, and `message` and `exit_code` where the run failed."""
        whole, total = self._transfer or ("", 0)
        content = b"".join(self._chunks.get(number, b"") for number in range(total))
        if hashlib.sha256(content).hexdigest() != whole:
            raise TransferError(
                f"The results did not arrive whole ({len(self._chunks)} of {total} frames): ask "
                "for them again."
            )
        try:
            files = {name: tensor.tobytes() for name, tensor in load(content).items()}
            failure = None
            if FAILED in files:
                told = read_json(files.pop(FAILED))
                failure = {"message": str(told["message"]), "exit_code": int(told["exit_code"])}
        except Exception as error:  # whatever a reader of somebody else's bytes raises
            raise TransferError(
                f"What the server sent is not a run's results: {type(error).__name__}."
            ) from error
        for path in files:
            if not is_public(path):
                raise TransferError(f"The results hold {path[:80]!r}: no result of a run.")
        return files, failure
