"""A node's own key: made once, readable by its owner only, and for one purpose at a time."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedsink.errors import ConfigError
from fedsink.protocol.identity_key import NodeIdentityKey, is_signed
from fedsink.protocol.signatures import read_key

FILE = NodeIdentityKey.FILE_NAME


def test_the_file_has_mode_0600_and_an_existing_one_is_never_replaced(tmp_path: Path) -> None:
    first = NodeIdentityKey.at(tmp_path / "state")
    path = tmp_path / "state" / FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    assert NodeIdentityKey.at(tmp_path / "state").public == first.public
    assert path.read_bytes() == before
    assert NodeIdentityKey.at(tmp_path / "other").public != first.public
    assert read_key(first.shown) == first.public


def test_a_signature_for_one_purpose_verifies_for_no_other() -> None:
    private = Ed25519PrivateKey.from_private_bytes(bytes(32))
    key = NodeIdentityKey(private)
    signature = key.sign("a", b"content")
    assert is_signed(key.public, "a", b"content", signature)
    for purpose, content in (("b", b"content"), ("a", b"other"), ("a\0con", b"tent")):
        assert not is_signed(key.public, purpose, content, signature)
    of_operator = private.sign(b"\0".join([b"fedsink request", b"a", b"content"]))
    assert not is_signed(key.public, "a", b"content", of_operator)
    other = NodeIdentityKey(Ed25519PrivateKey.from_private_bytes(bytes([1] * 32)))
    assert not is_signed(other.public, "a", b"content", signature)
    for hostile in (b"", bytes(64), signature[:-1], signature + b"\0"):
        assert not is_signed(key.public, "a", b"content", hostile)
    assert not is_signed(b"no key", "a", b"content", signature)


def test_a_key_that_others_can_read_or_that_is_none_is_refused(tmp_path: Path) -> None:
    NodeIdentityKey.at(tmp_path)
    os.chmod(tmp_path / FILE, 0o644)
    with pytest.raises(ConfigError, match="has mode 0644, so others can read it"):
        NodeIdentityKey.at(tmp_path)
    os.chmod(tmp_path / FILE, 0o600)
    (tmp_path / FILE).write_bytes(b"no key")
    with pytest.raises(ConfigError, match="holds no unencrypted ed25519 key"):
        NodeIdentityKey.at(tmp_path)
