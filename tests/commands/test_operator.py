from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from fedsink.commands.operator import run
from fedsink.deployment.server_folder import operator_key
from fedsink.errors import ConfigError
from fedsink.protocol.signing import read_key, shown_key


def test_a_key_is_made_once_and_its_public_half_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSINK_STATE", str(tmp_path / "home"))
    lines = []
    for _ in range(2):
        assert run([]) == 0
        lines.append(capsys.readouterr().out.strip())
    path = tmp_path / "home" / "operator.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    key = operator_key(path)
    assert key is not None
    assert lines == [shown_key(key.public_key().public_bytes_raw())] * 2
    assert len(read_key(lines[0])) == 32


def test_a_key_of_openssl_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lab.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", path], check=True)
    os.chmod(path, 0o600)
    assert run([f"key={path}"]) == 0
    assert capsys.readouterr().out.startswith("ed25519:")


def test_no_file_is_no_key(tmp_path: Path) -> None:
    assert operator_key(tmp_path / "none") is None


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "operator.key"
    run([f"key={path}"])
    os.chmod(path, mode)
    with pytest.raises(ConfigError, match=f"has mode {mode:04o}, so others can read it"):
        operator_key(path)


@pytest.mark.parametrize("content", [b"", b"no key", b"-----BEGIN PRIVATE KEY-----\n"])
def test_what_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "operator.key"
    path.write_bytes(content)
    os.chmod(path, 0o600)
    with pytest.raises(ConfigError, match="holds no unencrypted ed25519 key"):
        operator_key(path)
