"""Frames in a log: what was sent arrives whole, or an error says that it did not."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsink.deployment import frames as module
from fedsink.deployment.frames import Receiver, frames
from fedsink.errors import TransferError

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
    (digest,) = re.findall(r"[0-9a-f]{64}", lines[0])
    with pytest.raises(TransferError, match="frame 0 follows 3 of 6"):
        received([*lines[:3], lines[0].replace(digest, digest[::-1]), *lines[3:]])


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
        (lambda lines: [flipped(lines[0], -1), *lines[1:]], "frame 0 is not what"),
        (lambda lines: [flipped(lines[0], 200), *lines[1:]], "frame 0 is not what its SHA-256"),
        (lambda lines: [lines[0][:300], *lines[1:]], "frame 0 is not what its SHA-256"),
        (lambda lines: [lines[0].replace(" 0 6 ", " 0 7 "), *lines[1:]], "frame 0 is not what its"),
        (lambda lines: [*lines[:3], *frames(b"another")], "frames of another transfer"),
        (lambda lines: [*lines[:5], "fedsink-frame and so on"], "a frame is no frame"),
        (lambda lines: [*lines, lines[5].replace(" 5 6 ", " 6 6 ")], "frame 6 follows 6 of 6"),
        (lambda lines: [lines[0].replace(" 0 6 ", " 0 99999 ")], "they are more than"),
        (lambda lines: [lines[0] + "A" * 70_000, *lines[1:]], "they are more than"),
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
