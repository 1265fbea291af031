"""The evaluation suites `paper` and `full`: which figures, over which runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fedsink.errors import ConfigError
from fedsink.evaluation.classifiers import classic
from fedsink.evaluation.figures.downstream import accuracy_figures, calibrated, paper_trainers
from fedsink.evaluation.figures.fidelity import label_histogram
from fedsink.evaluation.figures.quality import quality_figures
from fedsink.evaluation.figures.spread import Figure
from fedsink.evaluation.labelled import Labelled, Report
from fedsink.evaluation.sets import HeldOut, TrainingSet
from fedsink.evaluation.table import format_table
from fedsink.evaluation.threads import limit_threads

RUNS = 5
"""Runs of the published protocols."""


@dataclass(frozen=True)
class Evaluation:
    """What a suite measured.

    Attributes:
        suite: its name.
        n: synthetic images drawn per run.
        seeds: one per run.
        train_images: real training images there were.
        test_images: real test images there were.
        label_histogram: images per class of the first run.
        figures: by name.
        left_out: names of figures that could not be measured, and why.
    """

    suite: str
    n: int
    seeds: tuple[int, ...]
    train_images: int
    test_images: int
    label_histogram: list[int]
    figures: dict[str, Figure]
    left_out: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON; `accuracy` repeats the means under the keys of suite=fast."""
        accuracy = {
            name: self.figures[f"accuracy/{name}"].synthetic.mean
            for name in ("logreg", "mlp", "cnn")
            if f"accuracy/{name}" in self.figures
        }
        return {
            "suite": self.suite,
            "n": self.n,
            "seeds": list(self.seeds),
            "train_images": self.train_images,
            "test_images": self.test_images,
            "label_histogram": self.label_histogram,
            **({"accuracy": accuracy} if accuracy else {}),
            "figures": {name: figure.to_dict() for name, figure in self.figures.items()},
            "left_out": self.left_out,
        }

    def table(self) -> str:
        """Return the readable table: mean ± sd, and below it what was left out."""
        rows = [figure.row(name) for name, figure in self.figures.items()]
        shown = [
            {key: value for key, value in row.items() if any(other[key] for other in rows)}
            for row in rows
        ]
        runs = f"{len(self.seeds)} run{'s' if len(self.seeds) > 1 else ''}"
        lines = [format_table(shown), f"mean ± sd over {runs}, seeds {self.seeds[0]} to "]
        lines[-1] += f"{self.seeds[-1]}; images: synthetic/real data/class means"
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
    reference: bool = True,
    conditional: bool = True,
    threads: int | None = None,
    report: Report | None = None,
) -> Evaluation:
    """Evaluate a generator of labelled images by a suite (docs/evaluation.md).

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
        reference: also measure the ceiling and the floor, at about twice the time.
        conditional: whether labels mean something; without, no classifier is trained.
        threads: processor threads; None for the libraries' own choice.
        report: receives lines of text.

    Raises:
        ConfigError: an unknown suite, or nothing to measure.
        DataError: images that do not fit each other, too few, or test images among them.
        ModelError: synthetic images that are not finite.
        ValueError: runs or threads below 1.
    """
    if suite not in ("paper", "full"):
        raise ConfigError(f"suite={suite} is unknown; choose paper or full.")
    if suite == "paper" and not conditional:
        raise ConfigError(
            "suite=paper trains classifiers, but the generator is unconditional and draws no "
            "labels; choose suite=full."
        )
    if runs < 1:
        raise ValueError(f"runs must be at least 1; received {runs}.")
    seeds = tuple(range(seed, seed + runs))
    held_out = HeldOut(test, classes=classes)
    real = TrainingSet.of(train, classes=classes, origin="real training")
    held_out.refuse_overlap(real)

    def synthetic(size: int, at: int) -> TrainingSet:
        return TrainingSet.of(draw(size, at), classes=classes, origin="synthetic")

    figures: dict[str, Figure] = {}
    left_out: dict[str, str] = {}
    first = synthetic(n, seed)
    held_out.refuse_overlap(first)
    ceiling = real if reference else None
    with limit_threads(threads):
        if conditional:
            figures |= accuracy_figures(
                synthetic, ceiling, held_out, paper_trainers(), seeds=seeds, size=n, report=report
            )
        else:
            left_out["accuracy"] = "the generator draws no labels"
        if suite == "full":
            if conditional:
                others = classic.classic_trainers()
                figures |= accuracy_figures(
                    synthetic,
                    ceiling,
                    held_out,
                    others,
                    seeds=seeds,
                    size=min(n, classic.AT_MOST),
                    report=report,
                )
                if "xgboost" not in others:
                    left_out["accuracy/xgboost"] = classic.NO_XGBOOST
                if reference:
                    published = {
                        k: v for k, v in figures.items() if k != "accuracy/nearest_class_mean"
                    }
                    figures |= calibrated(published)
            found, missing = quality_figures(
                synthetic,
                real,
                held_out,
                seeds=seeds,
                size=n,
                reference=reference,
                conditional=conditional,
                report=report,
            )
            figures |= found
            left_out |= missing
    return Evaluation(
        suite,
        n,
        seeds,
        len(real),
        len(held_out),
        label_histogram(first.labels, classes),
        figures,
        left_out,
    )
