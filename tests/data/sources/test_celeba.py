"""CelebA in its own file format, small."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedsink.data.sources import load
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError, DataError

MEN = (True, False, False, True, True, False, True)
SPLITS = (0, 0, 1, 0, 2, 2, 0)  # train, validation, test


def write(root: Path) -> Path:
    """Seven photographs of CelebA's size; picture i has the grey value 30·i all over."""
    folder = root / "celeba"
    (folder / "img_align_celeba").mkdir(parents=True)
    attributes, partition = [str(len(MEN)), "Eyeglasses Male Young"], []
    for i, (man, split) in enumerate(zip(MEN, SPLITS, strict=True)):
        name = f"{i + 1:06}.jpg"
        pixels = np.full((218, 178, 3), 30 * i, dtype=np.uint8)
        pixels[:20] = 255  # above the crop at the centre
        Image.fromarray(pixels).save(folder / "img_align_celeba" / name, quality=95)
        attributes.append(f"{name}  1 {' 1' if man else '-1'} -1")
        partition.append(f"{name} {split}")
    (folder / "list_attr_celeba.txt").write_text("\n".join(attributes) + "\n")
    (folder / "list_eval_partition.txt").write_text("\n".join(partition) + "\n")
    return folder


def spec(root: Path | None, shape: tuple[int, ...] = (3, 32, 32)) -> DataSpec:
    where = None if root is None else str(root)
    return DataSpec("celeba", shape, ("female", "male"), 4, where, False)


def test_splits_labels_and_centre_crops_are_read_from_the_published_files(tmp_path: Path) -> None:
    write(tmp_path)
    train, test = load(spec(tmp_path), "train"), load(spec(tmp_path), "test")
    assert train.values.shape == (4, 3, 32, 32)
    assert train.values.dtype == torch.uint8
    assert train.labels.tolist() == [1, 0, 1, 1]
    assert test.labels.tolist() == [1, 0]
    for data, grey in ((train, (0, 30, 90, 180)), (test, (120, 150))):
        means = data.values.float().mean((1, 2, 3))
        torch.testing.assert_close(means, torch.tensor(grey).float(), atol=1.5, rtol=0)


def test_pictures_are_decoded_once_and_again_for_replaced_files(
    tmp_path: Path, cache: Path
) -> None:
    folder = write(tmp_path)
    load(spec(tmp_path), "train")
    kept = sorted(cache.rglob("*.npy"))
    assert len(kept) == 1
    load.cache_clear()
    load(spec(tmp_path), "train")
    assert sorted(cache.rglob("*.npy")) == kept
    Image.new("RGB", (178, 218), (9, 9, 9)).save(folder / "img_align_celeba" / "000001.jpg")
    load.cache_clear()
    assert int(load(spec(tmp_path), "train").values[0].float().mean()) == 9


def test_the_root_is_never_written(tmp_path: Path) -> None:
    folder = write(tmp_path)
    before = sorted((str(p), p.stat().st_mtime_ns) for p in folder.rglob("*"))
    load(spec(tmp_path), "train")
    assert sorted((str(p), p.stat().st_mtime_ns) for p in folder.rglob("*")) == before


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"not downloaded: set data\.root"):
        load(spec(None))
    with pytest.raises(ConfigError, match=r"two data\.classes"):
        load(spec(tmp_path, (32,)))
    with pytest.raises(DataError, match=r"list_attr_celeba\.txt cannot be read"):
        load(spec(tmp_path))
    folder = write(tmp_path)
    attributes, partition = (
        folder / name for name in ("list_attr_celeba.txt", "list_eval_partition.txt")
    )
    for path, text, message in (
        (attributes, "1\nYoung\n", "does not name the attribute Male"),
        (attributes, "1\nMale\n000001.jpg 7\n", "Line 3 of .* -1 or 1"),
        (attributes, "1\nMale\n000001.jpg 1\n", "no line for 000002.jpg"),
        (partition, "000001.jpg\n", "Line 1 of .* a split 0, 1 or 2"),
        (partition, "000001.jpg 2\n", "no picture of the train set"),
        (partition, "000009.jpg 0\n", "no line for 000009.jpg"),
    ):
        before = path.read_text()
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            load(spec(tmp_path))
        path.write_text(before)
    (folder / "img_align_celeba" / "000002.jpg").unlink()
    with pytest.raises(DataError, match=r"000002\.jpg is listed but not there"):
        load(spec(tmp_path))
    (folder / "img_align_celeba" / "000002.jpg").write_bytes(b"no picture")
    with pytest.raises(DataError, match="not a readable picture"):
        load(spec(tmp_path))
