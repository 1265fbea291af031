"""Cost of a fixed capacity, and whether its running time tells the size of a sample.

Prints, for recipes of fedsink on synthetic images, the median CPU time of one client's answer for
an empty, a typical and a full sample, and the ratio of the padded to the ordinary answer on the
typical sample. All answers are measured in turns in one process on one thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedsink.clients.answers.dp_sinkhorn import client_gradient
from fedsink.clients.records.shard import Shard
from fedsink.data.views import DctView, PixelView, View
from fedsink.privacy import BatchClip, ClassSchedule, Clip, PrivacyPlan, RecordClip, Stream
from fedsink.privacy.accounting.capacity import capacity_for
from fedsink.privacy.sampling import JointSchedule, Schedule
from fedsink.protocol.dp_sinkhorn import GradientRequest, Objective

CLASSES = 10
DISC = DctView((1, 28, 28), 14, dc=False)
PIXELS = PixelView((1, 28, 28))


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One client's part of a recipe.

    `candidates` records may be sampled in a round. The capacity is that of `nominal` records: all
    of the client's, as the size of a class is private.
    """

    name: str
    clip: Clip
    schedule: Schedule
    view: View
    rows: int
    rate: float
    candidates: int
    nominal: int
    rounds: int
    objective: Objective


RECIPES = [
    Recipe(
        "F2: record clip, class schedule",
        RecordClip(8.0), ClassSchedule(CLASSES), DISC, 20, 0.2, 600, 6000, 4000,
        Objective(lam=5.0, classes=CLASSES),
    ),
    Recipe(
        "F2 with classes of a public size",
        RecordClip(8.0), ClassSchedule(CLASSES), DISC, 20, 0.2, 600, 600, 4000,
        Objective(lam=5.0, classes=CLASSES),
    ),
    Recipe(
        "record clip, joint schedule",
        RecordClip(8.0), JointSchedule(), DISC, 60, 0.06, 6000, 6000, 4000,
        Objective(lam=5.0, classes=CLASSES),
    ),
    Recipe(
        "batch clip, class schedule, converged",
        BatchClip(1.0), ClassSchedule(CLASSES), DISC, 10, 0.025, 600, 6000, 4000,
        Objective(lam=5.0, classes=CLASSES),
    ),
    Recipe(
        "batch clip, joint schedule, annealed, λ = 0.05 (as published)",
        BatchClip(0.5), JointSchedule(), PIXELS, 50, 1 / 1200, 60_000, 60_000, 3_400_000,
        Objective(lam=0.05, classes=CLASSES, m=1.0, solver="annealed"),
    ),
]  # fmt: skip


class Chosen(Stream):
    """Samples the first `size` candidates at any rate, by the same work as any stream."""

    def __init__(self, size: int) -> None:
        super().__init__(b"benchmark", "sample")
        self.size = size

    def uniform(self, *shape: int) -> Tensor:
        values = super().uniform(*shape)
        values[: self.size].mul_(1e-9)
        values[self.size :].clamp_(min=0.9)
        return values


def request_of(recipe: Recipe, capacity: int | None) -> GradientRequest:
    """A request for random rows."""
    random = torch.Generator().manual_seed(0)
    label = recipe.schedule.label(0, 0)
    rows = recipe.view(torch.rand(recipe.rows, *recipe.view.shape, generator=random))
    plan = PrivacyPlan(
        recipe.rate, 2.0, recipe.rounds, recipe.clip, recipe.schedule, 1e-5,
        capacity=capacity, nominal_records=recipe.nominal,
    )  # fmt: skip
    turns = torch.arange(recipe.rows) % CLASSES
    return GradientRequest(
        round=1, label=label, plan=plan, objective=recipe.objective, view=recipe.view.to_dict(),
        rows=rows, row_labels=turns if label is None else torch.full((recipe.rows,), label),
        potentials=torch.randn(recipe.rows, generator=random), self_gradient=torch.zeros_like(rows),
    )  # fmt: skip


def shard_of(recipe: Recipe) -> Shard:
    """Random images, as many as may be sampled."""
    random = torch.Generator().manual_seed(1)
    images = torch.rand(recipe.candidates, *recipe.view.shape, generator=random)
    labels = torch.arange(recipe.candidates) % CLASSES
    if recipe.schedule.label(0, 0) is not None:
        labels = torch.zeros_like(labels)
    return Shard(images, labels)


def medians(calls: dict[str, Callable[[], Any]], runs: int) -> dict[str, float]:
    """Median CPU milliseconds of each call, measured in turns."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(runs):
        for name, call in calls.items():
            start = time.process_time()
            call()
            taken[name].append(1e3 * (time.process_time() - start))
    return {name: statistics.median(values) for name, values in taken.items()}


def measure(recipe: Recipe, runs: int) -> None:
    """Prints one recipe's lines."""
    uses = recipe.schedule.uses(recipe.rounds)
    capacity = capacity_for(recipe.rate, recipe.nominal, uses, 1e-5)
    typical = round(recipe.rate * recipe.candidates)
    shard = shard_of(recipe)
    padded, free = request_of(recipe, capacity), request_of(recipe, None)

    def answer(request: GradientRequest, size: int) -> Callable[[], Tensor]:
        return lambda: client_gradient(request, shard, lambda _: Chosen(size))

    calls = {
        "empty": answer(padded, 0),
        "typical": answer(padded, typical),
        "full": answer(padded, min(capacity, recipe.candidates)),
        "ordinary empty": answer(free, 0),
        "ordinary": answer(free, typical),
    }
    medians(calls, 3)
    ms = medians(calls, runs)
    print(f"{recipe.name}: n = {recipe.rows}, D = {recipe.view.dimension}")
    print(
        f"  capacity {capacity}: empty {ms['empty']:.2f} ms, typical ({typical}) "
        f"{ms['typical']:.2f} ms, full {ms['full']:.2f} ms"
    )
    print(
        f"  no capacity: empty {ms['ordinary empty']:.2f} ms, typical {ms['ordinary']:.2f} ms; "
        f"padded / ordinary = {ms['typical'] / ms['ordinary']:.2f}"
    )


def main() -> None:
    """Measures every recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="answers of each kind")
    runs = parser.parse_args().runs
    torch.set_num_threads(1)
    for recipe in RECIPES:
        measure(recipe, runs)


if __name__ == "__main__":
    main()
