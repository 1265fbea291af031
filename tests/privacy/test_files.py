from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedsink.privacy.files import write_once


def test_a_new_file_is_whole_its_owners_alone_and_the_only_one_left(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert write_once(tmp_path / "new", b"content")
    finally:
        os.umask(before)
    assert (tmp_path / "new").read_bytes() == b"content"
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    assert write_once(tmp_path / "new", b"first")
    assert not write_once(tmp_path / "new", b"second")
    assert (tmp_path / "new").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize("named", [False, True])
def test_what_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """Holds also where the system knows no files without a name."""

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    if named:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            write_once(tmp_path / "new", b"content")
    assert list(tmp_path.iterdir()) == []
    assert write_once(tmp_path / "new", b"content")
