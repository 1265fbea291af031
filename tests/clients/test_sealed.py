"""Tensors in files: what is damaged, or lies in another one's place, is not read."""

from __future__ import annotations

import pytest
import torch
from safetensors import SafetensorError

from fedsink.clients.sealed import seal, unseal

TENSORS = {"weights": torch.arange(6.0).reshape(2, 3), "steps": torch.tensor(4)}


def test_what_is_sealed_is_read_again_in_its_place() -> None:
    found = unseal(seal(TENSORS, "run/1.state"), "run/1.state")
    assert found is not None
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[name], values) for name, values in TENSORS.items())


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
    monkeypatch.setattr("fedsink.clients.sealed.save", lambda tensors: b"another format")
    with pytest.raises(SafetensorError):
        unseal(seal(TENSORS, "x"), "x")
