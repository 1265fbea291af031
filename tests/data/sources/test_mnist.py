from __future__ import annotations

import gzip
import os
import struct
import tracemalloc
from pathlib import Path

import pytest
import torch

from fedsink.data.sources import forget, load
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
    assert not cache.exists()


def test_relative_roots_and_read_only_folders_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "shared" / "data")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "shared" / "data" / "MNIST" / "raw").chmod(0o555)
    assert len(load(spec(Path("../shared/data")), "test")) == 4


def test_replaced_files_are_read_again(tmp_path: Path) -> None:
    root = tmp_path / "data"
    write(root)
    load(spec(root), "train")
    labels = root / "MNIST" / "raw" / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(idx((7,), bytes([9] * 7))))
    forget()
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


WHOLE = idx((7, 28, 28), bytes(7 * 784))
WRONG = {
    "torn": (gzip.compress(WHOLE)[:-20], "cannot be read"),
    "checksum": (gzip.compress(WHOLE)[:-8] + bytes(8), "cannot be read"),
    "no gz": (b"text", "cannot be read"),
    "empty": (b"", "cannot be read"),
    "empty inside": (gzip.compress(b""), "cannot be read"),
    "labels": (gzip.compress(idx((9,), bytes(9))), "it is no file of 28×28 pixels"),
    "other sides": (gzip.compress(idx((7, 28, 29), bytes(7 * 812))), "it is no file of 28×28"),
    "floats": (gzip.compress(struct.pack(">4i", 0xD03, 7, 28, 28)), "it is no file of 28×28"),
    "none": (gzip.compress(idx((0, 28, 28), b"")), "it states 0 records"),
    "negative": (gzip.compress(idx((-1, 28, 28), b"")), "it states -1 records"),
    "too many": (gzip.compress(idx((2**31 - 1, 28, 28), b"")), "it states 2147483647 records"),
    "too short": (gzip.compress(WHOLE[:-1]), "does not hold the 7 records that it states"),
    "too long": (gzip.compress(WHOLE + b"x"), "does not hold the 7 records that it states"),
    "a bomb": (gzip.compress(WHOLE + bytes(30_000_000), 1), "does not hold the 7 records"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_archive_is_refused_before_it_is_unpacked_and_leaves_nothing(
    name: str, tmp_path: Path, cache: Path
) -> None:
    """300 kB of a .gz left 300 MB in the cache folder, although they were invalid."""
    root = tmp_path / "data"
    write(root)
    images = root / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    content, message = WRONG[name]
    images.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(DataError, match=rf"train-images-idx3-ubyte\.gz .*{message}"):
        load(spec(root), "train")
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()
    assert not cache.exists()


def test_a_torn_plain_file_and_a_pipe_are_refused(tmp_path: Path) -> None:
    """Opening a pipe waits for ever."""
    write(tmp_path, packed=False)
    images, labels = (
        tmp_path / "MNIST" / "raw" / f"train-{name}-ubyte"
        for name in ("images-idx3", "labels-idx1")
    )
    images.write_bytes(images.read_bytes()[:100])
    with pytest.raises(DataError, match="idx3-ubyte does not hold the 7 records that it states"):
        load(spec(tmp_path), "train")
    labels.unlink()
    os.mkfifo(labels)
    with pytest.raises(DataError, match=r"does not hold train-labels-idx1-ubyte \(plain or"):
        load(spec(tmp_path), "train")


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
