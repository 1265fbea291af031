from __future__ import annotations

import pytest
import torch

from fedsink.errors import DataError, ModelError
from fedsink.evaluation.labelled import check_labelled, check_trainable

IMAGES = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(12) % 3


def test_returns_float32_images_and_int64_labels():
    images, labels = check_trainable((IMAGES.double(), LABELS.int()), classes=3, name="synthetic")
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64
    assert torch.equal(labels, LABELS)


def test_detaches_images_that_carry_a_gradient():
    images, _ = check_labelled((IMAGES.clone().requires_grad_(), LABELS), classes=3, name="test")
    assert not images.requires_grad


@pytest.mark.parametrize(
    ("images", "labels", "classes", "message"),
    [
        (IMAGES.flatten(1), LABELS, 3, r"test images must have shape \(N, C, H, W\).*\(12, 64\)"),
        (IMAGES[:0], LABELS[:0], 3, r"N > 0; received \(0, 1, 8, 8\)"),
        (IMAGES, LABELS[:5], 3, r"one label per image; received 12 images .*\(5,\)"),
        (IMAGES, LABELS.float(), 3, r"must be integers; received dtype torch.float32"),
        (IMAGES, LABELS, 2, r"must lie in 0\.\.1; received labels from 0 to 2"),
        (IMAGES, LABELS - 1, 3, r"must lie in 0\.\.2; received labels from -1 to 1"),
        (IMAGES, LABELS, 1, r"at least 2 classes; received classes=1"),
    ],
)
def test_says_what_does_not_fit(images, labels, classes, message):
    with pytest.raises(DataError, match=message):
        check_labelled((images, labels), classes=classes, name="test")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_diverged_generator_is_named_as_such(bad):
    images = IMAGES.clone()
    images[3, 0, 2, 2] = bad
    with pytest.raises(ModelError, match="synthetic images hold values that are not finite"):
        check_labelled((images, LABELS), classes=3, name="synthetic")


def test_too_few_images_to_hold_some_out():
    with pytest.raises(DataError, match="at least 10 synthetic images; received 9"):
        check_trainable((IMAGES[:9], LABELS[:9]), classes=3, name="synthetic")
