"""Accuracies over several runs, with the ceiling of real images and the floor of class means."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial

from fedsink.evaluation.classifiers.class_means import class_mean_set, train_nearest_class_mean
from fedsink.evaluation.classifiers.cnn import train_cnn
from fedsink.evaluation.classifiers.logreg import train_logreg
from fedsink.evaluation.classifiers.mlp import train_mlp
from fedsink.evaluation.figures.columns import Columns, Draw
from fedsink.evaluation.figures.spread import Figure, Spread
from fedsink.evaluation.labelled import Report, Trainer
from fedsink.evaluation.sets import HeldOut, TrainingSet, fit_classifiers

FLOOR_IMAGES = 100
"""Class means are few: more copies of them teach nothing and take their time."""


def paper_trainers() -> dict[str, Trainer]:
    """The three published classifiers, stopped by the synthetic hold-out alone, and the simplest.

    LogReg, MLP and CNN as in `fedsink.evaluation.utility`, without its cap on the images shown
    (mathematics.md, section 5), and the nearest class mean.
    """
    return {
        "logreg": train_logreg,
        "mlp": partial(train_mlp, budget=None),
        "cnn": partial(train_cnn, budget=None),
        "nearest_class_mean": train_nearest_class_mean,
    }


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
        return {f"accuracy/{name}": held_out.score(each) for name, each in finished.items()}

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
        name.replace("accuracy/", "calibrated/"): _map(figures[name], 1 / ceiling)
        for name, ceiling in ceilings.items()
    }
    return {
        **ratios,
        "accuracy/mean": _mean([figures[name] for name in ceilings]),
        "calibrated/mean": _mean(list(ratios.values())),
    }


def _map(figure: Figure, factor: float) -> Figure:
    def scaled(spread: Spread | None) -> Spread | None:
        return spread and Spread(tuple(factor * value for value in spread.values), spread.size)

    synthetic = Spread(
        tuple(factor * value for value in figure.synthetic.values), figure.synthetic.size
    )
    return Figure(synthetic, scaled(figure.real), scaled(figure.class_means), figure.share)


def _mean(figures: Sequence[Figure]) -> Figure:
    def over(spreads: Sequence[Spread | None]) -> Spread:
        present = [spread for spread in spreads if spread is not None]
        values = zip(*(spread.values for spread in present), strict=True)
        return Spread(
            tuple(statistics.fmean(value) for value in values),
            min(spread.size for spread in present),
        )

    return Figure(
        over([figure.synthetic for figure in figures]),
        over([figure.real for figure in figures]),
        over([figure.class_means for figure in figures]),
        share=True,
    )
