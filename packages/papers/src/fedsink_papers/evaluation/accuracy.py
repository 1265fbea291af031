"""Accuracies of a generator's classifiers in three columns, and calibrated by real images."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

from fedsink.reporting.displays import duration
from fedsink.results.evaluation.downstream import FLOOR_IMAGES, scores
from fedsink.results.evaluation.sets import (
    ClassifierTrainer,
    HeldOut,
    Report,
    TrainingSet,
    class_mean_set,
)
from fedsink_papers.evaluation.columns import Columns, Draw, Figure, Spread


def accuracy_figures(
    synthetic: Draw,
    real: TrainingSet | None,
    held_out: HeldOut,
    trainers: Mapping[str, ClassifierTrainer],
    *,
    seeds: Sequence[int],
    size: int,
    report: Report | None = None,
) -> dict[str, Figure]:
    """Returns every classifier's accuracy on the real test set as "accuracy/NAME", a run per seed.

    A run draws a training set of `size`, fits all classifiers to it, and scores each once when all
    are finished. The ceiling is fitted to equally many real training images (as far as there are
    that many), the floor to class means of the real training images; `real=None` leaves both out.

    Raises:
        DataError: a training set of another shape, or one that holds test images.
    """
    spent: list[float] = []
    sets = len(seeds) * (1 if real is None else 2)  # and class means, which are few

    def measure(training: TrainingSet, seed: int) -> dict[str, float]:
        held_out.refuse_overlap(training)
        place = f"{training.origin} images, seed {seed}"
        if spent and (rest := sets - len(spent)) > 0:
            place += f" (about {duration(rest * statistics.fmean(spent))} left from here)"
        started = time.monotonic()
        told = None if report is None else lambda text: report(f"{place}: {text}")
        found = scores(training, held_out, trainers, seed, told)
        spent.append(time.monotonic() - started)
        return {f"accuracy/{name}": score for name, score in found.items()}

    columns = Columns(synthetic)
    if real is not None:
        floor = class_mean_set(real, min(size, FLOOR_IMAGES))
        columns = Columns(synthetic, real.cut, lambda size, seed: floor)
    names = [f"accuracy/{name}" for name in trainers]
    return columns.measure(measure, seeds=seeds, size=size, fractions=names, report=report)


def calibrated(figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """Returns "calibrated/NAME" of "accuracy/NAME", "accuracy/mean" and "calibrated/mean".

    The calibrated accuracy of a classifier c is `a_synthetic(c) / a_real(c)` (Chen et al. 2020),
    with the mean of the real column. The means are over the classifiers, run by run.
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
    scaled = {
        column: Spread(tuple(factor * value for value in spread.values), spread.size)
        for column, spread in figure.columns.items()
    }
    return Figure(**scaled, fraction=figure.fraction)


def _mean(figures: Sequence[Figure]) -> Figure:
    means = {}
    for column in figures[0].columns:
        spreads = [figure.columns[column] for figure in figures]
        runs = zip(*(spread.values for spread in spreads), strict=True)
        size = min(spread.size for spread in spreads)
        means[column] = Spread(tuple(statistics.fmean(run) for run in runs), size)
    return Figure(**means, fraction=True)
