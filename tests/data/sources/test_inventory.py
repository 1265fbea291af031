"""Folders as strangers have them: each file is read once, and what is not read is said."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from fedsink.data.sources import load, notes
from fedsink.data.sources.inventory import Inventory
from fedsink.data.spec import DataSpec
from fedsink.errors import DataError

pytestmark = pytest.mark.usefixtures("read_again")


def picture(path: Path, shade: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4), shade).save(path, "PNG")


def spec(root: Path, nominal: int = 3) -> DataSpec:
    return DataSpec("image_folder", (1, 4, 4), ("cat", "dog"), nominal, str(root))


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listener(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


def link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def text(path: Path) -> None:
    path.write_bytes(b"no picture at all")


def shade(value: int) -> Callable[[Path], None]:
    return lambda path: picture(path, value)


HIDDEN, SEEN, SPECIAL = "hidden or a program's own", "read already under", "no regular file (a pipe"
CIRCLE, ASTRAY = "a link to a folder around it", "leads nowhere"
OTHER, BESIDE = "of none of the formats PNG", "beside the folders that are read"
ODD: dict[str, tuple[Callable[[Path], None], str]] = {
    "train/cat/.hidden.png": (shade(9), HIDDEN),
    "train/cat/._1.png": (text, HIDDEN),
    "train/cat/.ipynb_checkpoints/1-checkpoint.png": (shade(1), HIDDEN),
    "train/cat/@eaDir/1.png": (shade(1), HIDDEN),
    "train/cat/__MACOSX/1.png": (shade(1), HIDDEN),
    "train/cat/deep/Thumbs.db": (text, HIDDEN),
    "train/@eaDir/1.png": (shade(1), HIDDEN),
    "train/.DS_Store": (text, HIDDEN),
    "train/cat/pipe.png": (pipe, SPECIAL),
    "train/cat/socket.png": (listener, SPECIAL),
    "train/cat/device.png": (link("/dev/zero"), SPECIAL),
    "train/cat/link.png": (link("1.png"), SEEN),
    "train/dog/link to cat.png": (link("../cat/1.png"), SEEN),
    "train/cat/9.png": (lambda path: os.link(path.with_name("1.png"), path), SEEN),
    "train/cat/itself": (link("../cat"), CIRCLE),
    "train/cat/dogs": (link("../dog"), SEEN),
    "train/dog/cats": (link("../cat"), SEEN),
    "train/cat/parent": (link(".."), CIRCLE),
    "train/cat/root": (link("../.."), CIRCLE),
    "train/cat/top": (link("/"), CIRCLE),
    "train/cat/nowhere.png": (link("gone.png"), ASTRAY),
    "train/cat/round.png": (link("round.png"), ASTRAY),
    "train/cat/a.heic": (text, OTHER),
    "train/cat/a.npy": (text, OTHER),
    "train/cat/a.dcm": (text, OTHER),
    "train/cat/notes.txt": (text, OTHER),
    "train/cat/LICENSE": (text, OTHER),
    "train/cat/empty": (lambda path: path.touch(), OTHER),
    "train/cat/a.eps": (lambda path: Image.new("L", (4, 4)).save(path, "EPS"), OTHER),
    "train/loose.png": (shade(5), BESIDE),
    "val/cat/1.png": (shade(5), BESIDE),
    "readme.md": (text, BESIDE),
}
"""What may lie beside three pictures, and why it is not read."""


@pytest.fixture
def pictures(tmp_path: Path) -> None:
    for name, value in (("cat/1.png", 10), ("cat/deep/2.png", 20), ("dog/3.png", 30)):
        picture(tmp_path / "train" / name, value)


def lay(odd: str, root: Path) -> None:
    (root / odd).parent.mkdir(parents=True, exist_ok=True)
    ODD[odd][0](root / odd)


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("odd", ODD)
def test_what_lies_beside_pictures_is_not_read_and_said(odd: str, tmp_path: Path) -> None:
    lay(odd, tmp_path)
    _, why = ODD[odd]
    data = load(spec(tmp_path))
    assert data.values[:, 0, 0, 0].tolist() == [10, 20, 30]
    assert data.labels.tolist() == [0, 0, 1]
    said = notes(spec(tmp_path))
    assert said[0] == "Files read: 3. Passed over: 1."
    (line,) = (note for note in said if why in note)
    assert line.startswith("Not read: 1, ")
    assert any(f": {place}." in line for place in (odd, *map(str, Path(odd).parents)))


@pytest.mark.usefixtures("pictures")
def test_all_of_it_at_once_is_one_sentence_for_each_reason(tmp_path: Path) -> None:
    for odd in ODD:
        lay(odd, tmp_path)
    assert load(spec(tmp_path)).values[:, 0, 0, 0].tolist() == [10, 20, 30]
    said = notes(spec(tmp_path))
    assert said[0] == f"Files read: 3. Passed over: {len(ODD)}."
    for why in (HIDDEN, SEEN, SPECIAL, CIRCLE, ASTRAY, OTHER, BESIDE):
        number = sum(reason == why for _, reason in ODD.values())
        assert sum(f"Not read: {number}, " in note and why in note for note in said) == 1, why


def test_one_file_is_one_record_however_a_folder_links_to_itself(tmp_path: Path) -> None:
    """`ln -s` run twice makes a link inside its own target: 12 files became 480 records."""
    for number in range(12):
        picture(tmp_path / "store" / "cat" / f"{number}.png", number)
    (tmp_path / "data").mkdir()
    for name, target in (("cat", "../store/cat"), ("cat/cat", "../cat"), ("dog", "../store")):
        (tmp_path / "data" / name).symlink_to(target, target_is_directory=True)
    data = load(spec(tmp_path / "data", 12))
    assert sorted(data.values[:, 0, 0, 0].tolist()) == list(range(12))
    assert data.labels.tolist() == [0] * 12


def test_linked_folders_and_files_are_read_where_nothing_else_leads_to_them(tmp_path: Path) -> None:
    picture(tmp_path / "store" / "a" / "1.png", 10)
    picture(tmp_path / "store" / "b.png", 20)
    picture(tmp_path / "data" / "cat" / "3.png", 30)
    (tmp_path / "data" / "cat" / "more").symlink_to(tmp_path / "store" / "a")
    (tmp_path / "data" / "dog").mkdir()
    (tmp_path / "data" / "dog" / "2.png").symlink_to(tmp_path / "store" / "b.png")
    data = load(spec(tmp_path / "data"))
    assert data.values[:, 0, 0, 0].tolist() == [30, 10, 20]
    assert data.labels.tolist() == [0, 0, 1]
    assert notes(spec(tmp_path / "data")) == ()


def test_files_without_a_number_are_told_apart_by_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some network file systems give every file the number 0."""
    for name in "ab":
        (tmp_path / name).write_text(name)
    (tmp_path / "c").symlink_to("a")
    stat = os.stat

    def numberless(path: str | Path) -> os.stat_result:
        return os.stat_result([0 if n == 1 else value for n, value in enumerate(stat(path))])

    monkeypatch.setattr("fedsink.data.sources.inventory.os.stat", numberless)
    inventory = Inventory(tmp_path)
    assert [inventory.is_new(tmp_path / name) for name in "abca"] == [True, True, False, False]


def test_a_folder_that_cannot_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture(tmp_path / "cat" / "1.png", 1)

    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("fedsink.data.sources.inventory.os.scandir", refuse)
    with pytest.raises(DataError, match=r"cat cannot be listed \(Permission denied\); change"):
        load(spec(tmp_path))


def test_a_hidden_folder_that_is_a_class_is_read(tmp_path: Path) -> None:
    picture(tmp_path / ".cat" / "1.png", 1)
    named = DataSpec("image_folder", (1, 4, 4), (".cat", "@eaDir"), 1, str(tmp_path))
    assert load(named).labels.tolist() == [0]


def test_equal_records_are_counted(tmp_path: Path) -> None:
    for number, value in enumerate((1, 1, 1, 2, 3, 3)):
        picture(tmp_path / "cat" / f"{number}.png", value)
    load(spec(tmp_path))
    (line,) = notes(spec(tmp_path))
    assert line.startswith("3 of 6 records are equal to another one, bit by bit")


def test_a_name_moves_no_cursor(tmp_path: Path) -> None:
    picture(tmp_path / "cat" / "1.png", 1)
    (tmp_path / "cat" / "\x1b[2Jgone\n").write_text("no picture")
    (tmp_path / "cat" / os.fsdecode(b"\xe9")).write_text("no picture")
    load(spec(tmp_path))
    said = "".join(notes(spec(tmp_path)))
    assert said.isprintable()
    assert r"\x1b[2Jgone\n" in said
