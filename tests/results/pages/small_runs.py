"""Small runs from whose folders pages are made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from fedsink.conf.acting import compose_config
from fedsink.simulation.simulated_run import start

RUNS = {
    "a0": ("seed=0", "eps=10"),
    "a1": ("seed=1", "eps=10"),
    "a2": ("seed=2",),  # the recipe's ε is the same 10
    "low": ("seed=0", "eps=1", "engine.threads=2"),
    "clients": ("seed=0", "adjacency=client", "clip=batch"),
    "local": ("seed=0", "mode=ldp"),
    "secret": ("eps=10",),
}
"""Overrides of each; `a0`, `a1` and `a2` differ only in their seed."""


def make(folder: Path) -> None:
    """Runs all of them, two clients and three rounds each, and stops a copy of `low` after two."""
    for name, overrides in RUNS.items():
        small = ("engine=local", "clients=2", "rounds=3", "report.pictures=1", "report.html=false")
        start(compose_config([*small, *overrides]), folder / name)
    stopped = folder / "stopped"
    shutil.copytree(folder / "low", stopped)
    (stopped / "metrics.json").unlink()
    lines = (stopped / "metrics.jsonl").read_text().splitlines(keepends=True)
    (stopped / "metrics.jsonl").write_text("".join(lines[:2]))


def evaluated(folder: Path, cnn: float, n: int = 200) -> None:
    """Writes the files that `fedsink evaluate` would write for a run."""
    figures = {
        "n": n, "seed": 0, "sliced_w2": 0.25,
        "accuracy": {"logreg": cnn - 0.1, "mlp": cnn - 0.05, "cnn": cnn},
    }  # fmt: skip
    (folder / "evaluation.json").write_text(json.dumps(figures))
