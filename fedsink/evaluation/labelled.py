"""Labelled images as the classifiers take them, and checks before hours are spent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from fedsink.errors import DataError, ModelError

Labelled: TypeAlias = tuple[Tensor, Tensor]
"""Images (N, C, H, W) in [0, 1] and their labels (N,) in 0..classes-1."""

Classifier: TypeAlias = Callable[[Tensor], Tensor]
"""Images (N, C, H, W) to predicted labels (N,)."""

Report: TypeAlias = Callable[[str], None]
"""Receives one short line of text at a time, for instance after every epoch."""


class Trainer(Protocol):
    """Learns a classifier from labelled images; it is never shown a test set."""

    def __call__(
        self, images: Tensor, labels: Tensor, *, classes: int, seed: int, report: Report | None
    ) -> Classifier:
        """Return the classifier learnt from images (N, C, H, W) and labels (N,)."""
        ...


MINIMUM_IMAGES = 10


def check_labelled(data: Labelled, *, classes: int, name: str) -> Labelled:
    """Check labelled images and return them as (float32, int64) tensors on the CPU.

    Args:
        data: images (N, C, H, W), labels (N,).
        classes: number of classes C; labels lie in 0..C-1.
        name: how messages call the set, for instance "synthetic".

    Raises:
        DataError: wrong shape, label type or label range, or no images.
        ModelError: images that are not finite, which is what a diverged generator draws.
    """
    images, labels = data
    if classes < 2:
        raise DataError(f"Classifiers need at least 2 classes; received classes={classes}.")
    if images.ndim != 4 or images.shape[0] == 0:
        raise DataError(
            f"The {name} images must have shape (N, C, H, W) with N > 0; "
            f"received {tuple(images.shape)}: points have no classifier, use sliced_w2 or exact_w2."
        )
    if labels.shape != images.shape[:1]:
        raise DataError(
            f"The {name} set must have one label per image; received {images.shape[0]} images "
            f"and labels of shape {tuple(labels.shape)}."
        )
    if labels.dtype.is_floating_point or labels.dtype.is_complex or labels.dtype == torch.bool:
        raise DataError(f"The {name} labels must be integers; received dtype {labels.dtype}.")
    images = images.detach().to("cpu", torch.float32)
    labels = labels.detach().to("cpu", torch.int64)
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise DataError(
            f"The {name} labels must lie in 0..{classes - 1}; received labels from {low} to {high}."
        )
    if not bool(torch.isfinite(images).all()):
        raise ModelError(
            f"The {name} images hold values that are not finite; the generator diverged, "
            "so train it again with a smaller learning rate."
        )
    return images, labels


def check_trainable(data: Labelled, *, classes: int, name: str) -> Labelled:
    """Check labelled images as `check_labelled` does, and that there are enough to hold some out.

    Raises:
        DataError: also when there are fewer than 10 images.
    """
    images, labels = check_labelled(data, classes=classes, name=name)
    if images.shape[0] < MINIMUM_IMAGES:
        raise DataError(
            f"Training a classifier needs at least {MINIMUM_IMAGES} {name} images; "
            f"received {images.shape[0]}: generate more."
        )
    return images, labels
