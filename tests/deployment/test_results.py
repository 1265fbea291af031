"""A run's results on their way from the server's folder to the submitter's."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsink.deployment.results import Results, failure_of
from fedsink.errors import ClientError, TransferError
from fedsink.server.folder import RunFolder

NAMES = ["config.yaml", "metrics.jsonl", "generator.safetensors", "samples/round-000000.png"]


def described(*files: tuple[Any, bytes], **changed: Any) -> bytes:
    """What a server of any kind may send."""
    head = {"name": "run", "failure": None, "files": [
        [name, len(content), hashlib.sha256(content).hexdigest()] for name, content in files
    ]}  # fmt: skip
    text = json.dumps(head | changed).encode()
    return len(text).to_bytes(8, "big") + text + b"".join(content for _, content in files)


@given(st.dictionaries(st.sampled_from(NAMES), st.binary(max_size=50)), st.text(max_size=20))
def test_results_are_read_as_they_were_written(files: dict[str, bytes], name: str) -> None:
    results = Results(name, files)
    assert Results.from_bytes(results.to_bytes()) == results


@given(st.binary(max_size=300))
def test_anything_else_is_refused(content: bytes) -> None:
    with pytest.raises(TransferError):
        Results.from_bytes(content)


def test_a_failure_is_told(tmp_path: Path) -> None:
    results = Results("run", failure=failure_of(ClientError("Client 1\n refused.")))
    assert Results.from_bytes(results.to_bytes()).failure == {
        "message": "Client 1 refused.", "exit_code": 1,
    }  # fmt: skip
    assert failure_of(RuntimeError("down"))["message"] == "RuntimeError: down."


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../config.yaml", "samples/../../x.png", "samples/round-1.png", "a/config.yaml",
     "config.yaml\0", "Config.yaml", "checkpoint/state.safetensors", "samples//round-000001.png",
     "", None, 3, ["config.yaml"], "C:\\config.yaml"],
)  # fmt: skip
def test_a_path_that_is_no_result_is_refused(name: Any) -> None:
    with pytest.raises(TransferError):
        Results.from_bytes(described((name, b"x")))


@pytest.mark.parametrize(
    "content",
    [
        described(("config.yaml", b"x"), ("config.yaml", b"y")),
        described(("config.yaml", b"x")) + b"more",
        described(("config.yaml", b"xyz"))[:-1],
        described(files=[["config.yaml", -1, hashlib.sha256(b"").hexdigest()]]),
        described(files=[["config.yaml", 0.5, hashlib.sha256(b"").hexdigest()]]) + b"x",
        described(files={"config.yaml": 1}),
        described(failure={"message": "no code"}),
        described(failure="text"),
        b"\xff" * 8 + b"{}",
    ],
)
def test_a_description_that_does_not_hold_is_refused(content: bytes) -> None:
    with pytest.raises(TransferError):
        Results.from_bytes(content)


def test_a_file_that_was_changed_is_named() -> None:
    content = bytearray(described(("config.yaml", b"xyz")))
    content[-1] ^= 1
    with pytest.raises(TransferError, match=r"config\.yaml is not what its SHA-256 says"):
        Results.from_bytes(bytes(content))


def test_public_results_alone_leave_the_servers_folder(tmp_path: Path) -> None:
    """No checkpoint, no failure of an earlier process, nothing that somebody put there."""
    folder = RunFolder(tmp_path / "run")
    folder.create()
    for name in [*NAMES, "checkpoint/state.safetensors", "failed.json", "partition.json",
                 "noise.key", "samples/other.png", ".config.yaml.1.tmp"]:  # fmt: skip
        (folder.path / name).write_bytes(name.encode())
    results = Results.of("run", folder)
    assert results.files == {name: name.encode() for name in NAMES}


def test_a_run_folder_is_made_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Results("run", {name: name.encode() for name in NAMES})
    place = tmp_path / "runs" / "run"
    results.unpack(place)
    assert {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()} == (
        set(NAMES)
    )
    assert [path.name for path in place.parent.iterdir()] == ["run"]
    with pytest.raises(OSError, match="not empty"):
        results.unpack(place)

    def full(path: Path, data: bytes) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("fedsink.deployment.results.write_atomic", full)
    with pytest.raises(OSError, match="the disk is full"):
        results.unpack(tmp_path / "runs" / "other")
    assert [path.name for path in place.parent.iterdir()] == ["run"]
