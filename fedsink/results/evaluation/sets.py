"""Labelled images of two types: one that classifiers are fitted to, one that judges them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from fedsink.errors import DataError, ModelError

Labelled: TypeAlias = tuple[Tensor, Tensor]
"""Images (N, C, H, W) in [0, 1] and their labels (N,) in 0..classes-1."""

Classifier: TypeAlias = Callable[[Tensor], Tensor]
"""Images (N, C, H, W) to predicted labels (N,)."""

Report: TypeAlias = Callable[[str], None]
"""Receives one short line of text at a time, for instance after every epoch."""

Origin = Literal["synthetic", "real training", "class mean"]

MINIMUM_IMAGES = 10

OVERLAP = 0.1
"""Share of training images that are bit by bit held-out images, above which it is a mistake."""


class ClassifierTrainer(Protocol):
    """Learns a classifier from labelled images; it is never shown a test set."""

    def __call__(
        self, images: Tensor, labels: Tensor, *, classes: int, seed: int, report: Report | None
    ) -> Classifier:
        """Returns the classifier learnt from images and labels.

        Args:
            images: training images (N, C, H, W) in [0, 1].
            labels: their labels (N,); a class that does not occur is never predicted.
            classes: number of classes.
            seed: the seed of everything that is drawn: hold-out, weights, batches, dropout.
            report: receives a line after each epoch, or one in all.
        """
        ...


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Labelled images that classifiers may be fitted to: synthetic ones, and both references.

    Guarantees:
        `fit_classifiers` takes no other type.
    """

    images: Tensor  # (N, C, H, W) in [0, 1], float32
    labels: Tensor  # (N,) in 0..classes-1, int64
    classes: int
    origin: Origin  # maker of the images; "real training" is the ceiling, "class mean" the floor

    @classmethod
    def of(cls, data: Labelled, *, classes: int, origin: Origin) -> TrainingSet:
        """Checks the images, of which there must be ten, and wraps them."""
        images, labels = check_labelled(data, classes=classes, name=origin)
        if len(images) < MINIMUM_IMAGES:
            raise DataError(
                f"Training a classifier needs at least {MINIMUM_IMAGES} {origin} images; "
                f"received {len(images)}: "
                + ("draw more." if origin == "synthetic" else "leave it out (reference=false).")
            )
        return cls(images, labels, classes, origin)

    def __len__(self) -> int:
        return len(self.labels)

    def cut(self, size: int, seed: int) -> TrainingSet:
        """Returns `size` images drawn without replacement; all images when there are fewer."""
        return self if size >= len(self) else self.at(shuffled(len(self), seed)[:size])

    def at(self, rows: Tensor) -> TrainingSet:
        """Returns the images at `rows` with their labels."""
        return TrainingSet(self.images[rows], self.labels[rows], self.classes, self.origin)


class HeldOut:
    """The real test set: a reference for distances, and the judge of finished classifiers.

    Guarantees:
        `fit_classifiers` refuses it.
        Its labels leave it only as the accuracy of a finished classifier.
        A training set is refused if more than a tenth of it are its images.
    """

    def __init__(self, data: Labelled, *, classes: int) -> None:
        """Checks and keeps real images (M, C, H, W) and labels (M,)."""
        self.images, self._labels = check_labelled(data, classes=classes, name="test")

    def __len__(self) -> int:
        return len(self.images)

    def score(self, classifier: Classifier) -> float:
        """Returns the accuracy `1/M Σ_i 1[classifier(x_i) = y_i]` of a finished classifier."""
        return float((classifier(self.images) == self._labels).double().mean())

    def refuse_overlap(self, training: TrainingSet) -> None:
        """Refuses a training set of another shape, or one that holds the held-out images."""
        # A few equal images occur (data sets hold duplicates, and a collapsed generator may draw a
        # blank one); a tenth of them is the wrong split.
        if training.images.shape[1:] != self.images.shape[1:]:
            raise DataError(
                f"Images of the {training.origin} set and of the test set must have the same "
                f"shape; received {tuple(training.images.shape[1:])} and "
                f"{tuple(self.images.shape[1:])}: evaluate against the dataset the generator was "
                "trained for."
            )
        test_images = {image.numpy().tobytes() for image in self.images}
        shared = sum(image.numpy().tobytes() in test_images for image in training.images)
        if shared > OVERLAP * len(training):
            raise DataError(
                f"{shared} of the {len(training)} {training.origin} images are images of the test "
                "set: classifiers must not be fitted to the images that test them; pass the "
                "generator's images or the training split."
            )


def fit_classifiers(
    training: TrainingSet,
    trainers: Mapping[str, ClassifierTrainer],
    *,
    seed: int,
    report: Report | None = None,
) -> dict[str, Classifier]:
    """Fits every classifier only to `training`."""
    # Early stopping and all other choices see a part of `training` (mathematics.md, section 5). The
    # trainers of `classifiers=dpimagebench` hold real validation images and see noised counts.
    if not isinstance(training, TrainingSet):
        raise TypeError(
            f"Classifiers are fitted to a TrainingSet; received {type(training).__name__}. "
            "Real test images are for HeldOut.score."
        )
    return {
        name: train(
            training.images, training.labels, classes=training.classes, seed=seed, report=report
        )
        for name, train in trainers.items()
    }


def class_means(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the mean image of every class that occurs, (K, C, H, W), and the K classes."""
    present = labels.unique()
    means = torch.stack([images[labels == c].double().mean(dim=0) for c in present])
    return means.to(images.dtype), present


def class_mean_set(training: TrainingSet, n: int) -> TrainingSet:
    """Returns n images of a generator that emits the class means of `training`, classes in turn."""
    # It is the floor of every figure: it knows one image per class and nothing of the variation
    # within, so figures that it also reaches say nothing about a generator.
    means, present = class_means(training.images, training.labels)
    index = torch.arange(n) % len(present)
    return TrainingSet(means[index], present[index], training.classes, "class mean")


def shuffled(n: int, seed: int) -> Tensor:
    """Returns the numbers 0..n-1 in an order that `seed` draws; no global generator moves."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def check_labelled(data: Labelled, *, classes: int, name: str) -> Labelled:
    """Checks labelled images and returns them as (float32, int64) tensors on the CPU."""
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
        if name != "synthetic":
            raise DataError(f"The {name} images hold values that are not finite: replace them.")
        raise ModelError(
            "The synthetic images hold values that are not finite; the generator diverged, "
            "so train it again with a smaller learning rate."
        )
    return images, labels
