from __future__ import annotations

import base64
import io
from pathlib import Path

import pytest
import torch
from PIL import Image

from fedsink.errors import CheckpointError
from fedsink.pages.pictures import pictures, spread


def _noise(path: Path, side: int, mode: str = "L") -> Path:
    depth = len(mode)
    pixels = torch.randint(0, 256, (side, side, depth), generator=torch.Generator().manual_seed(1))
    array = pixels.to(torch.uint8).squeeze(-1).numpy()
    Image.fromarray(array).save(path)
    return path


def _shown(source: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2])))


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_small_picture_keeps_its_bytes(tmp_path: Path, mode: str) -> None:
    path = _noise(tmp_path / "a.png", 20, mode)
    (shown,) = pictures([(path, "noise", "Round 1")])
    assert base64.b64decode(shown.source.partition(",")[2]) == path.read_bytes()
    assert (shown.alt, shown.caption, shown.width, shown.height) == ("noise", "Round 1", 20, 20)


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_large_pictures_are_made_smaller_and_keep_their_place(tmp_path: Path, mode: str) -> None:
    files = [_noise(tmp_path / f"{n}.png", side, mode) for n, side in enumerate((300, 10))]
    large, small = pictures([(file, "", "") for file in files], most_bytes=20_000)
    assert len(large.source) <= 10_000 * 4 / 3 + 100
    assert (large.width, large.height) == (300, 300)
    assert _shown(large.source).mode == mode
    assert _shown(small.source).size == (10, 10)


def test_a_damaged_picture_is_named(tmp_path: Path) -> None:
    path = _noise(tmp_path / "round-000001.png", 30)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(CheckpointError, match=r"round-000001\.png is damaged.*restore"):
        pictures([(path, "", "")])


def test_the_first_and_the_last_are_among_the_chosen() -> None:
    files = {number: Path(str(number)) for number in (0, 5, 10, 20, 40, 80, 100)}
    assert list(spread(files, 20)) == list(files)
    assert list(spread(files, 3)) == [0, 20, 100]
    assert list(spread(files, 2)) == [0, 100]
    assert list(spread(files, 1)) == [100]
    assert spread({}, 3) == {}
