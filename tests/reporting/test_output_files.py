from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsink.errors import CheckpointError
from fedsink.reporting.output_files import append_jsonl, truncate_jsonl, write_json


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_append_writes_one_line_each_time(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    append_jsonl(path, {"round": 1, "ε": 0.5, "note": "a\nb"})
    append_jsonl(path, {"round": 2, "ε": None, "classes": [1, 2]})
    assert path.read_bytes().count(b"\n") == 2
    assert lines(path) == [
        {"round": 1, "ε": 0.5, "note": "a\nb"},
        {"round": 2, "ε": None, "classes": [1, 2]},
    ]


def test_write_json_replaces_the_file(tmp_path):
    path = tmp_path / "privacy.json"
    write_json(path, {"old": 1})
    write_json(path, {"ε": 9.5, "clients": [{"name": "a"}]})
    assert json.loads(path.read_text(encoding="utf-8")) == {"ε": 9.5, "clients": [{"name": "a"}]}
    assert "ε" in path.read_text(encoding="utf-8")
    assert [p.name for p in tmp_path.iterdir()] == ["privacy.json"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("write", [append_jsonl, write_json])
def test_numbers_that_are_not_finite_are_refused_with_their_place(tmp_path, write, bad):
    path = tmp_path / "file"
    write(path, {"round": 1})
    before = path.read_bytes()
    with pytest.raises(ValueError, match=rf"received {bad} at clients\[1\]\.loss"):
        write(path, {"round": 2, "clients": [{"loss": 0.0}, {"loss": bad}]})
    assert path.read_bytes() == before


@pytest.mark.parametrize("write", [append_jsonl, write_json])
def test_tensors_are_refused_with_what_to_do(tmp_path, write):
    path = tmp_path / "file"
    with pytest.raises(ValueError, match=r"Tensor is not JSON serializable.*\.item\(\)"):
        write(path, {"loss": torch.zeros(3)})
    assert not path.exists()


def test_truncate_keeps_rounds_up_to_last(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for number in range(1, 8):
        append_jsonl(path, {"round": number})
    assert truncate_jsonl(path, "round", 4) == 4
    append_jsonl(path, {"round": 5, "again": True})
    assert [line["round"] for line in lines(path)] == [1, 2, 3, 4, 5]
    assert lines(path)[-1]["again"]


def test_truncate_without_a_file(tmp_path):
    assert truncate_jsonl(tmp_path / "metrics.jsonl", "round", 4) == 0
    assert list(tmp_path.iterdir()) == []


def test_truncate_leaves_a_whole_file_untouched(tmp_path):
    path = tmp_path / "metrics.jsonl"
    append_jsonl(path, {"round": 1})
    inode = path.stat().st_ino
    assert truncate_jsonl(path, "round", 9) == 1
    assert path.stat().st_ino == inode


@pytest.mark.medium
@given(cut=st.integers(0, 200), last=st.integers(0, 7))
@settings(max_examples=80, deadline=None)
def test_truncate_after_a_crash_at_any_byte(tmp_path_factory, cut, last):
    path = tmp_path_factory.mktemp("crash") / "metrics.jsonl"
    for number in range(1, 7):
        append_jsonl(path, {"round": number, "ε": number / 8, "text": "größer"})
    content = path.read_bytes()[:cut]
    path.write_bytes(content)
    ends = [i for i, byte in enumerate(path.read_bytes() + b"\n") if byte == ord("\n")]
    # A line is whole once its closing brace is there, with or without the line's end.
    whole = sum(1 for end in ends if content[:end].endswith(b"}"))
    kept = min(whole, last)
    assert truncate_jsonl(path, "round", last) == kept
    assert [line["round"] for line in lines(path)] == list(range(1, kept + 1))
    append_jsonl(path, {"round": kept + 1})
    assert len(lines(path)) == kept + 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"round": 1}\n{"rou\n{"round": 3}\n', "Line 2 of .* is not a JSON object"),
        (b'{"round": 1}\n17\n{"round": 3}\n', "Line 2 of .* is not a JSON object"),
        (b'{"round": 1}\n{"step": 2}\n', r"Line 2 of .* no number under 'round' \(received None"),
        (b'{"round": true}\n', r"Line 1 of .* no number under 'round' \(received True"),
    ],
)
def test_truncate_refuses_a_damaged_file_and_leaves_it(tmp_path, content, message):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        truncate_jsonl(path, "round", 9)
    assert path.read_bytes() == content
