"""`fedsink evaluate run=DIR`: train on synthetic, test on real."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from fedsink.commands.keys import flag, parse, whole
from fedsink.commands.runs import FinishedRun, open_run
from fedsink.data.sources import load
from fedsink.errors import ConfigError
from fedsink.evaluation import (
    accuracies,
    exact_w2,
    format_table,
    label_histogram,
    real_reference,
    sliced_w2,
)
from fedsink.reporting import write_json

_SMALL = 16 * 16

HELP = """Usage: fedsink evaluate run=DIR [n=10000] [seed=0] [threads=…] [reference=false]

Draws n labelled images from the generator of a finished run (n=60000 is the papers' number),
trains logistic regression, an MLP and a CNN on them alone (10 % of the synthetic images for early
stopping), and tests each once on the real test set. Also: sliced 2-Wasserstein distance to the real
test images, and the label histogram. reference=true trains the same classifiers on as many real
training images, to show the ceiling. Writes evaluation.json into the run folder and prints a table.
These figures are computed on real data without privacy: they are for public benchmarks."""


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Evaluate, print, and write evaluation.json."""
    if {"-h", "--help"} & set(arguments):
        print(HELP)
        return 0
    keys = parse(
        arguments,
        {"run": str, "n": whole(20), "seed": whole(0), "threads": whole(1), "reference": flag},
    )
    if not keys.get("run"):
        raise ConfigError("run= is missing; fedsink evaluate --help says what to give.")
    finished = open_run(keys["run"])
    n, seed = keys.get("n", 10000), keys.get("seed", 0)
    started = time.monotonic()
    result: dict[str, Any] = {"n": n, "seed": seed}
    if len(finished.data.shape) == 1:
        result |= _points(finished, n, seed)
    else:
        result |= _images(
            finished,
            n,
            seed,
            keys.get("threads") or _threads(finished.data.shape),
            keys.get("reference", False),
        )
    result["seconds"] = round(time.monotonic() - started, 2)
    write_json(finished.folder.path / "evaluation.json", result)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(_table(result))
    print(finished.folder.path / "evaluation.json")
    return 0


def _points(finished: FinishedRun, n: int, seed: int) -> dict[str, Any]:
    test = load(finished.data, "test")
    real, _ = test.take(torch.arange(min(n, 2000, len(test.labels))))
    synthetic, _ = finished.draw(len(real), seed)
    return {"w2": exact_w2(synthetic, real), "sliced_w2": sliced_w2(synthetic, real, seed=seed)}


def _images(
    finished: FinishedRun, n: int, seed: int, threads: int | None, reference: bool
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
    result["accuracy"] = accuracies(
        synthetic, test, classes=classes, seed=seed, threads=threads, progress=_report
    )
    if reference:
        train = load(finished.data, "train")
        real = train.take(torch.arange(len(train.labels)))
        result["real_accuracy"] = real_reference(
            real, test, classes=classes, seed=seed, size=n, threads=threads, progress=_report
        )
    return result


def _threads(shape: tuple[int, ...]) -> int:
    """All cores, except for pictures so small that threads would wait for one another."""
    return os.cpu_count() or 1 if shape[-1] * shape[-2] > _SMALL else 1


def _report(text: str) -> None:
    """An epoch a line would bury the table: one line, redrawn, and only on a terminal."""
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
