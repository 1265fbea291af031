"""Measuring a reference and ours in turn, in one process, by processor time."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ParamSpec

P = ParamSpec("P")


def arguments(description: str | None, repeats: int) -> argparse.Namespace:
    """Parses the options that every benchmark has."""
    import torch

    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--repeats", type=int, default=repeats)
    options = parser.parse_args()
    torch.set_num_threads(1)
    return options


def milliseconds(run: Callable[[], object]) -> float:
    """Processor time of one call in this process, without that of other processes."""
    start = time.process_time()
    run()
    return 1e3 * (time.process_time() - start)


def alike(run: Callable[P, object], *args: P.args, **options: P.kwargs) -> Callable[[int], object]:
    """Makes a run for `medians` of equal calls, however many there are."""
    return lambda number: run(*args, **options)


def medians(
    runs: Mapping[str, Callable[[int], object]], repeats: int, block: int = 1
) -> dict[str, float]:
    """Median time of one call of each run.

    The runs take turns by blocks of calls: in longer blocks each run finds its own data in the
    caches, in blocks of one call the data of the others.
    """
    for run in runs.values():
        run(0)  # compiles, and fills caches
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for first in range(0, repeats, block):
        for name, run in runs.items():
            numbers = range(first, min(first + block, repeats))
            taken[name] += [milliseconds(partial(run, number)) for number in numbers]
    return {name: statistics.median(times) for name, times in taken.items()}


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a Markdown table."""
    print(f"| {' | '.join(header)} |")
    print("|" + "---|" * len(header))
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)
