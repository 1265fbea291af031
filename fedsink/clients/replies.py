"""The bytes of every reply that may have left the node, so that no request is noised twice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from fedsink.clients.sealed import seal, unseal
from fedsink.errors import LedgerError, ReleaseRefusedError
from fedsink.privacy.files import write_once


class ReplyStore:
    """One file per reply, named by the digest of what it answers.

    Guarantees:
        - A reply is on the disk, whole, before `put` returns it.
        - Of two replies to one request the first is kept, and both are answered with it.
        - A damaged reply, or one to another request, is refused, never made again.
        - Files have mode 0600.

    Args:
        folder: made with mode 0700 at the first reply.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, digest: bytes) -> dict[str, Tensor] | None:
        """The stored reply, or None where there is none.

        Raises:
            ReleaseRefusedError: the stored reply is damaged.
            LedgerError: it cannot be read.
        """
        path = self._path(digest)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerError(f"the stored reply {path} cannot be read: {error}.") from None
        try:
            reply = unseal(content, digest.hex())
        except SafetensorError as error:  # intact, but not what this version writes
            raise LedgerError(f"the stored reply {path} cannot be read: {error}.") from None
        if reply is None:
            raise ReleaseRefusedError(
                f"The stored reply {path} is damaged, and a released reply is never noised again: "
                "restore it, or start another run."
            )
        return reply

    def digests(self) -> list[bytes]:
        """The digests of all stored replies.

        Raises:
            LedgerError: the folder cannot be read.
        """
        try:
            return [bytes.fromhex(path.stem) for path in self._folder.glob("*.reply")]
        except (OSError, ValueError) as error:
            raise LedgerError(f"the replies in {self._folder} cannot be listed: {error}.") from None

    def put(self, digest: bytes, reply: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Store a reply unless there is one, and return what is stored.

        Raises:
            LedgerError: the folder cannot be written; the reply must not leave.
        """
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
