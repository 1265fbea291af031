"""Suites of figures and sets of classifiers, by name: fedsink's, and those of installed packages.

[project.entry-points."fedsink.metrics"]
paper = "my_package.suites:paper"          # a `Suite`, for suite=paper

[project.entry-points."fedsink.classifiers"]
theirs = "my_package.classifiers:THEIRS"   # a `ClassifierSet`, for classifiers=theirs
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from fedsink.errors import ConfigError
from fedsink.registry import Registry
from fedsink.reporting.displays import format_table
from fedsink.results.evaluation.classifiers import FAST, train_nearest_class_mean
from fedsink.results.evaluation.distances import label_histogram, sliced_w2
from fedsink.results.evaluation.downstream import FLOOR_IMAGES, accuracies
from fedsink.results.evaluation.inception import fid, load_inception
from fedsink.results.evaluation.networks import MNIST_VALUES, limit_threads
from fedsink.results.evaluation.sets import (
    ClassifierTrainer,
    Labelled,
    Origin,
    Report,
    TrainingSet,
    class_mean_set,
)

_TOO_EASY = 0.98  # accuracy of class means

Draw = Callable[[int, int], Labelled]
"""A size and a seed to that many synthetic images with labels."""


class ClassifierChoice(NamedTuple):
    """The classifiers of a set for some images."""

    trainers: Mapping[str, ClassifierTrainer]
    left_out: Mapping[str, str]  # the reason for each that these images do not allow
    real: TrainingSet  # the real training images that no choice of a classifier uses


@dataclass(frozen=True)
class ClassifierSet:
    """The classifiers that a value of `classifiers` stands for, and their defaults.

    Attributes:
        choose: the real training images, a seed and ε to the classifiers.
        remark: about their options, below a table.
        suites: those that they belong to, the default one first; empty: any, suite=fast first.
        seconds: time of one core for a picture of 28×28 that all are fitted to; 0: no hours.
        by_gpu: True where a GPU takes no hours.
        runs, reference: defaults of the keys of these names.
        of_run: True where ε is the run's; else it is infinite.
    """

    choose: Callable[[TrainingSet, int, float], ClassifierChoice]
    remark: str
    suites: tuple[str, ...] = ()
    seconds: float = 0.0
    by_gpu: bool = False
    runs: int = 5
    reference: bool = True
    of_run: bool = False

    def hours(self, shape: Sequence[int], n: int, runs: int, reference: bool) -> float:
        """Returns the hours of one core, at least, where the classifiers were seen to take any."""
        # Each is fitted to n images (C, H, W) in a run; with `reference` to real ones as well.
        if self.by_gpu and torch.cuda.is_available():
            return 0.0
        pictures = n * math.prod(shape) / MNIST_VALUES
        return self.seconds * pictures * runs * (2 if reference else 1) / 3600


class Evaluation(Protocol):
    """Figures that a suite measured."""

    def to_dict(self) -> dict[str, Any]:
        """Returns all of them for JSON."""
        ...

    def table(self) -> str:
        """Returns the readable table."""
        ...


@dataclass(frozen=True)
class Options:
    """Options of an evaluation; a suite gets them with `runs` and `reference` filled in.

    Attributes:
        classes: number of classes.
        n: synthetic images per run.
        runs: number of runs, run r with seed + r; None: the default of the classifiers. "fast" has
            one.
        seed: the seed of the first run.
        classifiers: "ours", or a set of an installed package.
        epsilon: ε of the noise of a set that chooses on real images.
        reference: also measure the ceiling and the floor, at about twice the time; None: the
            default of the classifiers.
        conditional: False if labels mean nothing; then no classifier is trained.
        inception: weights of torchvision's Inception v3, for FID.
        threads: processor threads; None for the libraries' choice.
        report: receives lines of text.
    """

    classes: int
    n: int
    runs: int | None = None
    seed: int = 0
    classifiers: str = "ours"
    epsilon: float = math.inf
    reference: bool | None = None
    conditional: bool = True
    inception: Path | None = None
    threads: int | None = None
    report: Report | None = None


class Suite(Protocol):
    """Measures a generator of labelled images; `evaluate` explains the arguments."""

    def __call__(self, draw: Draw, train: Labelled, test: Labelled, options: Options) -> Evaluation:
        """Returns the figures."""
        ...


def evaluate(suite: str, draw: Draw, train: Labelled, test: Labelled, options: Options) -> Any:
    """Evaluates a generator of labelled images by a suite (docs/figures.md).

    Nothing is fitted to, stopped by or chosen on the test images; the real training images are
    read without privacy, so this belongs to public benchmarks.

    Args:
        suite: "fast", or one of an installed package.
        draw: n and a seed to n synthetic images (n, C, H, W) in [0, 1] and labels (n,).
        train: real training images and labels, for the ceiling, the floor and memorisation.
        test: real test images and labels.
        options: the options of the evaluation.

    Returns:
        An `Evaluation`, with the attributes that the suite gives it.

    Raises:
        ConfigError: an unknown suite or set of classifiers, or nothing to measure.
        DataError: images that do not fit each other, too few, or test images among them.
        ModelError: synthetic images that are not finite, or a file of other weights.
        ValueError: runs or threads below 1.
    """
    classifiers = check_suite(suite, options.classifiers)
    filled = replace(
        options,
        runs=classifiers.runs if options.runs is None else options.runs,
        reference=classifiers.reference if options.reference is None else options.reference,
    )
    return SUITES.find(suite)(draw, train, test, filled)


def check_suite(suite: str, classifiers: str) -> ClassifierSet:
    """Returns the set of classifiers; raises ConfigError where it does not belong to the suite."""
    SUITES.find(suite)
    found = CLASSIFIERS.find(classifiers)
    if found.suites and suite not in found.suites:
        raise ConfigError(
            f"classifiers={classifiers} belongs to suite={found.suites[0]}; received suite={suite}."
        )
    return found


@dataclass(frozen=True)
class FastFigures:
    """Figures of suite=fast."""

    figures: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Returns the figures by name."""
        return dict(self.figures)

    def table(self) -> str:
        """Returns them as a table."""
        figures = self.figures
        columns = {
            heading: figures[key]
            for key, heading in (
                ("accuracy", "synthetic"),
                ("real_accuracy", "real data"),
                ("class_means_accuracy", "class means"),
            )
            if key in figures
        }
        rows: list[dict[str, Any]] = [
            {"figure": f"accuracy {name}"}
            | {heading: f"{100 * column[name]:.1f} %" for heading, column in columns.items()}
            for name in figures.get("accuracy", {})
        ]
        for key, name in (("fid", "FID"), ("w2", "W2"), ("sliced_w2", "sliced W2")):
            if key in figures:
                rows.append({"figure": name, "synthetic": f"{figures[key]:.4f}"})
        if "label_histogram" in figures:
            counts = " ".join(str(count) for count in figures["label_histogram"])
            rows.append({"figure": "images per class", "synthetic": counts})
        floor = figures.get("nearest_mean_accuracy")
        if floor is None:
            return format_table(rows)
        easy = ": these data are too easy to tell generators apart" if floor >= _TOO_EASY else ""
        floor_line = f"Class means of the real data alone name {100 * floor:.1f} % rightly{easy}."
        return f"{format_table(rows)}\n{floor_line}"


def fast(draw: Draw, train: Labelled, test: Labelled, options: Options) -> FastFigures:
    """Measures `suite=fast`: one run, in seconds to a minute."""
    n, seed, classes = options.n, options.seed, options.classes
    figures: dict[str, Any] = {"n": n, "seed": seed}
    network = None if options.inception is None else load_inception(options.inception)
    synthetic = draw(n, seed)
    if network is not None:
        with limit_threads(options.threads):
            figures["fid"] = fid(network, synthetic[0], test[0], seed)
    figures |= {
        "sliced_w2": sliced_w2(synthetic[0].flatten(1), test[0].flatten(1), seed=seed),
        "label_histogram": label_histogram(synthetic[1], classes),
        "test_images": len(test[1]),
    }
    if not options.conditional:
        return FastFigures(figures)
    figures["classifiers"] = options.classifiers
    columns: dict[str, tuple[Labelled, Origin]] = {"accuracy": (synthetic, "synthetic")}
    trainers: Mapping[str, ClassifierTrainer] = FAST
    if options.reference or options.classifiers != "ours":
        real = TrainingSet.of(train, classes=classes, origin="real training")
        classifiers = CLASSIFIERS.find(options.classifiers)
        trainers = classifiers.choose(real, seed, options.epsilon).trainers
    if options.reference:
        floor = class_mean_set(real, FLOOR_IMAGES)
        columns["real_accuracy"] = (train, real.origin)
        columns["class_means_accuracy"] = ((floor.images, floor.labels), floor.origin)

    def told(origin: Origin, number: int) -> Report | None:
        if (report := options.report) is None:
            return None
        return lambda text: report(f"{origin} images, {number} of {len(columns)}: {text}")

    for number, (key, (images, origin)) in enumerate(columns.items(), 1):
        figures[key] = accuracies(
            images,
            test,
            classes=classes,
            seed=seed,
            origin=origin,
            size=n,
            threads=options.threads,
            progress=told(origin, number),
            trainers=trainers,
        )
    figures["nearest_mean_accuracy"] = nearest_mean_accuracy(train, test)
    return FastFigures(figures)


def nearest_mean_accuracy(train: Labelled, test: Labelled) -> float:
    """Returns the accuracy of naming each image after the nearest class mean of `train`."""
    # A generator of one smear for each class reaches about as much with every classifier.
    classify = train_nearest_class_mean(*train, classes=int(train[1].max()) + 1, seed=0)
    return float((classify(test[0]) == test[1]).double().mean())


CLASSIFIERS: Registry[ClassifierSet] = Registry(
    "classifiers",
    {
        "ours": ClassifierSet(
            lambda real, seed, epsilon: ClassifierChoice(FAST, {}, real), "our options"
        )
    },
    group="fedsink.classifiers",
)
"""Sets of classifiers by name."""

SUITES: Registry[Suite] = Registry("suite", {"fast": fast}, group="fedsink.metrics")
"""Suites by name."""
