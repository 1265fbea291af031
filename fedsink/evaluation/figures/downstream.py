"""Accuracies over several runs, with the ceiling of real images and the floor of class means."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from fedsink.evaluation.classifiers.class_means import class_mean_set
from fedsink.evaluation.figures.columns import Columns, Draw, Figure, Spread
from fedsink.evaluation.labelled import Report, Trainer
from fedsink.evaluation.sets import HeldOut, TrainingSet, fit_classifiers

FLOOR_IMAGES = 100
"""Class means are few: more copies of them teach nothing and take their time."""


def accuracy_figures(
    synthetic: Draw,
    real: TrainingSet | None,
    held_out: HeldOut,
    trainers: Mapping[str, Trainer],
    *,
    seeds: Sequence[int],
    size: int,
    report: Report | None = None,
) -> dict[str, Figure]:
    """Accuracy on the real test set of every classifier, over one run per seed.

    A run draws a training set, fits all classifiers to it, and scores each once when all are
    finished. The ceiling is fitted to equally many real training images (as far as there are
    that many), the floor to class means of the real training images.

    Args:
        synthetic: draws the synthetic images.
        real: real training images; None leaves ceiling and floor out.
        held_out: the real test set.
        trainers: classifiers by name.
        seeds: one per run: of the drawn images, the hold-out, the weights and the batches.
        size: images to fit to.
        report: receives lines of text.

    Returns:
        A figure per classifier under "accuracy/NAME".

    Raises:
        DataError: a training set of another shape, or one that holds test images.
    """

    def measure(training: TrainingSet, seed: int) -> dict[str, float]:
        held_out.refuse_overlap(training)
        finished = fit_classifiers(training, trainers, seed=seed, report=report)
        return {
            f"accuracy/{name}": held_out.score(classifier) for name, classifier in finished.items()
        }

    columns = Columns(synthetic)
    if real is not None:
        floor = class_mean_set(real, min(size, FLOOR_IMAGES))
        columns = Columns(synthetic, real.cut, lambda size, seed: floor)
    names = [f"accuracy/{name}" for name in trainers]
    return columns.measure(measure, seeds=seeds, size=size, shares=names, report=report)


def calibrated(figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """Calibrated accuracy, synthetic-trained ÷ mean real-trained, and means over the classifiers.

    `a_synthetic(c) / a_real(c)` for every classifier c (Chen et al. 2020), and the mean over
    classifiers of both accuracy and ratio, run by run.

    Args:
        figures: "accuracy/NAME" with a real column.

    Returns:
        "calibrated/NAME", "accuracy/mean" and "calibrated/mean".
    """
    ceilings = {
        name: figure.real.mean
        for name, figure in figures.items()
        if figure.real is not None and figure.real.mean > 0
    }
    ratios = {
        name.replace("accuracy/", "calibrated/"): _scaled(figures[name], 1 / ceiling)
        for name, ceiling in ceilings.items()
    }
    return {
        **ratios,
        "accuracy/mean": _mean([figures[name] for name in ceilings]),
        "calibrated/mean": _mean(list(ratios.values())),
    }


def _scaled(figure: Figure, factor: float) -> Figure:
    def scaled(spread: Spread) -> Spread:
        return Spread(tuple(factor * value for value in spread.values), spread.size)

    return Figure(
        scaled(figure.synthetic),
        figure.real and scaled(figure.real),
        figure.class_means and scaled(figure.class_means),
        figure.share,
    )


def _mean(figures: Sequence[Figure]) -> Figure:
    def mean(spreads: Sequence[Spread | None]) -> Spread:
        columns = [spread for spread in spreads if spread is not None]
        values = zip(*(spread.values for spread in columns), strict=True)
        return Spread(
            tuple(statistics.fmean(value) for value in values),
            min(spread.size for spread in columns),
        )

    return Figure(
        mean([figure.synthetic for figure in figures]),
        mean([figure.real for figure in figures]),
        mean([figure.class_means for figure in figures]),
        share=True,
    )
