from __future__ import annotations

import pytest
import torch

from fedsink.conf.acting import compose_config
from fedsink.data.sources import forget, glyphs, load
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError, DataError

DIGITS = tuple("0123456789")


def spec(shape: tuple[int, ...] = (1, 28, 28), classes: tuple[str, ...] = DIGITS) -> DataSpec:
    return DataSpec("glyphs", shape, classes, 20_000)


@pytest.mark.medium
def test_the_pictures_are_the_same_every_time() -> None:
    test = load(spec(), "test")
    assert test.values.shape == (4000, 1, 28, 28)
    assert test.values.dtype == torch.uint8
    assert test.labels.tolist() == 400 * list(range(10))
    forget()
    assert torch.equal(load(spec(), "test").values, test.values)
    few = load(spec(classes=("0", "1")), "test")
    assert not torch.equal(few.values, test.values)


@pytest.mark.medium
def test_classes_are_told_apart_and_pictures_of_one_differ() -> None:
    train, test = load(spec(), "test"), load(spec((1, 14, 14)), "test")
    pixels = train.values.flatten(1).float()
    nearest = torch.cdist(pixels[:500], pixels[500:]).argmin(1)
    assert float((train.labels[500:][nearest] == train.labels[:500]).float().mean()) > 0.7
    assert len(pixels.unique(dim=0)) == len(pixels)
    assert 0.08 < float(pixels.mean()) / 255 < 0.25  # ink on black, as MNIST's .13
    assert test.values.shape == (4000, 1, 14, 14)


@pytest.mark.medium
def test_a_class_holds_all_of_its_characters() -> None:
    both = load(spec(classes=("Il", "O")), "test")
    ink = both.values[both.labels == 0].float().mean((0, 1))
    alone = [
        load(spec(classes=(name, "O")), "test").values[::2].float().mean((0, 1)) for name in "Il"
    ]
    for other in alone:
        assert float((ink - other).abs().max()) > 5.0  # grey levels
    torch.testing.assert_close(ink, sum(alone) / 2, rtol=0, atol=20.0)


@pytest.mark.medium
def test_colours_differ_and_other_sizes_keep_their_glyphs_central() -> None:
    colours = load(spec((3, 16, 24), ("A", "x")), "test")
    assert colours.values.shape == (4000, 3, 16, 24)
    images = colours.values.float()
    corners = images[:, :, 0, 0]
    assert float(corners.std(0).min()) > 50.0
    changed = (images - corners[..., None, None]).abs().sum(1).mean(0)
    across = (changed * torch.arange(24.0)).sum() / changed.sum()
    down = (changed.sum(1) * torch.arange(16.0)).sum() / changed.sum()
    assert float(across) == pytest.approx(11.5, abs=1.0)
    assert float(down) == pytest.approx(7.5, abs=1.0)


@pytest.mark.medium
def test_the_configuration_describes_them() -> None:
    described = compose_config(["data=glyphs"])["data"]
    assert "".join(described["classes"]) == glyphs.CHARACTERS
    assert described["nominal_records"] == glyphs.RECORDS["train"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (spec(classes=("0", "é")), "names 'é': name each class by its characters"),
        (spec(classes=("0", "O0")), "glyphs draws a character in one class"),
        (spec((2, 28, 28)), "pictures of 1 or 3 channels, got"),
        (spec((2,)), "pictures of 1 or 3 channels, got"),
    ],
)
def test_messages(wrong: DataSpec, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(wrong)


def test_fonts_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glyphs, "find_spec", lambda name: None)
    forget()
    with pytest.raises(DataError, match="the font DejaVuSans that matplotlib ships"):
        load(spec(classes=("7",)))
