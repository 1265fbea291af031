"""Class means of real images, the floor of every figure."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsink.evaluation.figures.nearest import nearest
from fedsink.evaluation.labelled import Classifier, Report
from fedsink.evaluation.sets import TrainingSet


def class_means(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean image of every class that occurs, (K, C, H, W), and the K classes."""
    present = labels.unique()
    means = torch.stack([images[labels == c].double().mean(dim=0) for c in present])
    return means.to(images.dtype), present


def class_mean_set(training: TrainingSet, n: int) -> TrainingSet:
    """Images of a generator that emits the class means of `training`: n, classes in turn.

    It knows one image per class and nothing of the variation within; figures that it also reaches
    say nothing about a generator.
    """
    means, present = class_means(training.images, training.labels)
    index = torch.arange(n) % len(present)
    return TrainingSet(means[index], present[index], training.classes, "class mean")


def train_nearest_class_mean(
    images: Tensor, labels: Tensor, *, classes: int, seed: int, report: Report | None = None
) -> Classifier:
    """Predict the class with the nearest mean, `argmin_c ‖x − x̄_c‖₂`.

    The least that labelled pictures can teach; nothing is held out and nothing is drawn.

    Args:
        images: training images (N, C, H, W).
        labels: their labels (N,); a class that does not occur is never predicted.
        classes: unused.
        seed: unused.
        report: receives one line.
    """
    means, present = class_means(images, labels)
    if report is not None:
        report(f"nearest class mean: {len(present)} classes")

    def classify(new_images: Tensor) -> Tensor:
        _, index = nearest(new_images.flatten(1), means.flatten(1))
        return present[index[:, 0]]

    return classify
