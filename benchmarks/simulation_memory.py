"""Memory of a simulation when the same 20,000 records are dealt out to more and more clients.

DP-Sinkhorn, every client asked in every round, two Ray actors. The growth is the cost of a
client beyond its records. Arguments: numbers of clients.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_LOG_LEVEL="ERROR", FLWR_DISABLE_UPDATE_CHECK="1")

import ray
import torch
from flwr.app import ArrayRecord, ConfigRecord

from fedsink.clients.node_settings import NodeSettings
from fedsink.data.partition import Iid
from fedsink.data.spec import DataSpec
from fedsink.models import build
from fedsink.privacy import ClassSchedule, PrivacyPlan, RecordClip
from fedsink.protocol.dp_sinkhorn import Objective
from fedsink.simulation.ray.ray_grid import RayGrid
from fedsink.simulation.virtual_clients import Hosted, fedsink_apps
from fedsink.strategies.base.trainer import OptimizerSettings
from fedsink.strategies.dp_sinkhorn.self_term import SelfTermSettings
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhornSettings, DPSinkhornStrategy

RECORDS, CLASSES, SIZE, ROUNDS = 20_000, 10, 64, 10
CLIENTS = [100, 1000, 10_000]


def read(spec: DataSpec, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(5)
    labels = torch.arange(RECORDS) % CLASSES
    return torch.randn(RECORDS, SIZE, generator=random).clamp(-3, 3), labels


def host(settings: Any) -> Hosted:
    # Imported here: an actor gets this function by value, with copies of its globals.
    from fedsink.data.sources import SOURCES

    SOURCES["noise"] = read
    return fedsink_apps(settings)


def megabytes(process: int) -> float:
    """Megabytes that only this process holds."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    private = [line.split()[1] for line in lines if line.startswith("Private_")]
    return sum(int(kilobytes) for kilobytes in private) / 1024


def strategy_for(clients: int) -> DPSinkhornStrategy:
    plan = PrivacyPlan(0.05, 1.0, 1000, RecordClip(1.0), ClassSchedule(CLASSES), 1e-5)
    settings = DPSinkhornSettings(
        plan=plan,
        objective=Objective(lam=2.0, classes=CLASSES),
        self_term=SelfTermSettings("history", 2),
        view={"name": "pixel", "shape": [SIZE]},
        rows=10,
        optimizer=OptimizerSettings(0.01),
        clients=clients,
        nominal_records=RECORDS / clients,
    )
    random = torch.Generator().manual_seed(3)
    return DPSinkhornStrategy(settings, build("mlp", (SIZE,), CLASSES, generator=random), b"server")


def measure(clients: int) -> dict[str, float]:
    torch.set_num_threads(1)
    spec = DataSpec("noise", (SIZE,), tuple("0123456789"), RECORDS)
    node = NodeSettings(spec, Iid(), clients, seed=0)
    grid = RayGrid(node, actors=2, host=host)
    strategy = strategy_for(clients)
    seconds = []
    for number in range(1, ROUNDS + 1):
        began = time.perf_counter()
        messages = strategy.configure_train(number, ArrayRecord(), ConfigRecord(), grid)
        strategy.aggregate_train(number, grid.send_and_receive(messages))
        seconds.append(time.perf_counter() - began)
    pids = ray.get([actor.process.remote() for actor in grid.cohorts.actors])
    found = {
        "actors": sum(megabytes(pid) for pid in pids),
        "server": megabytes(os.getpid()),
        "rounds": 1 / statistics.median(seconds[1:]),
    }
    grid.close()
    return found


def main() -> None:
    arguments = sys.argv[1:]
    if arguments and arguments[0] == "--one":
        print(json.dumps(measure(int(arguments[1]))))
        return
    print("| clients | both actors, MB | server, MB | rounds/s |\n|---|---|---|---|")
    held = {}
    for clients in [int(argument) for argument in arguments] or CLIENTS:
        command = [sys.executable, __file__, "--one", str(clients)]
        ended = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(ended.stdout.splitlines()[-1])
        held[clients] = found["actors"] + found["server"]
        print(
            f"| {clients} | {found['actors']:.0f} | {found['server']:.0f} "
            f"| {found['rounds']:.3g} |",
            flush=True,
        )
    least, most = min(held), max(held)
    print(f"kilobytes a client: {1024 * (held[most] - held[least]) / max(1, most - least):.1f}")
    print(f"ratio simulation-memory-{most} {held[most] / held[least]:.2f}")


if __name__ == "__main__":
    main()
