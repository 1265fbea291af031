"""The figures of a finished run: measured by a suite, and written into its folder."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedsink.data.sources import load
from fedsink.errors import ConfigError
from fedsink.evaluation import (
    accuracies,
    evaluate,
    exact_w2,
    label_histogram,
    sliced_w2,
)
from fedsink.evaluation.classifiers import PUBLISHED_SECONDS, train_nearest_class_mean
from fedsink.evaluation.downstream import FLOOR_IMAGES
from fedsink.evaluation.dpimagebench import CORE_SECONDS, EPOCHS, LEFT_OUT
from fedsink.evaluation.image_quality import fid
from fedsink.evaluation.inception import load_inception
from fedsink.evaluation.networks import MNIST_VALUES, limit_threads
from fedsink.evaluation.sets import (
    Labelled,
    Origin,
    Report,
    TrainingSet,
    class_mean_set,
)
from fedsink.evaluation.suites import RUNS, SUITES_OF
from fedsink.pages.report_page import renew_report
from fedsink.reporting.displays import format_table
from fedsink.reporting.loggers import LOGGERS, loggers
from fedsink.reporting.output_files import write_atomic, write_json
from fedsink.server.finished import FinishedRun, finished_record, open_run
from fedsink.values import checks, given

SUITES = ("fast", "paper", "full")
_TOO_EASY = 0.98  # accuracy of class means
_SMALL = 16 * 16


@dataclass(frozen=True, repr=False)
class Measured:
    """The figures of an evaluation, shown as a table.

    Attributes:
        path: of the JSON file, in the run folder.
        figures: its content.
        table: the figures as text.
    """

    path: Path
    figures: dict[str, Any]
    table: str

    def __repr__(self) -> str:
        return self.table


def evaluate_run(
    run: str,
    *,
    suite: str = "fast",
    classifiers: str = "ours",
    n: int | None = None,
    runs: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    reference: bool | None = None,
    observation: bool = True,
    inception: str | Path | None = None,
    report: Report | None = None,
    agree: Callable[[float], None] | None = None,
) -> Measured:
    """Draws from a finished run, trains on the pictures, tests on real ones, writes the figures.

    A report.html in the folder is brought up to date. The figures are computed on real data
    without privacy: they are for public benchmarks.

    Args:
        run: the run folder.
        suite: "fast", "paper" or "full" (docs/evaluation.md).
        classifiers: "ours"; "published", in suite "full"; or "dpimagebench", in suite "paper", with
            the run's ε, one run and no reference unless told.
        n: synthetic images; None: 10000, and fewer where one has more than 784 values, but 1000
            at least (fast), or as many as the dataset nominally has. Of points at most 2000.
        runs: of the suites "paper" and "full"; None: five, and one of "dpimagebench".
        seed: of the images and the classifiers.
        threads: processor threads; None: all cores, and one for pictures of at most 16×16.
        reference: also measure real training images and class means; None: yes, except with
            "dpimagebench".
        observation: with the run's observation model; without, the files' names end in -bare.
        inception: a file with the weights of torchvision's Inception v3, for FID in suites "fast"
            and "full"; None: "full" looks in PyTorch's cache.
        report: receives lines of text while it is measured.
        agree: is told of a core's hours before hours begin, and may raise.

    Raises:
        FedsinkError: a value is unknown or belongs to another suite, the folder holds no
            finished run, or the file other weights.
    """
    checks.choice("suite", suite, *SUITES)
    checks.count("seed", seed, minimum=0)
    if seed >= 1 << 63:
        raise ConfigError(f"seed must be below 2^63, not {seed}.")
    for name, value, minimum in (("n", n, 20), ("runs", runs, 1), ("threads", threads, 1)):
        if value is not None:
            checks.count(name, value, minimum=minimum)
    if suite == "fast" and runs is not None:
        raise ConfigError("suite=fast has one run; runs= belongs to suite=paper and suite=full.")
    checks.choice("classifiers", classifiers, *SUITES_OF)
    if suite == "fast" and classifiers != "ours":
        raise ConfigError(
            f"suite=fast has three classifiers; classifiers={classifiers} belongs to "
            f"suite={SUITES_OF[classifiers][0]}."
        )
    finished = open_run(run, observed=observation)
    threads = threads or _threads(finished.data.shape)
    weights = None if inception is None else Path(inception)
    started = time.monotonic()
    if suite == "fast":
        figures = _fast(
            finished,
            n or _images(finished.data.shape),
            seed=seed,
            threads=threads,
            reference=reference is not False,
            inception=weights,
            report=report,
        )
        table = _table(figures)
    else:
        options = given({"runs": runs, "reference": reference})
        if classifiers == "dpimagebench":
            stated = finished_record(run)[1]["epsilon"]
            bench = {"runs": 1, "reference": False, "epsilon": stated or math.inf}
            options = {**bench, **options}
        if agree is not None and (hours := _hours(finished, classifiers, n, options)) >= 1:
            agree(hours)
        figures, table = _suite(
            finished,
            suite,
            n=n or finished.data.nominal_records,
            seed=seed,
            classifiers=classifiers,
            threads=threads,
            inception=weights,
            report=report,
            **options,
        )
    figures["observation"] = not finished.observation.changes_nothing
    figures["seconds"] = round(time.monotonic() - started, 2)
    parts = [
        "evaluation",
        *([] if suite == "fast" else [suite]),
        *([] if classifiers == "ours" else [classifiers]),
        *([] if observation else ["bare"]),
    ]
    path = finished.folder.path / f"{'-'.join(parts)}.json"
    write_json(path, figures)
    if suite != "fast":
        write_atomic(path.with_suffix(".txt"), f"{table}\n".encode())
    renew_report(finished.folder.path)
    stated = finished.config.get("log") or ()
    names = [name for name in ([stated] if isinstance(stated, str) else stated) if name in LOGGERS]
    loggers(names, finished.folder.path, finished.config, {}).evaluated(path, figures)
    return Measured(path, figures, table)


def _hours(
    finished: FinishedRun, classifiers: str, n: int | None, options: Mapping[str, Any]
) -> float:
    """Hours of one core, at least, of the classifiers that were seen to take hours."""
    values = math.prod(finished.data.shape) / MNIST_VALUES
    pictures = (n or finished.data.nominal_records) * values
    sets = options.get("runs", RUNS) * (2 if options.get("reference", True) else 1)
    if classifiers == "dpimagebench" and not torch.cuda.is_available():
        return EPOCHS * (1 - LEFT_OUT) * CORE_SECONDS * pictures * sets / 3600
    return PUBLISHED_SECONDS * pictures * sets / 3600 if classifiers == "published" else 0.0


def _suite(
    finished: FinishedRun, suite: str, *, runs: int = RUNS, **options: Any
) -> tuple[dict[str, Any], str]:
    if len(finished.data.shape) == 1:
        raise ConfigError(
            f"suite={suite} is for images, and the run's data are points; suite=fast measures "
            "their Wasserstein distances."
        )
    evaluation = evaluate(
        suite,
        finished.draw,
        _real(finished, "train"),
        _real(finished, "test"),
        classes=len(finished.data.classes),
        runs=runs,
        conditional=len(finished.prior) > 1,
        **options,
    )
    return evaluation.to_dict(), evaluation.table()


def _real(finished: FinishedRun, split: str) -> Labelled:
    """All real images of a split, with their labels."""
    data = load(finished.data, split)
    return data.take(torch.arange(len(data)))


def _fast(
    finished: FinishedRun,
    n: int,
    *,
    seed: int,
    threads: int,
    reference: bool,
    inception: Path | None,
    report: Report | None,
) -> dict[str, Any]:
    figures: dict[str, Any] = {"n": n, "seed": seed}
    if len(finished.data.shape) == 1:
        return figures | _points(finished, n, seed, inception)
    classes = len(finished.data.classes)
    network = None if inception is None else load_inception(inception)
    synthetic, test = finished.draw(n, seed), _real(finished, "test")
    if network is not None:
        with limit_threads(threads):
            figures["fid"] = fid(network, synthetic[0], test[0], seed)
    figures |= {
        "sliced_w2": sliced_w2(synthetic[0].flatten(1), test[0].flatten(1), seed=seed),
        "label_histogram": label_histogram(synthetic[1], classes),
        "test_images": len(test[1]),
    }
    if len(finished.prior) == 1:
        return figures
    figures["classifiers"] = "ours"
    train = _real(finished, "train")
    columns: dict[str, tuple[Labelled, Origin]] = {"accuracy": (synthetic, "synthetic")}
    if reference:
        real = TrainingSet.of(train, classes=classes, origin="real training")
        floor = class_mean_set(real, FLOOR_IMAGES)
        columns["real_accuracy"] = (train, real.origin)
        columns["class_means_accuracy"] = ((floor.images, floor.labels), floor.origin)

    def told(origin: Origin, number: int) -> Report | None:
        if report is None:
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
            threads=threads,
            progress=told(origin, number),
        )
    figures["nearest_mean_accuracy"] = nearest_mean_accuracy(train, test)
    return figures


def nearest_mean_accuracy(train: Labelled, test: Labelled) -> float:
    """Returns the accuracy of naming each image after the nearest class mean.

    A generator of one smear for each class reaches about as much with every classifier.

    Args:
        train: images (N, ...) and labels (N,), whose means are taken.
        test: images and labels.
    """
    classify = train_nearest_class_mean(*train, classes=int(train[1].max()) + 1, seed=0)
    return float((classify(test[0]) == test[1]).double().mean())


def _points(finished: FinishedRun, n: int, seed: int, inception: Path | None) -> dict[str, Any]:
    if inception is not None:
        raise ConfigError("inception= is for FID of images, and the run's data are points.")
    test = load(finished.data, "test")
    real, _ = test.take(torch.arange(min(n, 2000, len(test.labels))))
    synthetic, _ = finished.draw(len(real), seed)
    distances = {
        "w2": exact_w2(synthetic, real),
        "sliced_w2": sliced_w2(synthetic, real, seed=seed),
    }
    return {"n": len(real), **distances}


def _threads(shape: tuple[int, ...]) -> int:
    """All cores, except for pictures so small that threads would wait for one another."""
    return os.cpu_count() or 1 if math.prod(shape[1:]) > _SMALL else 1


def _images(shape: tuple[int, ...]) -> int:
    """As many images as have the values of 10000 of MNIST: 10000 at most, and 1000 at least."""
    return min(10_000, max(1_000, 10_000 * MNIST_VALUES // math.prod(shape)))


def _table(figures: dict[str, Any]) -> str:
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
