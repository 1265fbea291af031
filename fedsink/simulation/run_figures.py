"""The figures of a finished run: measured by a suite, and written into its folder."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedsink.data.sources import Split, load
from fedsink.errors import ConfigError
from fedsink.files import write_atomic
from fedsink.reporting.loggers import LOGGERS, loggers
from fedsink.reporting.output_files import write_json
from fedsink.results.evaluation import evaluate, exact_w2, sliced_w2
from fedsink.results.evaluation.networks import MNIST_VALUES
from fedsink.results.evaluation.sets import Labelled, Report
from fedsink.results.evaluation.suites import (
    CLASSIFIERS,
    Evaluation,
    FastFigures,
    Options,
    check_suite,
)
from fedsink.results.pages.report_page import renew_report
from fedsink.server.finished import FinishedRun, finished_record, open_run
from fedsink.values import checks

_SMALL = 16 * 16


@dataclass(frozen=True, repr=False)
class Measured:
    """The figures of an evaluation, shown as a table."""

    path: Path  # of the JSON file, in the run folder
    figures: dict[str, Any]  # its content
    table: str  # the figures as text

    def __repr__(self) -> str:
        return self.table


def evaluate_run(
    run: str,
    *,
    suite: str | None = None,
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
    without privacy: they are for public benchmarks. docs/evaluation.md describes the arguments;
    None stands for a default of the suite, the classifiers or the pictures' size. `report` receives
    lines of text while it is measured; `agree` is told of a core's hours before hours begin, and
    may raise.
    """
    suite = suite or (*CLASSIFIERS.find(classifiers).suites, "fast")[0]
    classifier_set = check_suite(suite, classifiers)
    checks.count("seed", seed, minimum=0)
    if seed >= 1 << 63:
        raise ConfigError(f"seed must be below 2^63, not {seed}.")
    for name, value, minimum in (("n", n, 20), ("runs", runs, 1), ("threads", threads, 1)):
        if value is not None:
            checks.count(name, value, minimum=minimum)
    if suite == "fast" and runs is not None:
        raise ConfigError("suite=fast has one run: leave runs= out, or choose another suite.")
    finished = open_run(run, observed=observation)
    shape = finished.data.shape
    if threads is None:  # all, except for pictures so small that threads would wait for one another
        threads = os.cpu_count() or 1 if math.prod(shape[1:]) > _SMALL else 1
    weights = None if inception is None else Path(inception)
    started = time.monotonic()
    if len(shape) == 1:
        if suite != "fast":
            raise ConfigError(
                f"suite={suite} is for images, and the run's data are points; suite=fast measures "
                "their Wasserstein distances."
            )
        measured: Evaluation = FastFigures(_points(finished, n or _images(shape), seed, weights))
    else:
        n = n or (_images(shape) if suite == "fast" else finished.data.nominal_records)
        runs = classifier_set.runs if runs is None else runs
        reference = classifier_set.reference if reference is None else reference
        if agree is not None and (hours := classifier_set.hours(shape, n, runs, reference)) >= 1:
            agree(hours)
        measured = evaluate(
            suite,
            finished.draw,
            _real(finished, "train"),
            _real(finished, "test"),
            Options(
                classes=len(finished.data.classes),
                n=n,
                runs=runs,
                seed=seed,
                classifiers=classifiers,
                epsilon=(finished_record(run)[1]["epsilon"] if classifier_set.of_run else None)
                or math.inf,
                reference=reference,
                conditional=len(finished.prior) > 1,
                inception=weights,
                threads=threads,
                report=report,
            ),
        )
    figures, table = measured.to_dict(), measured.table()
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
    log = finished.config.get("log") or ()
    names = [name for name in ([log] if isinstance(log, str) else log) if name in LOGGERS]
    loggers(names, finished.folder.path, finished.config, {}).evaluated(path, figures)
    return Measured(path, figures, table)


def _real(finished: FinishedRun, split: Split) -> Labelled:
    """All real images of a split, with their labels."""
    data = load(finished.data, split)
    return data.take(torch.arange(len(data)))


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
    return {"n": len(real), "seed": seed, **distances}


def _images(shape: tuple[int, ...]) -> int:
    """As many images as have the values of 10000 of MNIST: 10000 at most, and 1000 at least."""
    return min(10_000, max(1_000, 10_000 * MNIST_VALUES // math.prod(shape)))
