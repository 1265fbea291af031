"""The evaluation suites `paper` and `full`: their figures and runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsink.errors import ConfigError
from fedsink.evaluation.classifiers import AT_MOST, FAST, OPTIONS, PAPER, classifier_set
from fedsink.evaluation.columns import Figure
from fedsink.evaluation.distances import label_histogram
from fedsink.evaluation.downstream import accuracy_figures, calibrated
from fedsink.evaluation.dpimagebench import dpimagebench_set
from fedsink.evaluation.image_quality import quality_figures
from fedsink.evaluation.inception import load_inception
from fedsink.evaluation.networks import limit_threads
from fedsink.evaluation.sets import ClassifierTrainer, HeldOut, Labelled, Report, TrainingSet
from fedsink.reporting.displays import format_table

SUITES_OF = {"ours": ("paper", "full"), "published": ("full",), "dpimagebench": ("paper",)}
"""Suites of each set of classifiers, besides `fast`."""

RUNS = 5
"""Runs of the published protocols."""

JUDGE = (
    "probabilities of the real-data classifier, a CNN of two convolutions; published scores use a "
    "VGG-11. inception_score has one split; ten_splits is the mean and ten_splits_sd the standard "
    "deviation over ten, as published"
)
"""The classifier behind the Inception Score."""


@dataclass(frozen=True)
class Evaluation:
    """Figures that a suite measured.

    Attributes:
        suite: its name.
        classifiers: the set of classifiers and options, "ours", "published" or "dpimagebench".
        n: synthetic images drawn per run.
        seeds: one per run.
        train_images: number of real training images.
        test_images: number of real test images.
        label_histogram: images per class of the first run.
        figures: by name.
        left_out: reasons why figures could not be measured, by name.
    """

    suite: str
    classifiers: str
    n: int
    seeds: tuple[int, ...]
    train_images: int
    test_images: int
    label_histogram: list[int]
    figures: dict[str, Figure]
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def notes(self) -> dict[str, str]:
        """Remarks that belong to figures, by name of the figure."""
        notes = {}
        if any(name.startswith("accuracy/") for name in self.figures):
            notes["accuracy"] = f"classifiers={self.classifiers}, {OPTIONS[self.classifiers]}"
        if "inception_score" in self.figures:
            notes["inception_score"] = JUDGE
        return notes

    def to_dict(self) -> dict[str, Any]:
        """Returns all of it for JSON; `accuracy` repeats the means under suite=fast's keys."""
        accuracy = {
            name: self.figures[f"accuracy/{name}"].synthetic.mean
            for name in FAST
            if f"accuracy/{name}" in self.figures
        }
        return {
            "suite": self.suite,
            "classifiers": self.classifiers,
            "n": self.n,
            "seeds": list(self.seeds),
            "train_images": self.train_images,
            "test_images": self.test_images,
            "label_histogram": self.label_histogram,
            **({"accuracy": accuracy} if accuracy else {}),
            "figures": {name: figure.to_dict() for name, figure in self.figures.items()},
            "left_out": self.left_out,
            "notes": self.notes,
        }

    def table(self) -> str:
        """Returns the readable table: mean ± sd, and below it the figures that were left out."""
        rows = [figure.row(name) for name, figure in self.figures.items()]
        filled = [key for key in rows[0] if any(row[key] for row in rows)]
        cells = [{key: row[key] for key in filled} for row in rows]
        runs = f"{len(self.seeds)} run{'s' if len(self.seeds) > 1 else ''}"
        lines = [
            format_table(cells),
            f"mean ± sd over {runs}, seeds {self.seeds[0]} to {self.seeds[-1]}; "
            "images: synthetic/real data/class means",
            *(f"{name}: {note}." for name, note in self.notes.items()),
        ]
        lines += [f"{name} was left out: {why}." for name, why in self.left_out.items()]
        return "\n".join(lines)


def evaluate(
    suite: str,
    draw: Callable[[int, int], Labelled],
    train: Labelled,
    test: Labelled,
    *,
    classes: int,
    n: int,
    runs: int = RUNS,
    seed: int = 0,
    classifiers: str = "ours",
    epsilon: float = math.inf,
    reference: bool = True,
    conditional: bool = True,
    inception: Path | None = None,
    threads: int | None = None,
    report: Report | None = None,
) -> Evaluation:
    """Evaluates a generator of labelled images by a suite (docs/figures.md).

    Nothing is fitted to, stopped by or chosen on the test images; the real training images are
    read without privacy, so this belongs to public benchmarks.

    Args:
        suite: "paper" or "full".
        draw: n and a seed to n synthetic images (n, C, H, W) in [0, 1] and labels (n,).
        train: real training images and labels, for the ceiling, the floor and memorisation.
        test: real test images and labels.
        classes: number of classes.
        n: synthetic images per run.
        runs: number of runs; run r has seed + r.
        seed: of the first run.
        classifiers: "ours"; or "published", the thirteen of Chen et al. 2020 with the options of
            their public code, in suite "full", fitted to all n images; or "dpimagebench", in suite
            "paper", which chooses an epoch on a twelfth of `train`.
        epsilon: of the noise of that choice.
        reference: also measure the ceiling and the floor, at about twice the time.
        conditional: False if labels mean nothing; then no classifier is trained.
        inception: weights of torchvision's Inception v3, for FID in suite "full"; None: those in
            PyTorch's cache, if they are there.
        threads: processor threads; None for the libraries' choice.
        report: receives lines of text.

    Raises:
        ConfigError: an unknown suite or set of classifiers, or nothing to measure.
        DataError: images that do not fit each other, too few, or test images among them.
        ModelError: synthetic images that are not finite, or a file of other weights.
        ValueError: runs or threads below 1.
    """
    _check(suite, classifiers, conditional, inception)
    if runs < 1:
        raise ValueError(f"runs must be at least 1; received {runs}.")
    network = None if inception is None else load_inception(inception)
    seeds = tuple(range(seed, seed + runs))
    held_out = HeldOut(test, classes=classes)
    real = TrainingSet.of(train, classes=classes, origin="real training")
    held_out.refuse_overlap(real)

    def synthetic(size: int, at: int) -> TrainingSet:
        return TrainingSet.of(draw(size, at), classes=classes, origin="synthetic")

    first = synthetic(n, seed)
    held_out.refuse_overlap(first)
    figures: dict[str, Figure] = {}
    bench: dict[str, ClassifierTrainer] = {}
    if classifiers == "dpimagebench":
        chosen, real = dpimagebench_set(real, seed, epsilon)
        bench.update(chosen)
    left_out = {} if conditional else {"accuracy": "the generator draws no labels"}
    with limit_threads(threads):
        if conditional:
            trainers, missing = (
                (bench, {}) if bench else classifier_set(classifiers, first.images.shape[1:])
            )
            for names, size in _sizes(suite, classifiers, list(trainers), n).items():
                figures |= accuracy_figures(
                    synthetic,
                    real if reference else None,
                    held_out,
                    {name: trainers[name] for name in names},
                    seeds=seeds,
                    size=size,
                    report=report,
                )
            if suite == "full":
                left_out |= {f"accuracy/{name}": reason for name, reason in missing.items()}
                if reference:
                    figures |= calibrated(
                        {k: v for k, v in figures.items() if k != "accuracy/nearest_class_mean"}
                    )
        if suite == "full":
            pictures, reasons = quality_figures(
                synthetic,
                real,
                held_out,
                seeds=seeds,
                size=n,
                reference=reference,
                conditional=conditional,
                inception=network,
                report=report,
            )
            figures |= pictures
            left_out |= reasons
    return Evaluation(
        suite,
        classifiers,
        n,
        seeds,
        len(real),
        len(held_out),
        label_histogram(first.labels, classes),
        figures,
        left_out,
    )


def _check(suite: str, classifiers: str, conditional: bool, inception: Path | None) -> None:
    if suite not in ("paper", "full"):
        raise ConfigError(f"suite={suite} is unknown; choose paper or full.")
    if suite == "paper" and not conditional:
        raise ConfigError(
            "suite=paper trains classifiers, but the generator is unconditional and draws no "
            "labels; choose suite=full."
        )
    if classifiers in OPTIONS and suite not in SUITES_OF[classifiers]:
        raise ConfigError(
            f"classifiers={classifiers} belongs to suite={SUITES_OF[classifiers][0]}; received "
            f"suite={suite}."
        )
    if suite == "paper" and inception is not None:
        raise ConfigError(
            "suite=paper has accuracies only; inception= belongs to suite=fast and suite=full."
        )
    if classifiers not in OPTIONS:
        raise ConfigError(
            f"classifiers={classifiers} is unknown; choose one of {', '.join(OPTIONS)}."
        )


def _sizes(
    suite: str, classifiers: str, names: Sequence[str], n: int
) -> dict[tuple[str, ...], int]:
    """Returns the number of images that classifiers are fitted to, by the classifiers' names."""
    if classifiers != "ours":
        return {tuple(names): n}
    if suite == "paper":
        return {PAPER: n}
    return {PAPER: n, tuple(name for name in names if name not in PAPER): min(n, AT_MOST)}
