"""Two types of labelled images: what classifiers are fitted to, and what judges finished ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedsink.errors import DataError
from fedsink.evaluation.labelled import (
    Classifier,
    Labelled,
    Report,
    Trainer,
    check_labelled,
    check_trainable,
)

Origin = Literal["synthetic", "real training", "class mean"]

OVERLAP = 0.1
"""Share of training images that are bit by bit held-out ones, above which it is a mistake."""


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Labelled images that classifiers may be fitted to: synthetic ones, and the columns beside.

    Guarantees:
        `fit_classifiers` takes no other type.

    Attributes:
        images: (N, C, H, W) in [0, 1], float32.
        labels: (N,) in 0..classes-1, int64.
        classes: number of classes.
        origin: who made them; "real training" and "class mean" are the ceiling and the floor.
    """

    images: Tensor
    labels: Tensor
    classes: int
    origin: Origin

    @classmethod
    def of(cls, data: Labelled, *, classes: int, origin: Origin) -> TrainingSet:
        """Check the images and wrap them.

        Raises:
            DataError: shapes, labels or sizes that do not fit, or fewer than 10 images.
            ModelError: images that are not finite.
        """
        return cls(*check_trainable(data, classes=classes, name=origin), classes, origin)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def cut(self, size: int, seed: int) -> TrainingSet:
        """Return `size` images drawn without replacement; all of them when there are no more."""
        if size >= len(self):
            return self
        rows = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))[:size]
        return TrainingSet(self.images[rows], self.labels[rows], self.classes, self.origin)


class HeldOut:
    """The real test set: a reference for distances, and the judge of finished classifiers.

    Guarantees:
        `fit_classifiers` refuses it.
        Its labels leave it only as the accuracy of a finished classifier.
        A training set that holds its images is refused.
    """

    def __init__(self, data: Labelled, *, classes: int) -> None:
        """Check and keep real images (M, C, H, W) and labels (M,).

        Raises:
            DataError: shapes or labels that do not fit.
        """
        self.images, self._labels = check_labelled(data, classes=classes, name="test")

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)

    def score(self, classifier: Classifier) -> float:
        """Return the accuracy `1/M Σ_i 1[classifier(x_i) = y_i]` of a finished classifier."""
        return float((classifier(self.images) == self._labels).double().mean())

    def refuse_overlap(self, training: TrainingSet) -> None:
        """Refuse a training set of another shape, or one with held-out images among its own.

        A few equal images occur (data sets hold duplicates, and a collapsed generator may draw a
        blank one); a tenth of them is the wrong split.

        Raises:
            DataError: it says which of the two.
        """
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
                "set: classifiers must not be fitted to what they are tested on; pass the "
                "generator's images or the training split."
            )


def fit_classifiers(
    training: TrainingSet,
    trainers: Mapping[str, Trainer],
    *,
    seed: int,
    report: Report | None = None,
) -> dict[str, Classifier]:
    """Fit every classifier to `training` alone.

    Early stopping and all other choices see a part of `training` (mathematics.md, section 5).

    Raises:
        TypeError: `training` is not a `TrainingSet`, for instance a `HeldOut`.
    """
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
