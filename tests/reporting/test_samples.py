from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from fedsink.errors import ConfigError, DataError
from fedsink.reporting import samples
from fedsink.reporting.samples import write_folder, write_parquet

NAMES = ("chat", "été")


def _pictures(n: int, channels: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return torch.rand(n, channels, 5, 4, generator=random), torch.arange(n) % 2


def test_row_groups_are_written_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "ROWS", 10)
    images, labels = _pictures(25)
    path = tmp_path / "x.parquet"
    write_parquet(path, images, labels, NAMES)
    file = parquet.ParquetFile(path)
    groups = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    assert groups == [10, 10, 5]
    rows = file.read()
    assert rows["label"].to_pylist() == labels.tolist()
    paths = [row["path"] for row in rows["image"].to_pylist()]
    assert paths == [f"{number:06d}.png" for number in range(25)]
    last = np.asarray(Image.open(io.BytesIO(rows["image"][24].as_py()["bytes"])))
    assert np.array_equal(last, (images[24] * 255).round().byte().permute(1, 2, 0).numpy())


def test_a_file_that_fails_half_way_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "ROWS", 10)
    images, labels = _pictures(25)
    with pytest.raises(IndexError):
        write_folder(tmp_path / "x", images, labels + 20, NAMES)
    with pytest.raises(AttributeError):
        write_parquet(tmp_path / "x.parquet", images, [0] * 25, NAMES)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../up", "/tmp/up", "a/b", "a\\b", "..", ".", "", "a\0"])
def test_a_class_never_leaves_the_folder(tmp_path: Path, name: str) -> None:
    """A run's classes may be a stranger's."""
    images, labels = _pictures(2)
    with pytest.raises(ConfigError, match="is no name of a folder"):
        write_folder(tmp_path / "deep" / "x", images, labels * 0, [name])
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_picture_is_refused(tmp_path: Path) -> None:
    images, labels = _pictures(2, channels=2)
    for write in (write_parquet, write_folder):
        with pytest.raises(DataError, match=r"not \(2, 5, 4\): write to a .npz file"):
            write(tmp_path / "x", images, labels, NAMES)


def test_parquet_without_its_package_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="`pip install pyarrow`"):
        write_parquet(tmp_path / "x.parquet", *_pictures(2), NAMES)


@pytest.mark.slow
def test_hugging_face_reads_the_file(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    images, labels = _pictures(25, channels=1)
    write_parquet(tmp_path / "x.parquet", images, labels, NAMES)
    read = datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "x.parquet"), cache_dir=str(tmp_path / "cache")
    )["train"]
    assert read.features["label"].names == list(NAMES)
    assert read["label"][:] == labels.tolist()
    shown = np.asarray(read[7]["image"])
    assert np.array_equal(shown, (images[7, 0] * 255).round().byte().numpy())


def test_every_row_group_of_parquet_has_its_own_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "ROWS", 2)
    labels = torch.tensor([0, 1, 1, 0, 2])
    write_parquet(tmp_path / "x.parquet", torch.rand(5, 1, 4, 4), labels, "abc")
    table = parquet.read_table(tmp_path / "x.parquet")
    assert table["label"].to_pylist() == labels.tolist()
