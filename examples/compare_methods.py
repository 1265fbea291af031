"""Several methods on the same clients and the same data, evaluated and compared (docs/compare.md).

    python examples/compare_methods.py FOLDER [seed=0] [KEY=VALUE …]

The clients hold the same records in every run. The central and the local model promise different
things, and their ε cannot be compared. parameter_gradient is in fedsink-papers (docs/papers.md).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

import fedsink
from fedsink.commands.compare import run as compare

METHODS: dict[str, dict[str, Any]] = {
    "dp_sinkhorn": {"mode": "central", "eps": 10.0},
    "gs_wgan": {"mode": "central", "eps": 10.0},
    "parameter_gradient": {"mode": "central", "eps": 10.0},
    "privatize_once": {"mode": "ldp", "eps": 35.0},
}
"""The keys of each method; those that are typed hold for all of them."""


def main(folder: Path, images: int = 10_000, **keys: Any) -> None:
    """Runs each method in a folder of its name, evaluates it, and compares them in one page."""
    for method, own in METHODS.items():
        place = folder / method
        values = {"data": "digits", "strategy": method, **own, **keys}
        run = fedsink.resume(place) if place.exists() else fedsink.simulate(values, folder=place)
        if images and "evaluation" not in run.evaluations:
            run.evaluate(n=images)
    compare([f"run={folder}"])


if __name__ == "__main__":
    where, *words = sys.argv[1:]
    main(Path(where), **{k: yaml.safe_load(v) for k, v in (w.split("=", 1) for w in words)})
