"""Federated EMNIST in its own two file formats, small."""

from __future__ import annotations

import json
import os
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsink.conf.acting import compose_config
from fedsink.data.labelled import LabelledData, number_of
from fedsink.data.sources import forget, load, notes
from fedsink.data.sources.femnist import CHARACTERS
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError, DataError

from ...support.writers import leaf, some, write_hdf5, write_leaf

WORDS = {"f0001_41": "07Aa", "f0002_00": "7zZb", "f0003_12": "5"}
DIGITS = tuple("0123456789")
FORMATS = ("leaf", "leaf in grey levels", "hdf5")


pytestmark = pytest.mark.usefixtures("read_again")


def spec(root: Path | None, classes: tuple[str, ...] = tuple(CHARACTERS)) -> DataSpec:
    hdf5 = root is not None and any(root.glob("*.h5"))
    name = "femnist_tff" if hdf5 else "femnist"
    return DataSpec(name, (1, 28, 28), classes, 9, None if root is None else str(root), False)


def classes_of(choice: str) -> tuple[str, ...]:
    return DataSpec.from_config(compose_config([f"data={choice}", "data.root=x"])["data"]).classes


def write(root: Path, form: str, words: dict[str, str] = WORDS) -> None:
    """Writes the training split as two LEAF files or one HDF5 file."""
    pictures = some(words)
    users = list(pictures)
    if form == "hdf5":
        write_hdf5(root / "fed_emnist_train.h5", pictures)
        return
    parts = [{user: pictures[user] for user in half} for half in (users[:2], users[2:])]
    write_leaf(root, "train", *parts, divided=form == "leaf")


@pytest.mark.parametrize("form", FORMATS)
def test_ink_is_bright_labels_are_characters_and_records_know_their_writer(
    form: str, tmp_path: Path
) -> None:
    write(tmp_path, form)
    data = load(spec(tmp_path))
    assert data.values.shape == (9, 1, 28, 28)
    assert data.users is not None
    for user, (grey, characters) in some(WORDS).items():
        held = data.users == number_of(user)
        assert data.labels[held].tolist() == characters
        assert np.array_equal(data.values[held, 0].numpy(), 255 - grey)
    images, _ = data.take(torch.arange(9))
    assert float(images[:, 0, 0].max()) == 0.0  # paper


@pytest.mark.medium
@pytest.mark.parametrize(
    ("choice", "labels"),
    [
        ("femnist_digits", {"f0001_41": [0, 7], "f0002_00": [7], "f0003_12": [5]}),
        ("femnist", {"f0001_41": [0, 7, 10, 10], "f0002_00": [7, 35, 35, 11], "f0003_12": [5]}),
        ("femnist_62", {"f0001_41": [0, 7, 10, 36], "f0002_00": [7, 61, 35, 37], "f0003_12": [5]}),
    ],
)
@pytest.mark.parametrize("form", FORMATS)
def test_the_class_list_chooses_the_records_and_is_the_label_map(
    form: str, choice: str, labels: dict[str, list[int]], tmp_path: Path
) -> None:
    write(tmp_path, form)
    data = load(spec(tmp_path, classes_of(choice)))
    assert data.users is not None
    for user, expected in labels.items():
        assert data.labels[data.users == number_of(user)].tolist() == expected
    assert len(data) == sum(map(len, labels.values()))


@pytest.mark.medium
def test_the_three_forms_have_10_36_and_62_classes_and_public_sizes() -> None:
    for choice, classes, records in (
        ("femnist_digits", 10, 341873),
        ("femnist", 36, 671585),
        ("femnist_62", 62, 671585),
    ):
        data = compose_config([f"data={choice}", "data.root=x"])["data"]
        assert len(classes_of(choice)) == classes
        assert data["nominal_records"] == records
        assert sorted("".join(classes_of(choice))) == sorted(CHARACTERS if classes > 10 else DIGITS)


@pytest.mark.medium
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    order=st.permutations(CHARACTERS[:12]),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    written=st.text(CHARACTERS[:12], max_size=9),
)
def test_any_grouping_of_characters_is_a_label_map(
    order: list[str], sizes: list[int], written: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each record has the class whose name holds its character; other characters are left out."""
    ends = list(accumulate(sizes))
    names = ["".join(order[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
    text = written + order[0]
    root = tmp_path_factory.mktemp("leaf")
    write_leaf(root, "train", some({"w": text}))
    labels = load(spec(root, tuple(names))).labels.tolist()
    assert labels == [k for c in text for k, name in enumerate(names) if c in name]


def test_a_writer_in_two_files_is_read_once_from_the_last(tmp_path: Path) -> None:
    """As LEAF's own reader does: a second copy of a file doubles nobody."""
    write_leaf(tmp_path, "train", some({"a": "12", "b": "34"}), some({"b": "567", "c": "8"}))
    data = load(spec(tmp_path, DIGITS))
    assert data.labels.tolist() == [1, 2, 5, 6, 7, 8]
    first = tmp_path / "train" / "all_data_0_niid_0_keep_0_train_9.json"
    second = first.with_name("all_data_0_niid_0_keep_0_train_9 (1).json")
    second.write_bytes(first.read_bytes())
    for _ in range(2):  # from the files, then from the cache
        forget()
        assert torch.equal(load(spec(tmp_path, DIGITS)).values, data.values)
        assert (
            notes(spec(tmp_path, DIGITS))[0]
            == "2 of 3 writers are in several files, and are read from the last by name."
        )


def test_other_files_links_and_pipes_are_not_read_and_said(tmp_path: Path) -> None:
    first, second = write_leaf(tmp_path, "train", some({"a": "12"}), some({"b": "3"}))
    (first.parent / "all_data_00.json").symlink_to(first.name)
    os.link(second, first.parent / "all_data_9.json")
    os.mkfifo(first.parent / "all_data_pipe.json")
    (first.parent / "Copy of all_data_0.json").write_text("{")
    data = load(spec(tmp_path, ("1", "2")))
    assert data.labels.tolist() == [0, 1]
    said = notes(spec(tmp_path, ("1", "2")))
    assert said[0] == "Files read: 2. Passed over: 4."
    assert "Not read: 1, not named all_data_*.json: train/Copy of all_data_0.json." in said
    assert "Not read: 1, no regular file (a pipe, a socket or a device): " in "".join(said)
    assert "Not read: 2, read already under another name: " in "".join(said)
    assert said[-1] == "1 of 3 records are of characters that no class names: left out."


def test_a_scale_is_decided_record_by_record(tmp_path: Path) -> None:
    """A record in grey levels must not change how the one beside it is read."""
    pictures = some({"a": "12"})
    mixed, in_levels = leaf(pictures), leaf(pictures, divided=False)
    mixed["user_data"]["a"]["x"][1] = in_levels["user_data"]["a"]["x"][1]
    (path,) = write_leaf(tmp_path, "train", pictures)
    path.write_text(json.dumps(mixed))
    assert np.array_equal(load(spec(tmp_path)).values[:, 0].numpy(), 255 - pictures["a"][0])


def test_test_records_come_from_the_files_of_the_test_split(tmp_path: Path) -> None:
    write_leaf(tmp_path / "leaf", "train", some({"a": "123"}))
    write_leaf(tmp_path / "leaf", "test", some({"a": "45"}))
    write_hdf5(tmp_path / "h5" / "fed_emnist_train.h5", some({"a": "123"}))
    write_hdf5(tmp_path / "h5" / "fed_emnist_test.h5", some({"a": "45"}))
    for folder in ("leaf", "h5"):
        assert load(spec(tmp_path / folder), "test").labels.tolist() == [4, 5]
        assert load(spec(tmp_path / folder), "train").labels.tolist() == [1, 2, 3]


def test_users_are_numbered_whatever_other_users_there_are(tmp_path: Path) -> None:
    write(tmp_path / "all", "leaf")
    fewer = {user: text for user, text in WORDS.items() if user != "f0001_41"}
    write(tmp_path / "fewer", "hdf5", fewer)
    whole, part = load(spec(tmp_path / "all")), load(spec(tmp_path / "fewer"))
    assert whole.users is not None
    assert part.users is not None
    assert part.users.tolist() == whole.users[4:].tolist()


def test_files_are_decoded_once_and_again_when_replaced(tmp_path: Path, cache: Path) -> None:
    write(tmp_path, "leaf")
    load(spec(tmp_path))
    kept = sorted((p, p.stat().st_mtime_ns) for p in cache.rglob("*.npy"))
    assert len(kept) == 3
    forget()
    load(spec(tmp_path, DIGITS))
    assert sorted((p, p.stat().st_mtime_ns) for p in cache.rglob("*.npy")) == kept
    assert all(p.parent.stat().st_mode & 0o077 == 0 for p, _ in kept)  # as private as the records
    write(tmp_path, "leaf", {**WORDS, "f0003_12": "55"})
    forget()
    assert len(load(spec(tmp_path))) == 10


@pytest.mark.parametrize("form", FORMATS)
def test_the_root_is_never_written(form: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root, form)
    before = sorted((str(p), p.stat().st_mtime_ns) for p in root.rglob("*"))
    load(spec(root))
    assert sorted((str(p), p.stat().st_mtime_ns) for p in root.rglob("*")) == before


# --- the list of users ---------------------------------------------------------------------------


def selected(root: Path, rows: str) -> LabelledData:
    (root / "users.csv").write_text(rows)
    forget()
    described = spec(root)
    return load(
        DataSpec(
            described.name, described.shape, described.classes, 9, described.root, False,
            str(root / "users.csv"),
        )
    )  # fmt: skip


@pytest.mark.parametrize("form", FORMATS)
def test_only_users_that_the_list_marks_true_take_part(form: str, tmp_path: Path) -> None:
    write(tmp_path, form)
    data = selected(tmp_path, "f0001_41,False\nf0002_00, True\nf0003_12,True\nf9999_99,True\n")
    assert data.users is not None
    whole = load(spec(tmp_path))
    assert data.labels.tolist() == whole.labels[4:].tolist()
    assert torch.equal(data.values, whole.values[4:])
    assert set(data.users.tolist()) == {number_of("f0002_00"), number_of("f0003_12")}
    by_excel = selected(tmp_path, "\ufefff0002_00, True\nf0003_12,True\n")
    assert torch.equal(by_excel.values, data.values)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("f0001_41,yes\n", r"Line 1 of .*users\.csv is not `client id, True`"),
        ("f0001_41,True\nf0002_00\n", r"Line 2 of .*users\.csv is not `client id, True`"),
        ("client_id,selected\n", "Line 1 of .*there is no header"),
        ("f0001_41,True\nf0001_41,False\n", "Line 2 of .* lists a user for the second time"),
        ("f0001_41,False\n", "marks no user True"),
        ("", "marks no user True"),
        ("f7777_77,True\n", "marks none of the users of these records True"),
        ('"f0001_41,True\n', "cannot be read as a CSV file of users"),
    ],
)
def test_a_wrong_list_of_users_is_refused(rows: str, message: str, tmp_path: Path) -> None:
    write(tmp_path, "leaf")
    with pytest.raises(DataError, match=message):
        selected(tmp_path, rows)


def test_a_missing_list_of_users_and_one_for_a_source_without_users_are_refused(
    tmp_path: Path,
) -> None:
    write(tmp_path, "leaf")
    gone = DataSpec("femnist", (1, 28, 28), DIGITS, 9, str(tmp_path), False, "gone.csv")
    with pytest.raises(DataError, match=r"gone\.csv cannot be read as a CSV file of users"):
        load(gone)
    (tmp_path / "users.csv").write_text("f0001_41,True\n")
    digits = DataSpec("digits", (1, 8, 8), DIGITS, 9, clients_file=str(tmp_path / "users.csv"))
    with pytest.raises(ConfigError, match=r"data\.clients_file selects users, and this source"):
        load(digits)


# --- what cannot be read -------------------------------------------------------------------------


def test_a_missing_root_or_split_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"femnist is not downloaded: set data\.root"):
        load(spec(None))
    with pytest.raises(DataError, match=r"holds no train/all_data_"):
        load(spec(tmp_path))
    write(tmp_path, "leaf")
    with pytest.raises(DataError, match=r"holds no test/all_data_"):
        load(spec(tmp_path), "test")
    with pytest.raises(DataError, match=r"holds no train record of the classes Q; correct"):
        load(spec(tmp_path, ("Q",)))


@pytest.mark.parametrize("classes", [("digit 0",), ("0", "Aa", "a"), ("00",), ("é",)])
def test_a_class_that_names_no_characters_is_refused(
    classes: tuple[str, ...], tmp_path: Path
) -> None:
    write(tmp_path, "leaf")
    with pytest.raises(ConfigError, match=r"data\.classes: .* is no class of femnist"):
        load(spec(tmp_path, classes))


def _top(key: str, value: object) -> Any:
    return lambda content: content.update({key: value})


def _replaced(key: str, value: object) -> Any:
    return lambda content: content["user_data"]["a"].update({key: value})


GREY = [[0.5] * 784] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("user_data"), "is not in LEAF's format"),
        (lambda c: c.pop("num_samples"), "is not in LEAF's format"),
        (_top("user_data", [1]), "is not in LEAF's format"),
        (_top("user_data", {"a": [1]}), "is not in LEAF's format"),
        (lambda c: c.update(users=[], num_samples=[], user_data={}), "holds no writer"),
        (_top("user_data", {}), "the writer a is in users and not in user_data"),
        (lambda c: c["user_data"]["a"].pop("y"), "is not in LEAF's format"),
        (_top("num_samples", [3]), "the writer a has not as many records as num_samples"),
        (_top("users", ["b"]), "the writer a has not as many records as num_samples"),
        (_replaced("x", [[0.5] * 783] * 2), r"pixels of shape \(2, 783\) and 2 labels"),
        (_replaced("x", [[0.5] * 784]), r"pixels of shape \(1, 784\) and 2 labels"),
        (_replaced("x", [[0.5] * 784, [0.5] * 783]), "not numbers, or of different lengths"),
        (_replaced("x", [["ink"] * 784] * 2), "not numbers, or of different lengths"),
        (_replaced("x", [[None] * 784] * 2), r"neither in \[0, 1\] nor in \[0, 255\]"),
        (_replaced("x", [[float("nan")] * 784] * 2), r"neither in \[0, 1\] nor in \[0, 255\]"),
        (_replaced("x", [[-0.1] * 784] * 2), r"neither in \[0, 1\] nor in \[0, 255\]"),
        (_replaced("x", [[256] * 784] * 2), r"neither in \[0, 1\] nor in \[0, 255\]"),
        (_replaced("x", [[1.01] * 784] * 2), "nor in whole grey levels"),
        (_replaced("y", [1, 62]), "no whole number from 0 to 61"),
        (_replaced("y", [-1, 2]), "no whole number from 0 to 61"),
        (_replaced("y", [1.5, 2]), "no whole number from 0 to 61"),
        (_replaced("y", ["1", "2"]), "no whole number from 0 to 61"),
        (_replaced("y", 5), "has not as many records as num_samples"),
    ],
)
def test_a_leaf_file_with_something_else_in_it_is_refused_by_name(
    change: Any, message: str, tmp_path: Path, cache: Path
) -> None:
    content = leaf(some({"a": "12"}))
    change(content)
    (path,) = write_leaf(tmp_path, "train", {})
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=message) as caught:
        load(spec(tmp_path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(cache.rglob("*.npy")) == []  # nothing half done is kept


@pytest.mark.parametrize(
    "text", ['{"users": [], "users": []}', "", "{", "[]", '{"users": ["a"', "[" * 100_000, "\xff"]
)
def test_a_broken_leaf_file_is_refused_by_name(text: str, tmp_path: Path) -> None:
    (path,) = write_leaf(tmp_path, "train", {})
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"no complete JSON file|not in LEAF's format") as caught:
        load(spec(tmp_path))
    assert str(path) in str(caught.value)


def test_a_writer_without_records_is_no_error(tmp_path: Path) -> None:
    write_leaf(tmp_path, "train", some({"a": "", "b": "12"}))
    assert load(spec(tmp_path)).labels.tolist() == [1, 2]


def test_nothing_is_unpickled(tmp_path: Path, cache: Path) -> None:
    """Files in the cache folder may have been replaced: objects in them are never made."""
    write(tmp_path, "leaf")
    load(spec(tmp_path))
    (images,) = cache.rglob("images.npy")
    np.save(images, np.array([_Traps()], dtype=object), allow_pickle=True)
    forget()
    with pytest.raises(DataError, match="cannot be read; remove it"):
        load(spec(tmp_path))


class _Traps:
    def __reduce__(self) -> Any:
        return pytest.fail, ("unpickled",)
