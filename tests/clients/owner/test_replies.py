from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from fedsink.clients.owner.replies import ReplyStore, seal, unseal
from fedsink.clients.owner.states import States
from fedsink.errors import LedgerError, ReleaseRefusedError

KEY = bytes(range(32))
REPLY = {"1": torch.randn(6, 4, generator=torch.Generator().manual_seed(0))}
TENSORS = {"weights": torch.arange(6.0).reshape(2, 3), "steps": torch.tensor(4)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "replies"


def test_a_reply_comes_back_bit_for_bit_from_another_process(folder: Path) -> None:
    values = {"values": torch.randn(3, 2), "labels": torch.arange(3), "none": torch.zeros(0, 4)}
    put = ReplyStore(folder).put(KEY, values)
    got = ReplyStore(folder).get(KEY)
    assert got is not None
    for name, value in values.items():
        assert torch.equal(put[name], value)
        assert torch.equal(got[name], value)
        assert got[name].dtype == value.dtype


def test_of_two_replies_to_one_request_the_first_is_kept(folder: Path) -> None:
    """Two processes with entropy noise: both answer with the reply that left first."""
    store = ReplyStore(folder)
    store.put(KEY, REPLY)
    again = store.put(KEY, {"1": REPLY["1"] + 1})
    assert torch.equal(again["1"], REPLY["1"])


def test_files_are_the_owners_alone_and_no_part_is_left(folder: Path) -> None:
    ReplyStore(folder).put(KEY, REPLY)
    [file] = folder.iterdir()
    assert file.name == f"{KEY.hex()}.reply"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_reply_is_refused_and_never_made_again(folder: Path, damage: str) -> None:
    """Pitfall 9: privatized once means the same bytes again, or a refusal."""
    store = ReplyStore(folder)
    store.put(KEY, REPLY)
    [file] = folder.iterdir()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes({"flip": bytes(content), "cut": content[:-1], "empty": b""}[damage])
    with pytest.raises(ReleaseRefusedError, match=r"is damaged, and a released reply is never"):
        store.get(KEY)
    with pytest.raises(ReleaseRefusedError):
        store.put(KEY, REPLY)


def test_a_full_disk_releases_nothing_and_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(LedgerError, match=r"cannot be stored .*No space left"):
            ReplyStore(folder).put(KEY, REPLY)
    assert os.listdir(folder) == []


@pytest.mark.parametrize("place", ["run/2.state", "other/1.state", "run/1.state ", ""])
def test_a_file_of_another_place_is_damaged(place: str) -> None:
    assert unseal(seal(TENSORS, "run/1.state"), place) is None


def test_no_flipped_bit_and_no_cut_is_read() -> None:
    content = seal(TENSORS, "x")
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        assert unseal(bytes(flipped), "x") is None
    for size in range(len(content)):
        assert unseal(content[:size], "x") is None


def test_what_is_intact_and_of_another_kind_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fedsink.clients.owner.replies.save", lambda tensors, metadata: b"another format"
    )
    with pytest.raises(SafetensorError):
        unseal(seal(TENSORS, "x"), "x")


def test_a_state_is_given_to_no_other_owner_reservation_kind_or_name(tmp_path: Path) -> None:
    def states(owner: str) -> States:
        return States(tmp_path, owner, simulated=True, at_once=True, rewinds=False)

    states("a").of(KEY, "critics", "run").put(1, TENSORS)
    for other in (
        states("b").of(KEY, "critics", "run"),
        states("a").of(KEY[::-1], "critics", "run"),
        states("a").of(KEY, "totals", "run"),
        states("a").of(KEY, "critics"),
        states("a").of(KEY, "critics", "another"),
    ):
        assert other.before(2) is None
    again = states("a").of(KEY, "critics", "run").before(2)
    assert again is not None
    assert torch.equal(again["weights"], TENSORS["weights"])
