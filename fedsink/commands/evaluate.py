"""`fedsink evaluate run=DIR`: train on synthetic, test on real."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from fedsink.commands.command_keys import Parser, flag, parse, whole
from fedsink.errors import ConfigError
from fedsink.reporting.displays import ForgivingStream
from fedsink.reporting.progress import GAP_SHARE
from fedsink.results.evaluation.sets import Report
from fedsink.simulation.run_figures import evaluate_run

HELP = """Usage: fedsink evaluate run=DIR [suite=fast] [classifiers=ours] [n=…] [runs=…] [seed=0]
                        [threads=…] [reference=…] [observation=true] [inception=FILE]

Draws n labelled images from the generator of a finished run, trains classifiers on only these
(10 % of the synthetic images for early stopping), and tests each once on the real test set.

suite=fast   n=10000 (fewer where an image has more than 784 values), one run: logistic regression,
             an MLP and a CNN, sliced 2-Wasserstein distance to the real test images, the label
             histogram. Writes evaluation.json.

Packages add suites and classifiers (docs/evaluation.md). fedsink-papers (packages/papers) has
suite=paper, the papers' protocol of five runs; suite=full, with GS-WGAN's other classifiers,
Inception Score, FID, precision, recall and memorisation; classifiers=published and
classifiers=dpimagebench. They write evaluation-SUITE.json and .txt.

reference=false leaves out the same classifiers trained on real images (the ceiling) and on their
class means (the floor), which show how easy the data are, and halves the time.
observation=false measures pictures without the run's observation.*; its files end in -bare.
inception=FILE measures FID with the weights in FILE, torchvision's
inception_v3_google-0cc3c7bd.pth; nothing is downloaded, and n= is more than 2048.
A report.html in the run folder is updated (fedsink report).
These figures are computed on real data without privacy: they are for public benchmarks."""


_BETWEEN_LINES = 20.0  # seconds


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Evaluates, prints, and writes the results into the run folder."""
    parsers: dict[str, Parser] = {
        "run": str, "suite": str, "classifiers": str, "n": whole(20), "runs": whole(1),
        "seed": whole(0), "threads": whole(1), "reference": flag, "observation": flag,
        "inception": str,
    }  # fmt: skip
    keys = parse(arguments, parsers, of="evaluate", needs=("run",))
    measured = evaluate_run(**keys, report=_reporter(), agree=_agree)
    if sys.stderr is not None and sys.stderr.isatty():
        print(file=sys.stderr)
    if "label_histogram" in measured.figures and "accuracy" not in measured.figures:
        print("The generator is unconditional: no labels to train classifiers on.", file=sys.stderr)
    print(measured.table)
    print(measured.path)
    return 0


def _reporter() -> Report:
    """Redraws one line on a terminal, and elsewhere prints one after a while."""
    started = last = time.monotonic()
    terminal = sys.stderr is not None and sys.stderr.isatty()
    stream = ForgivingStream(sys.stderr)

    def report(text: str) -> None:
        nonlocal last
        now = time.monotonic()
        if terminal:
            stream.write(f"\r\033[K{text}")
        elif now - last >= max(_BETWEEN_LINES, GAP_SHARE * (now - started)):
            last = now
            stream.write(f"{text}\n")
        stream.flush()

    return report


def _agree(hours: float) -> None:
    """Warns of hours before they begin; a person at a terminal has to agree."""
    stream = ForgivingStream(sys.stderr)
    stream.write(
        f"This takes about {hours:.0f} hours of one core: fewer pictures (n=), or a GPU where "
        "the classifiers use one, take less. Ctrl-C stops it and leaves nothing.\n"
    )
    if all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
        stream.write("Begin all the same? [y/N] ")
        stream.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise ConfigError("nothing was evaluated.")
