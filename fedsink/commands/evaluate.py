"""`fedsink evaluate run=DIR`: train on synthetic, test on real."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from fedsink.commands.keys import choice, flag, parse, whole
from fedsink.data.sources import load
from fedsink.errors import ConfigError
from fedsink.evaluation import (
    accuracies,
    evaluate,
    exact_w2,
    format_table,
    label_histogram,
    sliced_w2,
)
from fedsink.evaluation.classifiers.protocols import OPTIONS
from fedsink.evaluation.suites import RUNS
from fedsink.reporting import write_json
from fedsink.reporting.atomic import write_atomic
from fedsink.server.finished import FinishedRun, open_run

SUITES = ("fast", "paper", "full")
_SMALL = 16 * 16

HELP = """Usage: fedsink evaluate run=DIR [suite=fast|paper|full] [n=…] [runs=5] [seed=0]
                        [classifiers=ours|published] [threads=…] [reference=…]
                        [observation=true]

Draws n labelled images from the generator of a finished run, trains classifiers on them alone
(10 % of the synthetic images for early stopping), and tests each once on the real test set.

suite=fast   n=10000, one run: logistic regression, an MLP and a CNN, sliced 2-Wasserstein distance
             to the real test images, and the label histogram. Writes evaluation.json.
suite=paper  the papers' protocol: as many images as the dataset nominally has (60000 for MNIST),
             five runs, only early stopping ends training. Writes evaluation-paper.json and .txt.
suite=full   adds GS-WGAN's other classifiers, calibrated accuracy, Inception Score and Fréchet
             distance of a real-data classifier, FID (if Inception weights are in the cache),
             precision, recall, density, coverage, label consistency, variance within classes and
             memorisation. Writes evaluation-full.json and .txt.

classifiers=published (suite=full) fits the thirteen classifiers of Chen et al. 2020 with the
options of their public code to all n images: hours for 60000. Its files end in -published. The
default, ours, caps our options for the other classifiers at 10000 images.
reference= measures real training images (the ceiling) and class means (the floor) beside the
generator: on for paper and full; off for fast, which knows the ceiling alone.
observation=false measures the generator's own pictures, without what the run's observation.* adds;
its files end in -bare.
A report.html in the run folder is brought up to date (fedsink report).
These figures are computed on real data without privacy: they are for public benchmarks."""


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Evaluate, print, and write the results into the run folder."""
    if {"-h", "--help"} & set(arguments):
        print(HELP)
        return 0
    keys = parse(
        arguments,
        {
            "run": str,
            "suite": choice(*SUITES),
            "classifiers": choice(*OPTIONS),
            "n": whole(20),
            "runs": whole(1),
            "seed": whole(0),
            "threads": whole(1),
            "reference": flag,
            "observation": flag,
        },
    )
    if not keys.get("run"):
        raise ConfigError("run= is missing; fedsink evaluate --help says what to give.")
    suite, seed = keys.get("suite", "fast"), keys.get("seed", 0)
    if suite == "fast" and "runs" in keys:
        raise ConfigError("suite=fast has one run; runs= belongs to suite=paper and suite=full.")
    classifiers = keys.get("classifiers", "ours")
    if suite == "fast" and classifiers != "ours":
        raise ConfigError(
            f"suite=fast has three classifiers; classifiers={classifiers} belongs to suite=full."
        )
    observed = keys.get("observation", True)
    finished = open_run(keys["run"], observed=observed)
    threads = keys.get("threads") or _threads(finished.data.shape)
    started = time.monotonic()
    if suite == "fast":
        result, table = _fast(finished, keys, seed, threads)
    else:
        result, table = _suites(finished, suite, keys, seed, threads)
    result["observation"] = not finished.observation.changes_nothing
    result["seconds"] = round(time.monotonic() - started, 2)
    parts = [
        "evaluation",
        *([] if suite == "fast" else [suite]),
        *([] if classifiers == "ours" else [classifiers]),
        *([] if observed else ["bare"]),
    ]
    path = finished.folder.path / f"{'-'.join(parts)}.json"
    write_json(path, result)
    if suite != "fast":
        write_atomic(path.with_suffix(".txt"), f"{table}\n".encode())
    _refresh(finished)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(table)
    print(path)
    return 0


def _refresh(finished: FinishedRun) -> None:
    """Bring the page of the run up to date, if it has one."""
    from fedsink.pages.report import FILE_NAME, try_report

    if (finished.folder.path / FILE_NAME).exists():
        try_report(finished.folder.path, sys.stderr.write)


def _suites(
    finished: FinishedRun, suite: str, keys: dict[str, Any], seed: int, threads: int
) -> tuple[dict[str, Any], str]:
    if len(finished.data.shape) == 1:
        raise ConfigError(
            f"suite={suite} is for images, and the run's data are points; suite=fast measures "
            "their Wasserstein distances."
        )
    train, test = (load(finished.data, split) for split in ("train", "test"))
    evaluation = evaluate(
        suite,
        finished.draw,
        train.take(torch.arange(len(train))),
        test.take(torch.arange(len(test))),
        classes=len(finished.data.classes),
        n=keys.get("n", finished.data.nominal_records),
        runs=keys.get("runs", RUNS),
        seed=seed,
        classifiers=keys.get("classifiers", "ours"),
        reference=keys.get("reference", True),
        conditional=len(finished.prior) > 1,
        threads=threads,
        report=_report,
    )
    return evaluation.to_dict(), evaluation.table()


def _fast(
    finished: FinishedRun, keys: dict[str, Any], seed: int, threads: int
) -> tuple[dict[str, Any], str]:
    n = keys.get("n", 10000)
    result: dict[str, Any] = {"n": n, "seed": seed}
    if len(finished.data.shape) == 1:
        result |= _points(finished, n, seed)
    else:
        result |= _images(finished, n, seed, threads, keys.get("reference", False))
    return result, _table(result)


def _points(finished: FinishedRun, n: int, seed: int) -> dict[str, Any]:
    test = load(finished.data, "test")
    real, _ = test.take(torch.arange(min(n, 2000, len(test.labels))))
    synthetic, _ = finished.draw(len(real), seed)
    return {"w2": exact_w2(synthetic, real), "sliced_w2": sliced_w2(synthetic, real, seed=seed)}


def _images(
    finished: FinishedRun, n: int, seed: int, threads: int, reference: bool
) -> dict[str, Any]:
    classes = len(finished.data.classes)
    synthetic = finished.draw(n, seed)
    test_data = load(finished.data, "test")
    test = test_data.take(torch.arange(len(test_data.labels)))

    result: dict[str, Any] = {
        "sliced_w2": sliced_w2(synthetic[0].flatten(1), test[0].flatten(1), seed=seed),
        "label_histogram": label_histogram(synthetic[1], classes),
        "test_images": len(test[1]),
    }
    if len(finished.prior) == 1:
        print("The generator is unconditional: no labels to train classifiers on.", file=sys.stderr)
        return result
    result["classifiers"] = "ours"
    result["accuracy"] = accuracies(
        synthetic, test, classes=classes, seed=seed, threads=threads, progress=_report
    )
    if reference:
        train = load(finished.data, "train")
        real = train.take(torch.arange(len(train.labels)))
        result["real_accuracy"] = accuracies(
            real,
            test,
            classes=classes,
            seed=seed,
            origin="real training",
            size=n,
            threads=threads,
            progress=_report,
        )
    return result


def _threads(shape: tuple[int, ...]) -> int:
    """All cores, except for pictures so small that threads would wait for one another."""
    return os.cpu_count() or 1 if math.prod(shape[1:]) > _SMALL else 1


def _report(text: str) -> None:
    """Redraw one line on a terminal: a line per epoch would bury the table."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _table(result: dict[str, Any]) -> str:
    rows: list[dict[str, Any]] = []
    real = result.get("real_accuracy", {})
    for name, value in result.get("accuracy", {}).items():
        row = {"figure": f"accuracy {name}", "synthetic": f"{100 * value:.1f} %"}
        if name in real:
            row["real data"] = f"{100 * real[name]:.1f} %"
        rows.append(row)
    for key, name in (("w2", "W2"), ("sliced_w2", "sliced W2")):
        if key in result:
            rows.append({"figure": name, "synthetic": f"{result[key]:.4f}"})
    if "label_histogram" in result:
        counts = " ".join(str(count) for count in result["label_histogram"])
        rows.append({"figure": "images per class", "synthetic": counts})
    return format_table(rows)
