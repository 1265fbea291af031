from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsink.errors import CheckpointError
from fedsink.server import checkpoint

TENSORS = {
    "weights": torch.arange(6.0).reshape(2, 3),
    "step": torch.tensor(3.0),
    "labels": torch.tensor([1, 2]),
    "empty": torch.zeros(0, 4),
    "strided": torch.arange(6.0).reshape(2, 3).T,
}
VALUES = {"round": 3, "identity": {"ε": [1.5, None, True]}, "seconds": 0.1}


def state(folder: Path) -> Path:
    return folder / "state.safetensors"


def test_a_state_round_trips(tmp_path):
    assert not checkpoint.exists(tmp_path)
    checkpoint.save(tmp_path / "new", TENSORS, VALUES)
    assert checkpoint.exists(tmp_path / "new")
    tensors, values = checkpoint.load(tmp_path / "new")
    assert values == VALUES
    assert sorted(tensors) == sorted(TENSORS)
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_tensors_that_are_trained_on_are_saved_as_they_are(tmp_path):
    weights = torch.ones(2, requires_grad=True)
    checkpoint.save(tmp_path, {"w": weights}, {})
    assert checkpoint.load(tmp_path)[0]["w"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("victim", ["replace", "fsync"])
def test_a_crash_while_saving_leaves_the_old_state(tmp_path, monkeypatch, victim):
    checkpoint.save(tmp_path, TENSORS, VALUES)

    def crash(*arguments: Any) -> None:
        raise OSError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(os, victim, crash)
        with pytest.raises(OSError, match="power cut"):
            checkpoint.save(tmp_path, {"weights": torch.zeros(1)}, {"round": 4})
    tensors, values = checkpoint.load(tmp_path)
    assert values["round"] == 3
    assert torch.equal(tensors["weights"], TENSORS["weights"])
    checkpoint.save(tmp_path, {"weights": torch.zeros(1)}, {"round": 4})
    assert checkpoint.load(tmp_path)[1] == {"round": 4}


def test_a_temporary_file_left_by_a_kill_is_not_taken_for_a_checkpoint(tmp_path):
    checkpoint.save(tmp_path, TENSORS, VALUES)
    whole = state(tmp_path).read_bytes()
    (tmp_path / ".state.safetensors.0123.tmp").write_bytes(whole[: len(whole) // 2])
    assert checkpoint.load(tmp_path)[1] == VALUES


@pytest.mark.medium
def test_any_changed_byte_is_noticed(tmp_path):
    checkpoint.save(tmp_path, TENSORS, VALUES)
    whole = state(tmp_path).read_bytes()
    assert len(whole) < 3000
    for place in range(len(whole)):
        for flip in (0x01, 0x80):
            damaged = bytearray(whole)
            damaged[place] ^= flip
            state(tmp_path).write_bytes(damaged)
            with pytest.raises(CheckpointError):
                checkpoint.load(tmp_path)
    state(tmp_path).write_bytes(whole)
    assert checkpoint.load(tmp_path)[1] == VALUES


def test_changed_content_is_called_corrupt(tmp_path):
    checkpoint.save(tmp_path, TENSORS, VALUES)
    whole = bytearray(state(tmp_path).read_bytes())
    whole[-1] ^= 1
    state(tmp_path).write_bytes(whole)
    with pytest.raises(CheckpointError, match="is corrupt: its content does not match"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 60, 0.5, 0.99, -1])
def test_a_torn_file_is_noticed(tmp_path, keep):
    checkpoint.save(tmp_path, TENSORS, VALUES)
    whole = state(tmp_path).read_bytes()
    state(tmp_path).write_bytes(whole[: int(keep * len(whole)) if 0 < keep < 1 else int(keep)])
    with pytest.raises(CheckpointError, match="is not a readable checkpoint"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"no safetensors at all", b"\x80\x04pickle", struct.pack("<Q", 2) + b"{}",
     struct.pack("<Q", 2**60) + b"{}"],
)  # fmt: skip
def test_another_kind_of_file_is_refused(tmp_path, content):
    state(tmp_path).write_bytes(content)
    with pytest.raises(CheckpointError, match="is not a readable checkpoint"):
        checkpoint.load(tmp_path)


def test_a_missing_checkpoint_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="the run stopped before its first checkpoint"):
        checkpoint.load(tmp_path)


def test_uploads_are_kept_apart_and_checked(tmp_path):
    assert checkpoint.load_uploads(tmp_path) == {}
    checkpoint.save_uploads(tmp_path, {})
    assert list(tmp_path.iterdir()) == []
    checkpoint.save_uploads(tmp_path, {"values": torch.ones(3, 2)})
    assert not checkpoint.exists(tmp_path)
    assert torch.equal(checkpoint.load_uploads(tmp_path)["values"], torch.ones(3, 2))
    path = tmp_path / "uploads.safetensors"
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    with pytest.raises(CheckpointError, match=r"uploads\.safetensors is corrupt"):
        checkpoint.load_uploads(tmp_path)
