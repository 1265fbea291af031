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
from fedsink.deployment.results import FAILED, Receiver, failure_of, frames, public_files
from fedsink.errors import ClientError, TransferError
from fedsink.server.folder import RunFolder

NAMES = ["config.yaml", "metrics.jsonl", "generator.safetensors", "samples/round-000000.png"]


def described(*files: tuple[str, bytes], head: str | None = None) -> bytes:
    """Returns bytes that a server of any kind may send, in safetensors' format."""
    entries, start = [], 0
    for name, content in files:
        end = start + len(content)
        place = {"dtype": "U8", "shape": [len(content)], "data_offsets": [start, end]}
        entries.append(f"{json.dumps(name)}: {json.dumps(place)}")
        start = end
    header = (head or f"{{{', '.join(entries)}}}").encode()
    return len(header).to_bytes(8, "little") + header + b"".join(content for _, content in files)


def lines_of(content: bytes) -> list[str]:
    """Returns the frames of any content."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "save", lambda tensors: content)
        return frames({})


def received(lines: list[str]) -> tuple[dict[str, bytes], Any]:
    receiver = Receiver()
    for line in lines:
        receiver.take(line)
    return receiver.results()


def read(*files: tuple[str, bytes], head: str | None = None) -> tuple[dict[str, bytes], Any]:
    return received(lines_of(described(*files, head=head)))


@given(
    st.dictionaries(st.sampled_from(NAMES), st.binary(max_size=50)), st.integers(1, 64),
    st.lists(st.text(max_size=20)), st.integers(0, 99),
)  # fmt: skip
def test_what_was_sent_arrives_among_other_lines(
    files: dict[str, bytes], chunk: int, others: list[str], seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK", chunk)
        lines = [f"\x1b[92mINFO\x1b[0m {line}\n" for line in frames(files)]
        places = random.Random(seed)
        places.shuffle(lines)
        for other in others:
            lines.insert(places.randrange(len(lines) + 1), other)
        assert received([*lines, lines[0]]) == (files, None)


@given(st.binary(max_size=300))
def test_anything_else_is_refused(content: bytes) -> None:
    with pytest.raises(TransferError):
        received(lines_of(content))


def test_a_failure_is_told() -> None:
    told = failure_of(ClientError("Client 1\n refused."))
    assert told == {"message": "Client 1 refused.", "exit_code": 1}
    assert received(frames({FAILED: json.dumps(told).encode()})) == ({}, told)
    assert failure_of(RuntimeError("down"))["message"] == "RuntimeError: down."


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../config.yaml", "samples/../../x.png", "samples/round-1.png", "a/config.yaml",
     "config.yaml\0", "Config.yaml", "checkpoint/state.safetensors", "samples//round-000001.png",
     "", "C:\\config.yaml"],
)  # fmt: skip
def test_a_path_that_is_no_result_is_refused(name: str) -> None:
    assert read(("config.yaml", b"x")) == ({"config.yaml": b"x"}, None)
    with pytest.raises(TransferError, match="no result of a run"):
        read((name, b"x"))


@pytest.mark.parametrize(
    "content",
    [
        described(("config.yaml", b"x"), ("config.yaml", b"y")),
        described(("config.yaml", b"x")) + b"more",
        described(("config.yaml", b"xyz"))[:-1],
        described(head='{"config.yaml": {"dtype": "U8", "shape": [99], "data_offsets": [0, 99]}}'),
        described(head='{"config.yaml": {"dtype": "U8", "shape": [-1], "data_offsets": [0, -1]}}'),
        described(head='{"config.yaml": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}'),
        described(head="[" * 10_000),
        *(described((FAILED, told)) for told in (b"", b"[]", b"null", b'"text"', b"{}")),
        described((FAILED, b'{"message": "no code"}')),
        described((FAILED, b'{"exit_code": 1}')),
        b"\xff" * 8 + b"{}",
    ],
)
def test_a_description_that_does_not_hold_is_refused(content: bytes) -> None:
    with pytest.raises(TransferError, match="is not a run's results"):
        received(lines_of(content))


def test_public_results_alone_leave_the_servers_folder(tmp_path: Path) -> None:
    """No checkpoint, no failure of an earlier process, nothing that somebody put there."""
    folder = RunFolder(tmp_path / "run")
    folder.create()
    for name in [*NAMES, "checkpoint/state.safetensors", "failed.json", "partition.json",
                 "noise.key", "samples/other.png", ".config.yaml.1.tmp"]:  # fmt: skip
        (folder.path / name).write_bytes(name.encode())
    assert public_files(folder) == {name: name.encode() for name in NAMES}


# Frames in a log

FILES = {"config.yaml": bytes(range(256)) * 1000}
LINES = frames(FILES)  # six


def test_a_line_that_the_log_repeats_counts_once() -> None:
    assert received([*LINES[:3], *LINES[1:]]) == (FILES, None)
    assert received([*LINES[:3], flipped(LINES[0], 200), *LINES[3:]]) == (FILES, None)


def test_a_log_without_frames_has_begun_nothing() -> None:
    receiver = Receiver()
    assert not receiver.take("round 1/2")
    assert not receiver.begun
    with pytest.raises(TransferError, match="0 of 0 frames"):
        receiver.results()
    assert receiver.take("fedsink-frame and so on")
    assert receiver.begun


def flipped(line: str, place: int) -> str:
    place %= len(line)
    return line[:place] + ("A" if line[place] != "A" else "B") + line[place + 1 :]


@pytest.mark.parametrize(
    ("damage", "count"),
    [
        (lambda lines: lines[:-1], "5 of 6"),
        (lambda lines: lines[1:], "5 of 6"),
        (lambda lines: [*lines[:2], *lines[3:]], "5 of 6"),
        (lambda lines: [flipped(lines[0], -1), *lines[1:]], "6 of 6"),
        (lambda lines: [flipped(lines[0], 200), *lines[1:]], "6 of 6"),
        (lambda lines: [lines[0][:303], *lines[1:]], "6 of 6"),
        (lambda lines: [lines[0][:300], *lines[1:]], "5 of 6"),
        (lambda lines: [f"{x[:14]}{0:064}{x[78:]}" for x in lines], "6 of 6"),
        (lambda lines: [lines[0].replace(" 0 6 ", " 0 7 "), *lines[1:]], "1 of 7"),
        (lambda lines: [*lines[:3], *frames({"config.yaml": b"another"})], "3 of 6"),
        (lambda lines: [*lines[:5], "fedsink-frame and so on"], "5 of 6"),
        (lambda lines: [lines[0].replace(" 0 6 ", " 0 99999 ")], "1 of 99999"),
    ],
)  # fmt: skip
def test_damage_is_told_and_nothing_is_returned(
    damage: Callable[[list[str]], list[str]], count: str
) -> None:
    with pytest.raises(TransferError, match=rf"did not arrive whole \({count} frames\)"):
        received(damage(LINES))


def test_what_is_too_long_is_neither_sent_nor_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Receiver()
    for line in (LINES[0] + "A" * 70_000, *LINES[1:]):
        receiver.take(line)
    assert receiver.results() == (FILES, None)
    monkeypatch.setattr(module, "MOST_FRAMES", 5)
    with pytest.raises(TransferError, match="bytes are more than the 245760 that one"):
        frames(FILES)
    with pytest.raises(TransferError, match="5 of 6"):
        received(LINES)
