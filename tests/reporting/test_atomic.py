from __future__ import annotations

import os
import stat

import pytest

from fedsink.reporting import atomic
from fedsink.reporting.atomic import write_atomic


def test_writes_and_replaces(tmp_path):
    path = tmp_path / "new" / "folder" / "file.bin"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(path.parent) == ["file.bin"]


@pytest.mark.parametrize("stage", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, stage):
    path = tmp_path / "file.bin"
    write_atomic(path, b"old")

    def fail(*args):
        raise OSError("the disk is full")

    monkeypatch.setattr(atomic.os, stage, fail)
    with pytest.raises(OSError, match="the disk is full"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file.bin"]


def test_the_bytes_are_on_disk_before_the_name_changes(tmp_path, monkeypatch):
    events = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(atomic.os, "fsync", lambda fd: (events.append("sync"), sync(fd)))
    monkeypatch.setattr(
        atomic.os, "replace", lambda a, b: (events.append("replace"), replace(a, b))
    )
    write_atomic(tmp_path / "file.bin", b"x")
    assert events[:2] == ["sync", "replace"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
def test_follows_the_users_umask(tmp_path):
    former = os.umask(0o027)
    try:
        write_atomic(tmp_path / "file.bin", b"x")
    finally:
        os.umask(former)
    assert stat.S_IMODE((tmp_path / "file.bin").stat().st_mode) == 0o640
