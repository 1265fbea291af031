"""Downstream utility: accuracy on real images of classifiers trained on synthetic ones."""

from __future__ import annotations

import torch

from fedsink.errors import DataError
from fedsink.evaluation.classifiers.cnn import train_cnn
from fedsink.evaluation.classifiers.logreg import train_logreg
from fedsink.evaluation.classifiers.mlp import train_mlp
from fedsink.evaluation.labelled import (
    Classifier,
    Labelled,
    Report,
    Trainer,
    check_labelled,
    check_trainable,
)
from fedsink.evaluation.threads import limit_threads

TRAINERS: dict[str, Trainer] = {"logreg": train_logreg, "mlp": train_mlp, "cnn": train_cnn}


def accuracies(
    synthetic: Labelled,
    test: Labelled,
    *,
    classes: int,
    seed: int,
    threads: int | None = None,
    progress: Report | None = None,
) -> dict[str, float]:
    """Accuracy on the real test set of three classifiers trained on synthetic images only.

    All classifiers are finished before the test set is scored once, so it selects nothing: not the
    epoch, not a hyper-parameter, not a classifier (mathematics.md, section 5; DPImageBench).

    Args:
        synthetic: images (N, C, H, W) in [0, 1] and labels (N,), N >= 10; the only training data.
        test: real images (M, C, H, W) and labels (M,).
        classes: number of classes.
        seed: of hold-outs, weights, batches and dropout; the same seed gives the same figures
            on one machine with one number of threads. The global generators are left alone.
        threads: processor threads to use; None for the libraries' own choice.
        progress: receives a short line after each epoch.

    Returns:
        Accuracies in [0, 1] under the keys logreg, mlp and cnn.

    Raises:
        DataError: shapes, labels or sizes that do not fit.
        ModelError: synthetic images that are not finite.
        ValueError: threads below 1.
    """
    images, labels = check_trainable(synthetic, classes=classes, name="synthetic")
    test = check_labelled(test, classes=classes, name="test")
    if images.shape[1:] != test[0].shape[1:]:
        raise DataError(
            f"Synthetic and test images must have the same shape; received "
            f"{tuple(images.shape[1:])} and {tuple(test[0].shape[1:])}: "
            "evaluate against the dataset the generator was trained for."
        )
    with limit_threads(threads):
        finished = {
            name: train(images, labels, classes=classes, seed=seed, report=progress)
            for name, train in TRAINERS.items()
        }
        return {name: score(classifier, test) for name, classifier in finished.items()}


def score(classifier: Classifier, test: Labelled) -> float:
    """Accuracy `1/M Σ_i 1[classifier(x_i) = y_i]` of a finished classifier, in [0, 1].

    The only function of this package that reads test labels.
    """
    images, labels = test
    return float((classifier(images) == labels).double().mean())


def real_reference(
    train: Labelled,
    test: Labelled,
    *,
    classes: int,
    seed: int,
    size: int | None = None,
    threads: int | None = None,
    progress: Report | None = None,
) -> dict[str, float]:
    """The same figures for classifiers trained on real images: the column beside each result.

    Not private: it reads the real training images without any noise, so it belongs to benchmarks
    on public data.

    Args:
        train: real images (N, C, H, W) and labels (N,).
        test: real images and labels that are not among them.
        classes: number of classes.
        seed: as in `accuracies`; also draws the `size` images.
        size: train on this many images drawn without replacement, to compare like with like;
            None, or a size of at least N, uses all.
        threads: as in `accuracies`.
        progress: as in `accuracies`.

    Returns:
        Accuracies in [0, 1] under the keys logreg, mlp and cnn.

    Raises:
        DataError: as in `accuracies`.
    """
    images, labels = train
    if size is not None and size < len(images):
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(images), generator=generator)[:size]
        images, labels = images[chosen], labels[chosen]
    return accuracies(
        (images, labels), test, classes=classes, seed=seed, threads=threads, progress=progress
    )
