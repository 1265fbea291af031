from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedsink.files import atomic_file, new_folder, write_atomic, write_once


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


def test_a_folder_is_made_whole_or_not_at_all(tmp_path: Path) -> None:
    place = tmp_path / "runs" / "run"
    with new_folder(place) as made:
        write_atomic(made / "samples" / "one.png", b"one")
    assert [path.name for path in place.parent.iterdir()] == ["run"]
    assert [path.name for path in place.rglob("*.png")] == ["one.png"]
    with pytest.raises(OSError, match="not empty"), new_folder(place) as made:
        write_atomic(made / "two", b"two")
    with pytest.raises(OSError, match="the disk is full"), new_folder(tmp_path / "runs" / "other"):
        raise OSError("the disk is full")
    assert [path.name for path in place.parent.iterdir()] == ["run"]


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file.bin"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(path.parent) == ["file.bin"]


@pytest.mark.parametrize("stage", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    path = tmp_path / "file.bin"
    write_atomic(path, b"old")

    def fail(*args: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, stage, fail)
    with pytest.raises(OSError, match="the disk is full"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file.bin"]


def test_the_bytes_are_on_disk_before_the_name_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append("sync"), sync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("replace"), replace(a, b)))
    write_atomic(tmp_path / "file.bin", b"x")
    assert events[:2] == ["sync", "replace"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
@pytest.mark.parametrize(("mode", "found"), [(None, 0o640), (0o600, 0o600), (0o644, 0o644)])
def test_a_file_has_its_mode_from_the_first_byte_on_or_follows_the_users_umask(
    tmp_path: Path, mode: int | None, found: int
) -> None:
    former = os.umask(0o027)
    try:
        with atomic_file(tmp_path / "file.bin", mode) as file:
            [temporary] = tmp_path.iterdir()
            assert temporary.stat().st_mode & 0o777 & ~found == 0
            file.write(b"x")
    finally:
        os.umask(former)
    assert (tmp_path / "file.bin").stat().st_mode & 0o777 == found


def test_a_file_with_a_mode_makes_no_folder_and_waits_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "missing" / "file", b"x", 0o600)
    sync, calls = os.fsync, iter([True, False] * 2)

    def of_files_alone(handle: int) -> None:
        if not next(calls):
            raise OSError("not of folders")
        sync(handle)

    monkeypatch.setattr(os, "fsync", of_files_alone)
    write_atomic(tmp_path / "file", b"x")
    with pytest.raises(OSError, match="not of folders"):
        write_atomic(tmp_path / "file", b"y", 0o600)
