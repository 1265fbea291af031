"""What a server tells whoever submitted a run: its public results, or why there are none."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from fedsink.errors import FedsinkError, TransferError
from fedsink.reporting.output_files import write_atomic
from fedsink.server.folder import RunFolder

_PUBLIC = re.compile(
    r"config\.yaml|privacy\.json|metrics\.(jsonl?|csv)|generator\.(safetensors|json)"
    r"|samples/round-\d{6,12}\.png"
)
_HEAD = 8  # bytes that say how long the description is


@dataclass(frozen=True)
class Results:
    """How a run ended.

    Guarantees:
        - It holds no file but those of `docs/run-folder.md` that are public: no checkpoint, no key.
        - What was read is what was written, byte for byte; or reading raises.

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
        """The public results in the folder of a finished run."""
        paths = sorted(path for path in folder.path.rglob("*") if path.is_file())
        named = {path.relative_to(folder.path).as_posix(): path for path in paths}
        return cls(name, {n: path.read_bytes() for n, path in named.items() if is_public(n)})

    def to_bytes(self) -> bytes:
        """The results as they travel: a description, and the files behind one another."""
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
        """The inverse of `to_bytes`.

        Raises:
            TransferError: it is something else, or names a file that is none of a run's results.
        """
        try:
            end = _HEAD + int.from_bytes(content[:_HEAD], "big")
            described = json.loads(content[_HEAD:end])
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
        """Make the run folder: all of its files, or nothing at all.

        Args:
            folder: does not exist, or is empty.

        Raises:
            OSError: it cannot be written, or holds something.
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
    """Whether a path in a run folder is one of the run's public results."""
    return isinstance(name, str) and _PUBLIC.fullmatch(name) is not None


def failure_of(error: Exception) -> dict[str, Any]:
    """`message` (one sentence) and `exit_code` of an error."""
    known = isinstance(error, FedsinkError)
    message = str(error) if known else f"{type(error).__name__}: {error or 'no message'}."
    return {
        "message": " ".join(message.split()),  # libraries speak over several lines
        "exit_code": error.exit_code if isinstance(error, FedsinkError) else 1,
    }
