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
    """Returns the accuracy on the real test set of each classifier, trained only on `data`.

    All classifiers are finished before the test set is scored once, so it selects nothing: not the
    epoch, not a hyper-parameter, not a classifier (mathematics.md, section 5; DPImageBench). The
    `origin` "real training" gives the column beside a result, which is not private and belongs to
    benchmarks on public data. `size` images are drawn without replacement, to compare like with
    like. The same seed gives the same figures on one machine with one number of threads.
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
