"""A run's results on their way from the server's folder to the submitter's, through a log."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsink.deployment import results as module
from fedsink.deployment.results import Receiver, Results, failure_of, frames
from fedsink.errors import ClientError, TransferError
from fedsink.server.folder import RunFolder

NAMES = ["config.yaml", "metrics.jsonl", "generator.safetensors", "samples/round-000000.png"]


def described(*files: tuple[str, bytes], about: Any = None, head: str | None = None) -> bytes:
    """Returns bytes that a server of any kind may send, in safetensors' format."""
    entries, start = [], 0
    text = json.dumps({"name": "run", "failure": None} if about is None else about).encode()
    for name, content in (("about", text), *files):
        end = start + len(content)
        place = {"dtype": "U8", "shape": [len(content)], "data_offsets": [start, end]}
        entries.append(f"{json.dumps(name)}: {json.dumps(place)}")
        start = end
    header = (head or f"{{{', '.join(entries)}}}").encode()
    contents = b"".join(content for _, content in files)
    return len(header).to_bytes(8, "little") + header + text + contents


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
     "", "failed.json", "C:\\config.yaml"],
)  # fmt: skip
def test_a_path_that_is_no_result_is_refused(name: str) -> None:
    assert Results.from_bytes(described(("config.yaml", b"x"))).files == {"config.yaml": b"x"}
    with pytest.raises(TransferError, match="no result of a run"):
        Results.from_bytes(described((name, b"x")))


@pytest.mark.parametrize(
    "content",
    [
        described(("config.yaml", b"x"), ("config.yaml", b"y")),
        described(("config.yaml", b"x")) + b"more",
        described(("config.yaml", b"xyz"))[:-1],
        described(head='{"about": {"dtype": "U8", "shape": [99], "data_offsets": [0, 99]}}'),
        described(head='{"about": {"dtype": "U8", "shape": [-1], "data_offsets": [0, -1]}}'),
        described(head='{"about": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}'),
        described(head="{}"),
        described(head="[" * 10_000),
        described(about=[]),
        described(about={"name": "run"}),
        described(about={"name": "run", "failure": {"message": "no code"}}),
        described(about={"name": "run", "failure": "text"}),
        b"\xff" * 8 + b"{}",
    ],
)
def test_a_description_that_does_not_hold_is_refused(content: bytes) -> None:
    with pytest.raises(TransferError):
        Results.from_bytes(content)


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


# Frames in a log

CONTENT = bytes(range(256)) * 1000  # six frames


def received(lines: list[str]) -> bytes:
    receiver = Receiver()
    for line in lines:
        receiver.take(line)
    return receiver.content()


@given(
    st.binary(max_size=200), st.integers(1, 64), st.lists(st.text(max_size=20)), st.integers(0, 99)
)
def test_what_was_sent_arrives_among_other_lines(
    content: bytes, chunk: int, others: list[str], seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK", chunk)
        lines = [f"\x1b[92mINFO\x1b[0m {line}\n" for line in frames(content)]
        places = random.Random(seed)
        for other in others:
            lines.insert(places.randrange(len(lines) + 1), other)
        assert received(lines) == content


def test_a_line_that_the_log_repeats_counts_once() -> None:
    lines = list(frames(CONTENT))
    assert received([*lines[:3], *lines[1:]]) == CONTENT


def test_a_repeated_line_that_differs_is_damage() -> None:
    lines = list(frames(CONTENT))
    with pytest.raises(TransferError, match="frame 0 came twice, changed"):
        received([*lines[:3], flipped(lines[0], 200), *lines[3:]])


def test_a_log_without_frames_has_begun_nothing() -> None:
    receiver = Receiver()
    assert not receiver.take("round 1/2")
    assert not receiver.begun
    with pytest.raises(TransferError, match="it ends after 0 of 0 frames"):
        receiver.content()


def flipped(line: str, place: int) -> str:
    place %= len(line)
    return line[:place] + ("A" if line[place] != "A" else "B") + line[place + 1 :]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda lines: lines[:-1], "it ends after 5 of 6 frames"),
        (lambda lines: lines[1:], "frame 1 follows 0 of 6"),
        (lambda lines: [*lines[:2], *lines[3:]], "frame 3 follows 2 of 6"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "frame 1 follows 0 of 6"),
        (lambda lines: [flipped(lines[0], -1), *lines[1:]], "they are not what their SHA-256"),
        (lambda lines: [flipped(lines[0], 200), *lines[1:]], "they are not what their SHA-256"),
        (lambda lines: [lines[0][:303], *lines[1:]], "they are not what their SHA-256"),
        (lambda lines: [lines[0][:300], *lines[1:]], "frame 0 is no base64"),
        (lambda lines: [f"{x[:14]}{0:064}{x[78:]}" for x in lines], "they are not what their SHA"),
        (lambda lines: [lines[0].replace(" 0 6 ", " 0 7 "), *lines[1:]], "of another transfer"),
        (lambda lines: [*lines[:3], *frames(b"another")], "frames of another transfer"),
        (lambda lines: [*lines[:5], "fedsink-frame and so on"], "a frame is no frame"),
        (lambda lines: [*lines, lines[5].replace(" 5 6 ", " 6 6 ")], "frame 6 follows 6 of 6"),
        (lambda lines: [lines[0].replace(" 0 6 ", " 0 99999 ")], "ends after 1 of 99999"),
        (lambda lines: [lines[0] + "A" * 70_000, *lines[1:]], "frame 0 is no base64 of 49152"),
    ],
)  # fmt: skip
def test_damage_is_named_and_nothing_is_returned(
    damage: Callable[[list[str]], list[str]], message: str
) -> None:
    with pytest.raises(TransferError, match=message):
        received(damage(list(frames(CONTENT))))


def test_what_is_too_long_is_neither_sent_nor_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = list(frames(CONTENT))
    monkeypatch.setattr(module, "MOST_BYTES", len(CONTENT) - 1)
    with pytest.raises(TransferError, match="256000 bytes are more than the 255999"):
        frames(CONTENT)
    with pytest.raises(TransferError, match="they are more than 255999 bytes"):
        received(lines)
