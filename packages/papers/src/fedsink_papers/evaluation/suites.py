"""The evaluation suites `paper` and `full`: their figures and runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fedsink.errors import ConfigError
from fedsink.reporting.displays import format_table
from fedsink.results.evaluation.classifiers import FAST
from fedsink.results.evaluation.distances import label_histogram
from fedsink.results.evaluation.inception import load_inception
from fedsink.results.evaluation.networks import limit_threads
from fedsink.results.evaluation.sets import ClassifierTrainer, HeldOut, Labelled, TrainingSet
from fedsink.results.evaluation.suites import CLASSIFIERS, Draw, Options
from fedsink_papers.evaluation.accuracy import accuracy_figures, calibrated
from fedsink_papers.evaluation.classifiers import AT_MOST, OURS, PAPER, classifier_set
from fedsink_papers.evaluation.columns import Figure
from fedsink_papers.evaluation.image_quality import quality_figures

JUDGE = (
    "probabilities of the real-data classifier, a CNN of two convolutions; published scores use a "
    "VGG-11. inception_score has one split; ten_splits is the mean and ten_splits_sd the standard "
    "deviation over ten, as published"
)
"""The classifier behind the Inception Score."""


@dataclass(frozen=True)
class SuiteFigures:
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
            ours = self.classifiers == "ours"
            remark = OURS if ours else CLASSIFIERS.find(self.classifiers).remark
            notes["accuracy"] = f"classifiers={self.classifiers}, {remark}"
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


def measure(
    suite: str, draw: Draw, train: Labelled, test: Labelled, options: Options
) -> SuiteFigures:
    """`fedsink.results.evaluation.evaluate` of "paper" and "full"."""
    if suite == "paper" and not options.conditional:
        raise ConfigError(
            "suite=paper trains classifiers, but the generator is unconditional and draws no "
            "labels; choose suite=full."
        )
    if suite == "paper" and options.inception is not None:
        raise ConfigError(
            "suite=paper has accuracies only; inception= belongs to suite=fast and suite=full."
        )
    if (runs := options.runs) is None or runs < 1:
        raise ValueError(f"runs must be at least 1; received {runs}.")
    n, seed, classes, classifiers = options.n, options.seed, options.classes, options.classifiers
    network = None if options.inception is None else load_inception(options.inception)
    seeds = tuple(range(seed, seed + runs))
    held_out = HeldOut(test, classes=classes)
    real = TrainingSet.of(train, classes=classes, origin="real training")
    held_out.refuse_overlap(real)

    def synthetic(size: int, at: int) -> TrainingSet:
        return TrainingSet.of(draw(size, at), classes=classes, origin="synthetic")

    first = synthetic(n, seed)
    held_out.refuse_overlap(first)
    figures: dict[str, Figure] = {}
    trainers: dict[str, ClassifierTrainer] = {}
    missing: dict[str, str] = {}
    if classifiers == "ours":
        trainers, missing = classifier_set("ours", real.images.shape[1:])
    else:
        choice = CLASSIFIERS.find(classifiers).choose(real, seed, options.epsilon)
        trainers, missing, real = dict(choice.trainers), dict(choice.left_out), choice.real
    left_out = {} if options.conditional else {"accuracy": "the generator draws no labels"}
    with limit_threads(options.threads):
        if options.conditional:
            for names, size in _sizes(suite, classifiers, list(trainers), n).items():
                figures |= accuracy_figures(
                    synthetic,
                    real if options.reference else None,
                    held_out,
                    {name: trainers[name] for name in names},
                    seeds=seeds,
                    size=size,
                    report=options.report,
                )
            if suite == "full":
                left_out |= {f"accuracy/{name}": reason for name, reason in missing.items()}
                if options.reference:
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
                reference=bool(options.reference),
                conditional=options.conditional,
                inception=network,
                report=options.report,
            )
            figures |= pictures
            left_out |= reasons
    return SuiteFigures(
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


def _sizes(
    suite: str, classifiers: str, names: Sequence[str], n: int
) -> dict[tuple[str, ...], int]:
    """Returns the number of images that classifiers are fitted to, by the classifiers' names."""
    if classifiers != "ours":
        return {tuple(names): n}
    if suite == "paper":
        return {PAPER: n}
    return {PAPER: n, tuple(name for name in names if name not in PAPER): min(n, AT_MOST)}


paper, full = partial(measure, "paper"), partial(measure, "full")
