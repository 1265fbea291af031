from __future__ import annotations

import errno
import gzip
import os
import shutil
import struct
from pathlib import Path

import pytest
import torch

from fedsink.data.sources import load
from fedsink.data.spec import DataSpec
from fedsink.errors import DataError

CLASSES = tuple("0123456789")
SPLITS = {"train": 7, "t10k": 4}


def idx(header: tuple[int, ...], body: bytes) -> bytes:
    magic = 0x800 + len(header)
    return struct.pack(f">{1 + len(header)}i", magic, *header) + body


def write(root: Path, folder: str = "MNIST", packed: bool = True) -> None:
    """Writes files in the format of MNIST: image i of a split is filled with i, its label i."""
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    for split, n in SPLITS.items():
        pictures = b"".join(bytes([i]) * 784 for i in range(n))
        for name, content in (
            (f"{split}-images-idx3-ubyte", idx((n, 28, 28), pictures)),
            (f"{split}-labels-idx1-ubyte", idx((n,), bytes(range(n)))),
        ):
            path = raw / (f"{name}.gz" if packed else name)
            path.write_bytes(gzip.compress(content) if packed else content)


def spec(root: Path | None, name: str = "mnist", download: bool = True) -> DataSpec:
    return DataSpec(name, (1, 28, 28), CLASSES, 7, None if root is None else str(root), download)


def snapshot(root: Path) -> list[tuple[str, int]]:
    return sorted((str(p), p.stat().st_mtime_ns) for p in root.rglob("*"))


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")]
)
def test_a_given_root_is_read_and_never_written(
    tmp_path: Path, cache: Path, packed: bool, name: str, folder: str
) -> None:
    root = tmp_path / "data"
    write(root, folder, packed)
    before = snapshot(root)
    train, test = load(spec(root, name), "train"), load(spec(root, name), "test")
    assert train.values.shape == (7, 1, 28, 28)
    assert train.values[:, 0, 3, 3].tolist() == train.labels.tolist() == list(range(7))
    assert len(test) == 4
    assert snapshot(root) == before
    assert cache.exists() == packed


def test_relative_roots_and_read_only_folders_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "shared" / "data")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "shared" / "data" / "MNIST" / "raw").chmod(0o555)
    assert len(load(spec(Path("../shared/data")), "test")) == 4


def test_unpacking_happens_once_and_again_for_replaced_files(tmp_path: Path, cache: Path) -> None:
    root = tmp_path / "data"
    write(root)
    load(spec(root), "train")
    before = snapshot(cache)
    load.cache_clear()
    load(spec(root), "train")
    assert snapshot(cache) == before
    labels = root / "MNIST" / "raw" / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(idx((7,), bytes([9] * 7))))
    load.cache_clear()
    assert load(spec(root), "train").labels.tolist() == [9] * 7


def test_missing_files_are_named_with_what_to_do(tmp_path: Path) -> None:
    root = tmp_path / "data"
    write(root)
    (root / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"raw does not hold t10k-labels-idx1-ubyte \(plain or"):
        load(spec(root), "train")
    with pytest.raises(DataError, match=r"nowhere/MNIST/raw does not hold .*set data\.root to"):
        load(spec(tmp_path / "nowhere"), "train")
    assert not (tmp_path / "nowhere").exists()


def test_a_torn_archive_is_refused_and_leaves_no_cache(tmp_path: Path, cache: Path) -> None:
    root = tmp_path / "data"
    write(root)
    images = root / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    images.write_bytes(images.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz cannot be unpacked"):
        load(spec(root), "train")
    assert list((cache / "unpacked").iterdir()) == []


def test_a_torn_plain_file_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "data"
    write(root, packed=False)
    images = root / "MNIST" / "raw" / "train-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:100])
    with pytest.raises(DataError, match="MNIST/raw cannot be read"):
        load(spec(root), "train")


def test_without_root_the_cache_folder_is_used(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(DataError, match=r"MNIST does not exist and data\.download is false"):
        load(spec(None, download=False), "train")
    write(cache / "torchvision", packed=False)
    assert len(load(spec(None, download=False), "train")) == 7


def test_a_download_is_complete_or_absent(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision import datasets

    def fails(self: datasets.MNIST) -> None:
        Path(self.raw_folder).mkdir(parents=True)
        raise RuntimeError("Error downloading train-images\nTried a mirror")

    def succeeds(self: datasets.MNIST) -> None:
        write(Path(self.root), packed=False)

    monkeypatch.setattr(datasets.MNIST, "download", fails)
    with pytest.raises(DataError, match=r"could not be downloaded \(Error .*images\); connect"):
        load(spec(None), "train")
    assert list((cache / "torchvision").iterdir()) == []
    monkeypatch.setattr(datasets.MNIST, "download", succeeds)
    assert len(load(spec(None), "train")) == 7


def test_an_unwritable_cache_folder_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "data")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(
        DataError, match=r"file/fedsink/unpacked cannot be written .*XDG_CACHE_HOME"
    ):
        load(spec(tmp_path / "data"), "train")


def test_a_full_disk_is_not_blamed_on_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    write(tmp_path / "data")

    def full(*files: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(DataError, match=r"unpacked cannot be written \(No space left on device\)"):
        load(spec(tmp_path / "data"), "train")
    assert not any(cache.rglob("*.*"))


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_the_real_files(name: str) -> None:
    given = os.environ.get("FEDSINK_TEST_DATA")
    root = Path(given) if given else Path(__file__).parents[4] / "shared" / "data"
    if not root.is_dir():
        pytest.skip(f"{root} is absent; set FEDSINK_TEST_DATA to a folder with {name}")
    data = load(spec(root, name), "test")
    assert torch.bincount(data.labels).sum() == len(data) == 10_000
    images, _ = data.take(torch.arange(100))
    assert 0.0 <= float(images.min()) < 0.01 < 0.99 < float(images.max()) <= 1.0
