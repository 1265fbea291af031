"""Arrays of one's own in files of NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedsink.data.labelled import number_of
from fedsink.data.partition import partition
from fedsink.data.sources import load
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError, DataError
from fedsink.reporting.samples import write_npz

X, Y = np.arange(48, dtype=np.uint8).reshape(4, 1, 3, 4), np.array([0, 1, 1, 0])


def spec(root: Path | None, **change: object) -> DataSpec:
    known = {"shape": (1, 3, 4), "classes": ("a", "b"), "nominal_records": 4, **change}
    return DataSpec("npz", root=None if root is None else str(root), **known)  # type: ignore[arg-type]


def test_arrays_are_read_with_their_users(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", x=X, y=Y, users=np.array(["u", "v", "u", "w"]))
    np.savez(tmp_path / "test.npz", x=X[:1] / np.float64(255), y=Y[:1].astype(np.int32))
    records = load(spec(tmp_path))
    assert torch.equal(records.values, torch.from_numpy(X))
    assert records.labels.tolist() == Y.tolist()
    assert records.users is not None
    assert records.users.tolist() == [number_of(user) for user in "uvuw"]
    test = load(spec(tmp_path), "test")
    assert (test.values.dtype, test.users) == (torch.float32, None)


def test_what_a_run_samples_is_read(tmp_path: Path) -> None:
    pictures = torch.rand(4, 1, 3, 4)
    write_npz(tmp_path / "train.npz", pictures, torch.from_numpy(Y))
    assert torch.equal(load(spec(tmp_path)).labels, torch.from_numpy(Y))


def test_each_owner_is_a_client(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", x=X, y=Y, users=np.array([7, 7, 3, 5]))
    records = load(spec(tmp_path))
    dealt = partition(records.labels, 3, {"name": "by_user"}, 0, users=records.users)
    assert sorted(held.tolist() for held in dealt) == [[0, 1], [2], [3]]
    assert [len(held) for held in partition(records.labels, 4, {"name": "iid"}, 0)] == [1] * 4
    with pytest.raises(DataError, match="4 clients cannot share 3 users; use at most 3 clients"):
        partition(records.labels, 4, {"name": "by_user"}, 0, users=records.users)
    with pytest.raises(DataError, match="5 clients cannot share 4 records; use at most 4 clients"):
        partition(records.labels, 5, {"name": "iid"}, 0)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "it must hold the arrays x and y"),
        ({"x": X, "y": Y[:3]}, "as many labels as records"),
        ({"x": X.astype(np.int16), "y": Y}, "values must be uint8"),
        ({"x": X, "y": Y + 1}, "outside the 2 classes"),
        ({"x": X, "y": np.array(list("abba"))}, "holds no numbers"),
        ({"x": X, "y": Y, "users": np.array([1, 2])}, "users must be one int64 number per record"),
        ({"x": X, "y": np.array([{}] * 4)}, "cannot be read as arrays"),
        (None, "cannot be read as arrays"),
        (b"PK\x03\x04 no archive", "cannot be read as arrays"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, arrays: object, message: str) -> None:
    if isinstance(arrays, dict):
        np.savez(tmp_path / "train.npz", **arrays)
    elif isinstance(arrays, bytes):
        (tmp_path / "train.npz").write_bytes(arrays)
    with pytest.raises(DataError, match=message):
        load(spec(tmp_path))


def test_a_folder_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"name their folder, data\.root=FOLDER"):
        load(spec(None))
