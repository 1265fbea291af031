from __future__ import annotations

import math
import os
import tempfile
import unicodedata
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional

from fedsink.data.labelled import number_of
from fedsink.data.sources import load, notes
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError, DataError


def picture(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (12, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def spec(
    root: Path | None,
    shape: tuple[int, ...] = (3, 4, 4),
    classes: tuple[str, ...] = ("cat", "dog", "owl"),
) -> DataSpec:
    return DataSpec("image_folder", shape, classes, 10, None if root is None else str(root))


def test_labels_are_positions_in_the_public_list(tmp_path: Path) -> None:
    # Sorted folders would give dog = 0 and owl = 1: the public list puts owl first.
    picture(tmp_path / "owl" / "1.png", (255, 0, 0))
    picture(tmp_path / "dog" / "1.png", (0, 0, 255))
    data = load(spec(tmp_path, classes=("owl", "cat", "dog")), "train")
    colours = {
        int(label): value[:, 0, 0].tolist()
        for value, label in zip(data.values, data.labels, strict=True)
    }
    assert colours == {0: [255, 0, 0], 2: [0, 0, 255]}
    assert data.values.dtype == torch.uint8


def test_a_class_may_be_absent_or_empty_and_hidden_folders_are_ignored(tmp_path: Path) -> None:
    picture(tmp_path / "dog" / "1.png", (1, 2, 3))
    (tmp_path / "cat").mkdir()
    (tmp_path / ".git").mkdir()
    assert load(spec(tmp_path), "train").labels.tolist() == [1]
    assert "Not read: 1, hidden or a program's own: .git." in notes(spec(tmp_path))


def test_splits_come_from_their_folders(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "cat" / "1.png", (9, 9, 9))
    picture(tmp_path / "train" / "cat" / "2.png", (9, 9, 9))
    picture(tmp_path / "test" / "dog" / "1.png", (9, 9, 9))
    assert load(spec(tmp_path), "train").labels.tolist() == [0, 0]
    assert load(spec(tmp_path), "test").labels.tolist() == [1]


def test_a_slot_depends_only_on_a_pictures_name(tmp_path: Path) -> None:
    def slots(folder: str, *names: str, colour: int = 1) -> dict[tuple[int, int], int]:
        """Slots by label and the shade of the picture."""
        for shade, name in enumerate(names, start=colour):
            picture(tmp_path / folder / name, (shade, shade, shade))
        data = load(spec(tmp_path / folder), "train")
        assert data.slots is not None
        shades = data.values[:, 0, 0, 0].tolist()
        return dict(
            zip(zip(data.labels.tolist(), shades, strict=True), data.slots.tolist(), strict=True)
        )

    whole = slots("whole", "cat/b.png", "cat/d.png", "dog/c.png", "dog/ward/c.png")
    assert whole[0, 1] == number_of("b.png")
    assert whole[1, 4] == number_of("ward/c.png")
    assert len(set(whole.values())) == 4
    # One more in front, one less, another content, another class: no slot changes.
    more = slots("more", "cat/b.png", "cat/d.png", "dog/c.png", "dog/ward/c.png", "cat/a.png")
    assert {key: more[key] for key in whole} == whole
    assert slots("less", "cat/d.png", colour=2) == {(0, 2): whole[0, 2]}
    assert slots("replaced", "cat/b.png", colour=7) == {(0, 7): whole[0, 1]}
    assert slots("relabelled", "owl/ward/c.png", colour=4) == {(2, 4): whole[1, 4]}


def test_a_name_of_another_encoding_is_read(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "cat" / os.fsdecode(b"\xe9t\xe9.png"), (1, 1, 1))
    data = load(spec(tmp_path), "train")
    assert data.slots is not None
    assert len(data.slots) == 1


@pytest.mark.parametrize("size", [(12, 8), (8, 12), (3, 3), (5, 90), (4, 4), (1, 1)])
@pytest.mark.parametrize("shape", [(3, 4, 4), (1, 4, 6), (1, 28, 28)])
def test_every_picture_covers_the_target(
    tmp_path: Path, size: tuple[int, int], shape: tuple[int, ...]
) -> None:
    picture(tmp_path / "cat" / "1.png", (100, 100, 100), size)
    values = load(spec(tmp_path, shape), "train").values
    assert values.shape == (1, *shape)
    assert set(values.flatten().tolist()) <= {99, 100}  # no black border, no change of level


def test_the_crop_is_central_and_the_resize_antialiased(tmp_path: Path) -> None:
    pixels = np.zeros((8, 24), dtype=np.uint8)
    pixels[:, 8:16] = 255 * (np.indices((8, 8)).sum(0) % 2)  # a checkerboard in the middle third
    (tmp_path / "cat").mkdir()
    Image.fromarray(pixels).save(tmp_path / "cat" / "1.png")
    values = load(spec(tmp_path, (1, 2, 2)), "train").values.float()
    # Without antialiasing a checkerboard becomes black or white; off centre it becomes dark.
    assert float((values - 127.5).abs().max()) < 40


def test_pictures_of_any_mode_are_converted(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    for number, mode in enumerate(("L", "RGBA", "P", "1")):
        Image.new(mode, (5, 5)).save(tmp_path / "cat" / f"{number}.png")
    assert load(spec(tmp_path), "train").values.shape == (4, 3, 4, 4)


@pytest.mark.parametrize("shape", [(3, 5, 4), (1, 7, 7), (1, 28, 28)])
def test_order_and_pixels_are_those_of_torchvision(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """A ledger's fingerprint of records depends on both."""
    random = np.random.default_rng(3)
    names = ("owl/b.png", "cat/10.PNG", "cat/9.jpeg", "cat/deep/1.bmp", "dog/a.png", "dog/z.tif")
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        size = tuple(random.integers(3, 40, 2))
        pixels = random.integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    expected = []
    for name, _ in ImageFolder(str(tmp_path)).samples:
        opened = Image.open(name).convert({1: "L", 3: "RGB"}[shape[0]])
        scale = max(shape[1] / opened.height, shape[2] / opened.width)
        size = [math.ceil(opened.height * scale - 1e-9), math.ceil(opened.width * scale - 1e-9)]
        resized = functional.resize(opened, size, antialias=True)
        expected.append(functional.pil_to_tensor(functional.center_crop(resized, list(shape[1:]))))
    data = load(spec(tmp_path, shape), "train")
    assert torch.equal(data.values, torch.stack(expected))
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 2]


def test_messages(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"image_folder needs data\.root"):
        load(spec(None), "train")
    with pytest.raises(ConfigError, match=r"1 or 3 channels, height, width\), got \(2, 4, 4\)"):
        load(spec(tmp_path, (2, 4, 4)), "train")
    with pytest.raises(DataError, match=r"nowhere is not a folder; correct the path"):
        load(spec(tmp_path / "nowhere"), "train")
    with pytest.raises(DataError, match=r"holds no pictures; expected one folder per class"):
        load(spec(tmp_path), "train")
    picture(tmp_path / "cat" / "1.png", (1, 1, 1))
    with pytest.raises(DataError, match=r"has no test split; put the pictures into .*/train and"):
        load(spec(tmp_path), "test")
    (tmp_path / "cat" / "2.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"cat/2\.png is not a readable picture"):
        load(spec(tmp_path), "train")
    (tmp_path / "fox").mkdir()
    with pytest.raises(DataError, match=r"the folder 'fox', which is not in .* \(cat, dog, owl\)"):
        load(spec(tmp_path), "train")


def test_a_folder_with_only_one_split_says_which_is_missing(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "cat" / "1.png", (9, 9, 9))
    assert load(spec(tmp_path), "train").labels.tolist() == [0]
    with pytest.raises(DataError, match=r"has a folder train and none for the test split: put its"):
        load(spec(tmp_path), "test")
    (tmp_path / "train").rename(tmp_path / "test")
    assert load(spec(tmp_path, classes=("cat",)), "test").labels.tolist() == [0]
    with pytest.raises(DataError, match=r"has a folder test and none for the train split: put its"):
        load(spec(tmp_path, classes=("cat",)), "train")


@pytest.mark.parametrize("name", ["train", "test"])
def test_a_class_may_have_the_name_of_a_split(tmp_path: Path, name: str) -> None:
    picture(tmp_path / name / "1.png", (9, 9, 9))
    picture(tmp_path / "car" / "1.png", (9, 9, 9))
    assert load(spec(tmp_path, classes=("car", name)), "train").labels.tolist() == [0, 1]
    with pytest.raises(DataError, match=rf"the folder '{name}', which is not in data\.classes"):
        load(spec(tmp_path, classes=("car", "bus")), "train")


@pytest.mark.parametrize("name", ["Train", "training", "val", "Validation", "TEST"])
def test_a_split_by_another_name_is_not_advised_to_be_a_class(tmp_path: Path, name: str) -> None:
    picture(tmp_path / name / "cat" / "1.png", (9, 9, 9))
    with pytest.raises(DataError, match=r"no split \(that would be .*/t(rain|est), so rename it\)"):
        load(spec(tmp_path), "train")


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("typed", ["NFC", "NFD"])
def test_accents_are_the_same_however_they_are_encoded(
    tmp_path: Path, form: Literal["NFC", "NFD"], typed: Literal["NFC", "NFD"]
) -> None:
    """macOS decomposes accents in names of folders, and keyboards type them composed."""
    picture(tmp_path / unicodedata.normalize(form, "été") / "1.png", (9, 9, 9))
    data = load(spec(tmp_path, classes=("chat", unicodedata.normalize(typed, "été"))), "train")
    assert data.labels.tolist() == [1]
    assert data.slots is not None
    assert data.slots.tolist() == [number_of("1.png")]


def test_what_reading_changes_is_noted(tmp_path: Path) -> None:
    def noted(shape: tuple[int, ...], *pictures: tuple[str, tuple[int, int]]) -> list[str]:
        root = Path(tempfile.mkdtemp(dir=tmp_path))
        (root / "cat").mkdir()
        for number, (mode, size) in enumerate(pictures):
            Image.new(mode, size).save(root / "cat" / f"{number}.png")
        load(spec(root, shape), "train")
        said = [text.replace(f"{root}/", "") for text in notes(spec(root, shape))]
        return [text for text in said if "bit by bit" not in text]

    exact = ("RGB", (6, 4))
    assert noted((3, 4, 6), exact, exact) == []
    assert noted((1, 4, 6), ("L", (6, 4))) == []
    assert noted((3, 6, 4), exact, exact, exact) == [
        "All pictures are of another size than data.shape says (4 wide, 6 high), most often 6 wide "
        "and 4 high: scaled until it is covered, and cropped at the centre, which cuts off up to "
        "56 %. data.shape is [channels,height,width]: theirs is [3,4,6]."
    ]
    (same,) = noted((3, 4, 6), exact, exact, ("RGB", (12, 8)))
    assert same == (
        "1 of 3 pictures is of another size than data.shape says (6 wide, 4 high), most often 12 "
        "wide and 8 high: scaled until it is covered, and cropped at the centre."
    )
    assert noted((1, 4, 6), exact, ("L", (6, 4))) == ["1 of 2 pictures is in colour, made grey."]
    assert noted((3, 4, 6), ("L", (6, 4))) == [
        "The one picture is grey, stored in three equal channels."
    ]
    assert noted((1, 4, 6), ("I;16", (6, 4))) == [
        "The one picture is of more than 8 bits, scaled to 8 from the whole range of their type, "
        "or of data.range."
    ]
    assert noted((3, 4, 6), exact, ("RGBA", (6, 4))) == [
        "1 of 2 pictures is transparent, which is dropped."
    ]
    assert noted((3, 4, 4), ("RGB", (4, 4)), ("RGB", (81, 81)))[1:] == [
        "The largest picture is 81×81, far over 4×4: cat/1.png."
    ]
    assert len(noted((3, 4, 4), ("RGB", (4, 4)), ("RGB", (80, 80)))) == 1


def test_a_vast_picture_is_read_without_a_warning_and_one_too_vast_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    picture(tmp_path / "cat" / "1.png", (9, 9, 9), (15, 10))
    assert len(load(spec(tmp_path), "train")) == 1
    assert not recwarn
    picture(tmp_path / "cat" / "2.png", (9, 9, 9), (15, 15))
    with pytest.raises(
        DataError, match=r"cat/2\.png has too many pixels to be read; make it small"
    ):
        load(spec(tmp_path, (3, 4, 5)), "train")
