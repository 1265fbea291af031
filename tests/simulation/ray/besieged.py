"""A run without a seed on a Ray cluster with TLS that loses ten actors and nodes; a program.

    python besieged.py FOLDER

Ray reads RAY_USE_TLS when it is imported, so this is no test's process. FOLDER gets the generators
of engine=local and of the cluster, and the ledgers of both, which a run would remove at its end.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import ray
from nodes import Nodes

from fedsink.clients.node import close_nodes
from fedsink.conf.acting import compose_config
from fedsink.server.folder import RunFolder
from fedsink.server.running import run_server
from fedsink.simulation.experiment import Experiment
from fedsink.simulation.grid import SimulationGrid
from fedsink.simulation.ray.ray_grid import RayGrid
from fedsink.simulation.run_identity import RunIdentity
from fedsink.simulation.virtual_clients import LocalGrid, fedsink_apps

ROUNDS, KILLS, CLIENTS = 40, 10, 6
OVERRIDES = (f"rounds={ROUNDS}", f"clients={CLIENTS}", "strategy.schedule=joint")


def settings_in(folder: Path, key_of: Path | None = None) -> Any:
    """Settings of a run in the folder, with a new key or another run's."""
    (folder / "run").mkdir(parents=True)
    identity = RunIdentity("besieged", 5, folder / "run.key")
    identity.create_key()
    if key_of is not None:
        shutil.copyfile(key_of / "run.key", folder / "run.key")
    config = compose_config([*OVERRIDES, "report.pictures=0", "report.html=false"])
    return Experiment.of(config, identity)


def run(settings: Any, grid: SimulationGrid, folder: Path) -> None:
    """Train, whatever happens to the grid."""
    try:
        run_server(grid, settings.server, RunFolder(folder / "run"))
    finally:
        grid.close()
        close_nodes()


def besiege(nodes: Nodes, grid: RayGrid) -> None:
    """Kills an actor or a node a moment after each of some rounds has ended."""
    chance = random.Random(3)
    when = set(chance.sample(range(1, ROUNDS - 1), KILLS))
    log = RunFolder.log

    def kill(delay: float, processes: list[int]) -> None:
        threading.Event().wait(delay)
        with contextlib.suppress(IndexError, ProcessLookupError):  # none was there, or is any more
            os.kill(chance.choice(processes), signal.SIGKILL)
            print("killed an actor", flush=True)
            return
        while not nodes.workers:  # the last one was killed, too, and another is on its way
            threading.Event().wait(0.1)
        nodes.kill(chance.choice(nodes.workers))
        print("killed a node", flush=True)
        nodes.add(1)

    def logged(folder: RunFolder, record: dict[str, Any]) -> None:
        log(folder, record)
        if record["round"] in when:
            processes = living(grid) if chance.random() < 0.5 else []
            # A round takes some 30 ms: this is in the midst of the next one, or of a revival.
            threading.Thread(target=kill, args=(0.03 * chance.random(), processes)).start()

    RunFolder.log = logged  # type: ignore[method-assign]


def living(grid: RayGrid) -> list[int]:
    """The processes of those actors that answer."""
    found = []
    for actor in grid.cohorts.actors:
        with contextlib.suppress(ray.exceptions.RayError):
            found.append(ray.get(actor.process.remote(), timeout=5))
    return found


def main(folder: Path) -> None:
    """The run in one process, then on the cluster."""
    local = settings_in(folder / "local")
    hosted = fedsink_apps(local.node)
    run(local, LocalGrid(hosted.app, CLIENTS, batched=hosted.batched), folder / "local")
    remote = settings_in(folder / "cluster", folder / "local")
    nodes = Nodes(folder)
    try:
        for _ in range(2):
            nodes.add(1)
        grid = RayGrid(remote.node, address=nodes.address, revive_seconds=300)
        besiege(nodes, grid)
        run(remote, grid, folder / "cluster")
    finally:
        nodes.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
