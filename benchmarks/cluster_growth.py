"""Cost of a round as clients, actors and nodes of a Ray cluster grow: rounds per second, bytes.

DP-Sinkhorn on the embedded digits, every client asked in every round, with a seed. The reference of
each row is `engine=local` with the same clients, measured in the same run of this script. Nodes are
Ray's processes on this machine, one core each, with a head that hosts nobody; they share its cores,
so that the rows show the cost of distribution, and not the gain of more machines.

    python benchmarks/cluster_growth.py [CLIENTS …]      # 100 1000
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simulation_rounds import settings_for, timed_server

from fedsink.simulation.grid import SimulationGrid
from fedsink.simulation.ray.ray_grid import RayGrid
from fedsink.simulation.virtual_clients import LocalGrid, fedsink_apps

CLIENTS = (100, 1000)
NODES = (1, 2, 3)
ROUNDS = 40


class Traffic:
    """Counts the pickled bytes of questions to cohorts and of their answers."""

    def __init__(self, grid: RayGrid) -> None:
        self._ask, self._cohorts = grid.cohorts.ask, len(grid.cohorts)
        self.contents = self.parts = self.answers = self.asked = 0
        grid.cohorts.ask = self.ask  # type: ignore[method-assign]

    def ask(self, method: str, shared: Any, work: Sequence[Sequence[Any]], *more: Any) -> list[Any]:
        answers = self._ask(method, shared, work, *more)
        self.asked += 1
        self.contents += _size(shared)
        self.parts += sum(map(_size, work))
        self.answers += sum(map(_size, answers))
        return answers

    def a_round(self) -> dict[str, float]:
        return {
            "contents": self.contents / self.asked,
            "parts": self.parts / self.asked / self._cohorts,
            "answers": self.answers / self.asked / self._cohorts,
        }


def _size(value: Any) -> int:
    return len(pickle.dumps(value))


def measure(address: str, clients: int) -> dict[str, Any]:
    """Measures one run of this process: the median round, and the bytes of one."""
    settings = settings_for(clients)
    hosted = fedsink_apps(settings.node)
    grid: SimulationGrid
    if address == "local":
        grid = LocalGrid(hosted.app, clients, batched=hosted.batched)
    else:
        grid = RayGrid(settings.node, address=address)
    traffic = Traffic(grid) if isinstance(grid, RayGrid) else None
    seconds: list[float] = []
    try:
        timed_server(settings, ROUNDS, seconds)(grid)
    finally:
        grid.close()
    return {"seconds": statistics.median(seconds), **({} if traffic is None else traffic.a_round())}


def turn(address: str, clients: int) -> dict[str, Any]:
    """Runs `measure` in a new process."""
    command = [sys.executable, __file__, "measure", address, str(clients)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    measured: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return measured


@contextmanager
def cluster(nodes: int) -> Iterator[str]:
    """The address of a Ray cluster with so many nodes of one core, ended by process group."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:

        def start(*words: str) -> None:
            log = Path(folder) / f"{len(started)}.log"
            command = [
                str(Path(sys.executable).with_name("ray")), "start", *words, "--block",
                "--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0",
                f"--object-store-memory={100 << 20}", "--disable-usage-stats",
            ]  # fmt: skip
            with log.open("wb") as file:
                started.append(
                    subprocess.Popen(
                        command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
                    )
                )
            while "Ray runtime started" not in log.read_text():
                if started[-1].poll() is not None:
                    raise RuntimeError(f"Ray did not start: {log.read_text()}")
                time.sleep(0.1)

        try:
            start(
                "--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false",
                f"--temp-dir={folder}/ray",
            )  # fmt: skip
            for _ in range(nodes):
                start(f"--address=127.0.0.1:{port}", "--num-cpus=1")
            yield f"127.0.0.1:{port}"
        finally:
            for process in started:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def main() -> None:
    arguments = sys.argv[1:]
    if arguments and arguments[0] == "measure":
        print(json.dumps(measure(arguments[1], int(arguments[2]))))
        return
    sizes = [int(argument) for argument in arguments] or list(CLIENTS)
    references = {clients: turn("local", clients)["seconds"] for clients in sizes}
    for clients, seconds in references.items():
        print(f"engine=local, {clients} clients: {1 / seconds:.3g} rounds/s", flush=True)
    print(
        "| nodes = actors | clients | rounds/s | ratio to local | to each node, kB | "
        "to each actor besides, kB | from each actor, kB |\n|---|---|---|---|---|---|---|"
    )
    for nodes in NODES:
        with cluster(nodes) as address:
            for clients in sizes:
                row = turn(address, clients)
                print(
                    f"| {nodes} | {clients} | {1 / row['seconds']:.3g} "
                    f"| {references[clients] / row['seconds']:.2f} | {row['contents'] / 1e3:.1f} "
                    f"| {row['parts'] / 1e3:.2f} | {row['answers'] / 1e3:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
