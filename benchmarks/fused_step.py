"""One step of the central mode: `engine=local` against `engine=fused`, which a GPU records once.

Two runs on made-up images of MNIST's size: the recipe for it (every record clipped, 10 clients) and
the published one (50 + 10 images a step, q = 1/1200, the batch's gradient clipped). Engines take
turns. On a CPU capture is off and processor time is counted; on a GPU the time until the device is
done, with the draws made there.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any, Literal

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_LOG_LEVEL="ERROR", FLWR_DISABLE_UPDATE_CHECK="1")

import torch
from flwr.app import ArrayRecord, ConfigRecord
from interleaved import arguments, table
from torch import Tensor

from fedsink.clients.app import client_app
from fedsink.clients.cohort import NodeCohort
from fedsink.clients.node import open_node
from fedsink.clients.settings import NodeSettings
from fedsink.data import sources
from fedsink.data.partition import Iid
from fedsink.data.spec import DataSpec
from fedsink.models import Generator, build
from fedsink.privacy import BatchClip, ClassSchedule, JointSchedule, PrivacyPlan, RecordClip
from fedsink.protocol import Objective
from fedsink.simulation.fused import FusedStep
from fedsink.simulation.local import LocalGrid
from fedsink.strategies import DPSinkhorn, DPSinkhornSettings
from fedsink.strategies.self_term import SelfTermSettings
from fedsink.strategies.trainer import OptimizerSettings

SHAPE, CLASSES, RECORDS = (1, 28, 28), 10, 60_000
KEY = b"server"


def images(spec: DataSpec, split: str) -> tuple[Tensor, Tensor]:
    """Images of which 81 % is background, as of MNIST's."""
    random = torch.Generator().manual_seed(0)
    pixels = torch.rand(RECORDS, *SHAPE, generator=random)
    pixels *= torch.rand(RECORDS, *SHAPE, generator=random) < 0.19
    return pixels, torch.randint(0, CLASSES, (RECORDS,), generator=random)


def recipe() -> tuple[DPSinkhornSettings, Callable[[], Generator]]:
    """The recipe for MNIST (`F2`), ten clients."""
    clients, rate = 10, 0.2
    plan = PrivacyPlan(
        rate, 20.0, 4000, RecordClip(8.0), ClassSchedule(CLASSES), 1e-5,
        capacity=1500, nominal_records=RECORDS // clients,
    )  # fmt: skip
    settings = DPSinkhornSettings(
        plan, Objective(lam=5.0, classes=CLASSES), SelfTermSettings("history", 3),
        {"name": "dct", "shape": list(SHAPE), "radius": 14, "dc": False}, 20,
        OptimizerSettings(1.5e-3), clients, RECORDS / clients,
    )  # fmt: skip
    options: dict[str, Any] = {
        "latent_dim": 8,
        "hidden": [256, 256],
        "radius": 14,
        "per_class_first_layer": True,
    }
    return settings, lambda: build("dct_mlp", SHAPE, CLASSES, **options)


def published() -> tuple[DPSinkhornSettings, Callable[[], Generator]]:
    """The published run (Cao et al. 2021), one client."""
    plan = PrivacyPlan(
        1 / 1200, 1.1, 4_470_000, BatchClip(0.5), JointSchedule(), 1e-5,
        capacity=100, nominal_records=RECORDS,
    )  # fmt: skip
    settings = DPSinkhornSettings(
        plan, Objective(lam=0.05, classes=CLASSES, m=1.0, solver="annealed"),
        SelfTermSettings("semi_debiased", p=0.2), {"name": "pixel", "shape": list(SHAPE)}, 5,
        OptimizerSettings(1e-5), 1, RECORDS,
    )  # fmt: skip
    return settings, lambda: build("dcgan", SHAPE, CLASSES)


class Timer:
    """Milliseconds per call: until the device is done, or of this process on a CPU."""

    def __init__(self, device: str) -> None:
        self._gpu = device == "cuda"

    def __call__(self, run: Callable[[], None], calls: int) -> float:
        began = self._now()
        for _ in range(calls):
            run()
        return 1e3 * (self._now() - began) / calls

    def _now(self) -> float:
        if not self._gpu:
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()


def local_step(
    settings: DPSinkhornSettings, model: Generator, node: NodeSettings
) -> Callable[[], None]:
    """One round of the strategy on the in-process engine."""
    strategy = DPSinkhorn(settings, model, KEY)
    grid = LocalGrid(client_app(node), settings.clients, batched=NodeCohort(node))

    def step() -> None:
        number = strategy.round + 1
        messages = strategy.configure_train(number, ArrayRecord(), ConfigRecord(), grid)
        strategy.aggregate_train(number, grid.send_and_receive(messages))

    return step


def measure(
    made: tuple[DPSinkhornSettings, Callable[[], Generator]], device: str, repeats: int
) -> tuple[float, float]:
    settings, model = made
    spec = DataSpec("made-up", SHAPE, tuple("0123456789"), RECORDS)
    node = NodeSettings(spec, Iid(), settings.clients, seed=0)
    shards = [open_node(node, client).shard for client in range(settings.clients)]
    draws: Literal["keyed", "device"] = "device" if device == "cuda" else "keyed"
    fused = FusedStep(settings, model().to(device), shards, seed=0, server_key=KEY, draws=draws)
    local, timer = local_step(settings, model().to(device), node), Timer(device)
    steps = 500 if device == "cuda" else 5
    timer(local, 2)
    timer(fused.step, 2 * steps)  # records
    slow, fast = [], []
    for _ in range(repeats):
        slow.append(timer(local, 5))
        fast.append(timer(fused.step, steps))
    return statistics.median(slow), statistics.median(fast)


def main() -> None:
    repeats = arguments(__doc__, repeats=7).repeats
    sources.SOURCES["made-up"] = images
    device = "cuda" if torch.cuda.is_available() else "cpu"
    named = torch.cuda.get_device_name() if device == "cuda" else "CPU, capture is off"
    print(f"{named}; torch {torch.__version__}\n")
    rows, ratios = [], []
    for name, made in (("recipe", recipe()), ("published", published())):
        slow, fast = measure(made, device, repeats)
        rows.append([name, f"{slow:.3g}", f"{fast:.3g}", f"{slow / fast:.3g}"])
        ratios.append(slow / fast)
    table(["run", "engine=local, ms a step", "engine=fused, ms a step", "times"], rows)
    print(f"ratio fused_step_recipe {ratios[0]:.2f}")
    print(f"ratio fused_step {ratios[1]:.2f}")


if __name__ == "__main__":
    main()
