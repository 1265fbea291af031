"""TensorFlow Federated's HDF5 files of Federated EMNIST, small."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from fedsink.data.sources import load, notes
from fedsink.errors import ConfigError, DataError
from tests.data.sources.test_femnist import DIGITS, WORDS, spec, write
from tests.support.writers import some, write_hdf5

pytestmark = pytest.mark.usefixtures("read_again")


def test_hdf5_is_read_and_said_where_both_forms_are_there(tmp_path: Path) -> None:
    write(tmp_path, "leaf")
    write_hdf5(tmp_path / "fed_emnist_train.h5", some({"a": "12"}))
    assert load(spec(tmp_path)).labels.tolist() == [1, 2]
    assert any("Not read: 2, beside the folders that are read: train/all_" in n for n in
               notes(spec(tmp_path)))  # fmt: skip


def test_a_file_of_digits_is_read_only_for_digits(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "fed_emnist_digitsonly_train.h5", some({"a": "123"}))
    assert load(spec(tmp_path, DIGITS)).labels.tolist() == [1, 2, 3]
    with pytest.raises(ConfigError, match=r"digitsonly_train\.h5 holds only digits, and data\.cla"):
        load(spec(tmp_path))


def _without(name: str) -> Any:
    return lambda file: file["examples/a"].__delitem__(name)


def _with(name: str, value: Any) -> Any:
    def change(file: h5py.File) -> None:
        del file["examples/a"][name]
        file["examples/a"][name] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file.__delitem__("examples"), "not in TensorFlow Federated's format"),
        (_without("pixels"), "not in TensorFlow Federated's format"),
        (_without("label"), "not in TensorFlow Federated's format"),
        (_with("pixels", np.zeros((2, 28, 27))), r"pixels of shape \(2, 28, 27\)"),
        (_with("pixels", np.float32(1)), "not numbers|pixels of shape"),
        (_with("pixels", np.full((2, 28, 28), 1.5)), "nor in whole grey levels"),
        (_with("pixels", ["a", "b"]), "not numbers"),
        (_with("label", [1, 62]), "no whole number from 0 to 61"),
        (_with("label", [1.0, 2.0]), "no whole number from 0 to 61"),
        (_with("label", [1]), "and 1 labels"),
        (lambda file: file.__setitem__("examples/b", file["examples/a"]), "stands in several"),
        (lambda file: file.__setitem__("examples/b", h5py.SoftLink("/examples/a")), "several"),
        (_with("label", h5py.SoftLink("/examples/a/pixels")), "stands in several places"),
        (
            lambda file: (
                file.create_dataset("examples/b/pixels", (10**9, 28, 28), "u1", chunks=True)
                and file.__setitem__("examples/b/label", [1])
            ),
            "more than anybody could",
        ),
    ],
)
def test_an_hdf5_file_with_something_else_in_it_is_refused_by_name(
    change: Any, message: str, tmp_path: Path
) -> None:
    path = write_hdf5(tmp_path / "fed_emnist_train.h5", some({"a": "12"}))
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(DataError, match=message) as caught:
        load(spec(tmp_path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_cut_or_foreign_hdf5_file_is_refused_by_name(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "fed_emnist_train.h5", some({"a": "12" * 50}))
    whole = path.read_bytes()
    for content in (b"", b"no HDF5", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="not in TensorFlow Federated's format") as caught:
            load(spec(tmp_path))
        assert str(path) in str(caught.value)


def test_without_h5py_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hdf5(tmp_path / "fed_emnist_train.h5", some(WORDS))
    import_module = importlib.import_module

    def missing(name: str, package: str | None = None) -> Any:
        if name == "h5py":
            raise ModuleNotFoundError(name)
        return import_module(name, package)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(DataError, match=r"train\.h5 needs .*`femnist`: .*`pip install h5py`"):
        load(spec(tmp_path))


def test_the_source_of_these_files_has_to_be_named(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "fed_emnist_train.h5", some(WORDS))
    named = replace(spec(tmp_path), name="femnist")
    with pytest.raises(
        DataError, match=r"train\.h5 is in .*give data\.name=femnist_tff, which fed"
    ):
        load(named)
    write(tmp_path, "leaf")
    assert len(load(named)) == 9
    assert any("Not read: 1, TensorFlow Federated's, which data" in said for said in notes(named))
