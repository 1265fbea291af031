"""CelebA in its own file format, small."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedsink.data.sources import forget, load, notes
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
    forget()
    load(spec(tmp_path), "train")
    assert sorted(cache.rglob("*.npy")) == kept
    Image.new("RGB", (178, 218), (9, 9, 9)).save(folder / "img_align_celeba" / "000001.jpg")
    forget()
    assert int(load(spec(tmp_path), "train").values[0].float().mean()) == 9


def test_a_link_to_another_picture_is_no_record_and_notes_are_kept(tmp_path: Path) -> None:
    folder = write(tmp_path)
    second = folder / "img_align_celeba" / "000002.jpg"
    second.unlink()
    second.symlink_to("000001.jpg")
    for _ in range(2):  # from the files, then from the cache
        assert load(spec(tmp_path)).labels.tolist() == [1, 1, 1]
        said = notes(spec(tmp_path))
        assert said[0] == "Files read: 3. Passed over: 1."
        assert said[1].startswith("Not read: 1, read already under another name: img_align_celeba")
        assert said[2].startswith("All pictures are of another size than data.shape says")
        forget()


def test_a_cache_folder_that_cannot_be_written_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    write(tmp_path)

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        with pytest.raises(
            DataError, match=r"celeba cannot be written \(No space left on device\)"
        ):
            load(spec(tmp_path))
    assert not any(cache.rglob("*.*"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"file/fedsink/celeba cannot be written .*XDG_CACHE_HOME"):
        load(spec(tmp_path))


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
        (partition, "000001.jpg 0\n000001.jpg 0\n", "lists '000001.jpg' for the second time"),
        *(
            (partition, f"{name} 0\n", "Line 1 of .* and no name of a file")
            for name in ("/etc/passwd", "../000001.jpg", "a/000001.jpg", "..", ".", "a/", "/", "\0")
        ),
    ):
        before = path.read_text()
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            load(spec(tmp_path))
        path.write_text(before)
    (folder / "img_align_celeba" / "000002.jpg").unlink()
    with pytest.raises(DataError, match=r"000002\.jpg is listed but not there"):
        load(spec(tmp_path))
    os.mkfifo(folder / "img_align_celeba" / "000002.jpg")
    with pytest.raises(DataError, match=r"000002\.jpg is listed but not there as a file"):
        load(spec(tmp_path))
    (folder / "img_align_celeba" / "000002.jpg").unlink()
    (folder / "img_align_celeba" / "000002.jpg").write_bytes(b"no picture")
    with pytest.raises(DataError, match="not a readable picture"):
        load(spec(tmp_path))
