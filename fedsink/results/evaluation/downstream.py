"""Downstream utility: accuracy on real images of classifiers trained on synthetic ones."""

from __future__ import annotations

from collections.abc import Mapping

from fedsink.results.evaluation.classifiers import FAST
from fedsink.results.evaluation.networks import limit_threads
from fedsink.results.evaluation.sets import (
    ClassifierTrainer,
    HeldOut,
    Labelled,
    Origin,
    Report,
    TrainingSet,
    fit_classifiers,
)

FLOOR_IMAGES = 100
"""Class means are few: more copies of them teach nothing and take their time."""


def accuracies(
    data: Labelled,
    test: Labelled,
    *,
    classes: int,
    seed: int,
    origin: Origin = "synthetic",
    size: int | None = None,
    threads: int | None = None,
    progress: Report | None = None,
    trainers: Mapping[str, ClassifierTrainer] = FAST,
) -> dict[str, float]:
    """Returns the accuracy on the real test set of classifiers trained only on `data`.

    All classifiers are finished before the test set is scored once, so it selects nothing: not the
    epoch, not a hyper-parameter, not a classifier (mathematics.md, section 5; DPImageBench).

    Args:
        data: images (N, C, H, W) in [0, 1] and labels (N,), N >= 10.
        test: real images (M, C, H, W) and labels (M,).
        classes: number of classes.
        seed: the seed of everything that is drawn; the same seed gives the same figures on one
            machine with one number of threads.
        origin: the origin of `data`. "real training" gives the column beside a result; it is not
            private and belongs to benchmarks on public data.
        size: train on this many images drawn without replacement, to compare like with like;
            None, or a size of at least N, uses all.
        threads: processor threads to use; None for the libraries' choice.
        progress: receives a short line after each epoch.
        trainers: the classifiers by name.

    Returns:
        Accuracies in [0, 1] by the name of the classifier.

    Raises:
        DataError: shapes, labels or sizes that do not fit, or test images among `data`.
        ModelError: images that are not finite.
        ValueError: threads below 1.
    """
    training = TrainingSet.of(data, classes=classes, origin=origin)
    if size is not None:
        training = training.cut(size, seed)
    held_out = HeldOut(test, classes=classes)
    held_out.refuse_overlap(training)
    with limit_threads(threads):
        return scores(training, held_out, trainers, seed, progress)


def scores(
    training: TrainingSet,
    held_out: HeldOut,
    trainers: Mapping[str, ClassifierTrainer],
    seed: int,
    report: Report | None,
) -> dict[str, float]:
    """Returns each classifier's accuracy, scored once when all of them are finished."""
    finished = fit_classifiers(training, trainers, seed=seed, report=report)
    return {name: held_out.score(classifier) for name, classifier in finished.items()}
