"""The key that a server signs its requests with: a file of its operator."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from fedsink.errors import ConfigError
from fedsink.privacy.files import write_once

FILE_NAME = "operator.key"


def make_operator_key(path: Path) -> None:
    """Write a new key, PEM, to a file of mode 0600; where there is a file, nothing is changed.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = Ed25519PrivateKey.generate()
    write_once(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def operator_key(path: Path) -> Ed25519PrivateKey | None:
    """The key in a file; None where there is no file: requests then go out unsigned.

    Raises:
        ConfigError: the file holds something else, or others can read it.
    """
    if not path.exists():
        return None
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        raise ConfigError(
            f"The operator's key {path} has mode {mode:04o}, so others can read it: make another "
            "one, and tell the owners of the nodes."
        )
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(
            f"{path} holds no unencrypted ed25519 key in PEM: make one with fedsink operator."
        )
    return key
