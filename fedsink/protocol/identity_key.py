"""Ed25519 keys in PEM files, and signatures that are each for one purpose.

`NodeIdentityKey` is a node's own: only the node can sign with it. The key that a server signs its
requests with is in a file of the same form (`fedsink.deployment.server_folder`).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Self

from fedsink.errors import ConfigError
from fedsink.privacy.files import write_once
from fedsink.protocol.signatures import shown_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


class NodeIdentityKey:
    """The key by which others recognise a node; it never leaves the node's state folder.

    Guarantees:
        - The file has mode 0600, and an existing one is never replaced.
        - A signature for one purpose verifies for no other purpose, and for no request of an
          operator.

    Args:
        private: the key.
    """

    FILE_NAME = "identity.pem"

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self.private = private

    @classmethod
    def at(cls, folder: Path) -> Self:
        """Returns the key in a node's state folder, made at the first call.

        Raises:
            ConfigError: the file holds no such key, or others can read it.
            OSError: it cannot be made or read.
        """
        path = folder / cls.FILE_NAME
        make_private_key(path)
        return cls(
            read_private_key(
                path,
                "Every signature under it could be another's: remove the file, start the node, and "
                "tell those who know its key.",
            )
        )

    @property
    def public(self) -> bytes:
        """The public half, 32 bytes."""
        return self.private.public_key().public_bytes_raw()

    @property
    def shown(self) -> str:
        """The public half as people read it: ``ed25519:…``."""
        return shown_key(self.public)

    def sign(self, purpose: str, content: bytes) -> bytes:
        """Returns a signature of `content`, 64 bytes, for one purpose; see `is_signed`."""
        return self.private.sign(_covered(purpose, content))


def is_signed(public: bytes, purpose: str, content: bytes, signature: bytes) -> bool:
    """Tells whether the holder of a public key signed this content for this purpose.

    Args:
        public: from `NodeIdentityKey.public`, or read by `read_key`, which refuses weak keys.
        purpose: as in `NodeIdentityKey.sign`.
        content: all bytes that are signed.
        signature: from `NodeIdentityKey.sign`, or anything.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _covered(purpose, content))
    except (InvalidSignature, ValueError):
        return False
    return True


def make_private_key(path: Path) -> None:
    """Writes a new key, PEM, to a file of mode 0600; leaves an existing file unchanged.

    Raises:
        OSError: it cannot be written.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = Ed25519PrivateKey.generate()
    write_once(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def read_private_key(path: Path, if_seen: str) -> Ed25519PrivateKey:
    """Returns the key in a file.

    Args:
        path: of the file.
        if_seen: the advice where others can read it, a sentence.

    Raises:
        ConfigError: the file holds something else, or others can read it.
        OSError: it cannot be read.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        raise ConfigError(f"The key {path} has mode {mode:04o}, so others can read it. {if_seen}")
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(
            f"{path} holds no unencrypted ed25519 key in PEM: restore it from a backup, or remove "
            "it for a new one."
        )
    return key


def _covered(purpose: str, content: bytes) -> bytes:
    # "fedsink request" begins what operators sign.
    return b"\0".join([b"fedsink node", purpose.encode(), content])
