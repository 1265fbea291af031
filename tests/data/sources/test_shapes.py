from __future__ import annotations

import pytest
import torch

from fedsink.conf.acting import compose_config
from fedsink.data.sources import forget, load
from fedsink.data.sources.shapes import CLASSES, FORMS
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError


def spec(
    shape: tuple[int, ...] = (3, 32, 32), classes: tuple[str, ...] = CLASSES, name: str = "shapes"
) -> DataSpec:
    return DataSpec(name, shape, classes, 20_000)


@pytest.mark.medium
def test_the_pictures_are_the_same_every_time() -> None:
    """A later version must not change the pictures: published figures are figures on them."""
    test = load(spec(), "test")
    assert test.values.shape == (4000, 3, 32, 32)
    assert test.values.dtype == torch.uint8
    assert test.labels.tolist() == 400 * list(range(10))
    means = test.values[:4].float().mean((2, 3)).flatten()
    torch.testing.assert_close(means, torch.tensor(MEANS), rtol=0, atol=0.1)
    forget()
    assert torch.equal(load(spec(), "test").values, test.values)


MEANS = [100.1, 72.9, 65.3, 38.7, 51.0, 108.6, 59.9, 40.5, 32.6, 63.6, 117.5, 111.1]


@pytest.mark.slow
def test_training_and_test_pictures_are_others() -> None:
    train, test = load(spec(), "train"), load(spec(), "test")
    assert len(train) == 20_000
    nearest = torch.cdist(test.values[:50].flatten(1).float(), train.values.flatten(1).float())
    assert float(nearest.min()) > 100.0  # in grey levels: only the pixels' noise is 400


def test_both_colour_and_form_tell_classes_apart() -> None:
    data = load(spec(), "test")
    images, labels = data.take(torch.arange(len(data)))
    warmth = images[:, 0].amax((1, 2)) - images[:, 2].amax((1, 2))
    warm = warmth > 0.0
    assert float((warm == (labels % 2 == 0)).float().mean()) > 0.98
    area = (images.amax(1) > 0.6).float().mean((1, 2))
    by_form = [float(area[labels // 2 == form].mean()) for form in range(len(FORMS))]
    assert by_form[FORMS.index("square")] > 1.2 * by_form[FORMS.index("cross")]


@pytest.mark.medium
def test_the_configuration_describes_them() -> None:
    described = compose_config(["data=shapes"])["data"]
    assert described["classes"] == list(CLASSES)
    assert described["nominal_records"] == len(load(spec(), "train"))


def test_other_sizes() -> None:
    assert load(spec((3, 16, 24)), "test").values.shape == (4000, 3, 16, 24)


@pytest.mark.medium
def test_other_classes_have_other_pictures() -> None:
    """Public shapes share no draw with private ones: no place, size, hue or ground."""
    names = ("cool star", *CLASSES[1:])
    (images, labels), (others, same) = (
        load(spec(classes=classes), "test").take(torch.arange(2000)) for classes in (CLASSES, names)
    )
    assert torch.equal(labels, same)
    corners = [batch[:, :, 0, 0] for batch in (images, others)]  # of the grounds
    assert float((corners[0] - corners[1]).abs().mean()) > 0.1
    correlation = torch.corrcoef(torch.stack([corner.flatten() for corner in corners]))[0, 1]
    assert abs(float(correlation)) < 5.0 / 2000**0.5
    two = load(spec(classes=("cool ring", "warm crescent")), "test")
    warmth = two.values[:, 0].amax((1, 2)).int() - two.values[:, 2].amax((1, 2)).int()
    assert float(((warmth > 0) == (two.labels == 1)).float().mean()) > 0.98


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (spec((1, 32, 32)), "3 channels"),
        (spec((2,)), "3 channels"),
        (spec(classes=("warm", "cool")), "no class 'warm': .*warm, cool.*disc, .*crescent"),
    ],
)
def test_messages(wrong: DataSpec, said: str) -> None:
    with pytest.raises(ConfigError, match=f"shapes .*{said}"):
        load(wrong)
