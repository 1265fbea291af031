"""Bytes of every reply that may have left the node, so that no request is noised twice.

`seal` puts a checksum over the tensors and the file's place in front of them: neither damage nor a
file that was moved to another place is read as values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedsink.errors import LedgerError, ReleaseRefusedError
from fedsink.files import write_once
from fedsink.values import check_format, read_json

FORMAT = 1
_CHECKSUM_BYTES = 32


class ReplyStore:
    """Stores one file per reply in a folder of mode 0700.

    A reply is named by the digest of its request under its reservation (`reply_name`).

    Guarantees:
        - A reply is on the disk, whole, before `put` returns it.
        - Of two replies to one request the first is kept, and both are answered with it.
        - A damaged reply, or one to another request, is refused, never made again.
        - Files have mode 0600.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, digest: bytes) -> dict[str, Tensor] | None:
        """Returns the stored reply, or None where there is none."""
        path = self._path(digest)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerError(f"the stored reply {path} cannot be read: {error}.") from None
        try:
            reply = unseal(content, digest.hex())
        except SafetensorError as error:  # intact, but of another version
            raise LedgerError(f"the stored reply {path} cannot be read: {error}.") from None
        if reply is None:
            raise ReleaseRefusedError(
                f"The stored reply {path} is damaged, and a released reply is never noised again: "
                "restore it, or start another run."
            )
        return reply

    def digests(self) -> list[bytes]:
        """Returns the digests of all stored replies."""
        try:
            return [bytes.fromhex(path.stem) for path in self._folder.glob("*.reply")]
        except (OSError, ValueError) as error:
            raise LedgerError(f"the replies in {self._folder} cannot be listed: {error}.") from None

    def put(self, digest: bytes, reply: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Stores a reply unless there is one, and returns the stored reply."""
        path = self._path(digest)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_once(path, seal(reply, digest.hex()))
        except OSError as error:
            raise LedgerError(
                f"the reply cannot be stored in {self._folder} ({error.strerror}), and nothing is "
                "released without that: make room or fix its permissions."
            ) from None
        stored = self.get(digest)
        if stored is None:
            raise LedgerError(f"the stored reply {path} has vanished.")
        return stored

    def _path(self, digest: bytes) -> Path:
        return self._folder / f"{digest.hex()}.reply"


def seal(tensors: Mapping[str, Tensor], place: str) -> bytes:
    """Returns the content of a file with these tensors."""
    plain = {name: values.cpu().contiguous() for name, values in tensors.items()}
    payload = save(plain, {"format": str(FORMAT)})
    return _checksum(payload, place) + payload


def unseal(content: bytes, place: str) -> dict[str, Tensor] | None:
    """Returns the tensors in a file; None where it is damaged or sealed for another place."""
    payload = content[_CHECKSUM_BYTES:]
    if _checksum(payload, place) != content[:_CHECKSUM_BYTES]:
        return None
    tensors = load(payload)
    header = read_json(payload[8 : 8 + int.from_bytes(payload[:8], "little")])
    found = header.get("__metadata__", {}).get("format", 1)
    check_format(f"The stored file {place}", found, FORMAT, error=LedgerError)
    return tensors


def _checksum(payload: bytes, place: str) -> bytes:
    return hashlib.sha256(hashlib.sha256(place.encode()).digest() + payload).digest()
