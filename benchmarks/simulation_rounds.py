"""Rounds per second of a simulation: Flower's own engine against ours, or our engines compared.

DP-Sinkhorn on the embedded digits, every client asked in every round. Every engine runs the same
`ServerApp` and the same `ClientApp`; ours adds the replies up where they arise. Engines take
turns, each turn in a new process: an engine on Ray does not share its Ray instance.

    python benchmarks/simulation_rounds.py 10 100 1000       # Flower's engine against engine=ray
    python benchmarks/simulation_rounds.py engines 10 1000 10000 [KEY=VALUE …]

The rule of `engine=auto` rests on the second command: the first round (Ray's start is in it) and
the median one of engine=local and engine=ray on 1 and on 2 cores, and after how many rounds Ray is
ahead. More than 1,437 clients want data=shapes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_LOG_LEVEL="ERROR", FLWR_DISABLE_UPDATE_CHECK="1")

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from omegaconf import OmegaConf

from fedsink.clients.app import client_app
from fedsink.conf.loading import composed
from fedsink.server.running import build_strategy
from fedsink.simulation.engine import run_flower
from fedsink.simulation.experiment import Experiment
from fedsink.simulation.grid import SimulationGrid
from fedsink.simulation.ray.ray_grid import RayGrid
from fedsink.simulation.run_identity import RunIdentity
from fedsink.simulation.virtual_clients import LocalGrid, fedsink_apps

# Flower's engine takes half a minute for a round of a thousand clients.
STOCK_ROUNDS = {10: 15, 100: 6, 1000: 2}
OUR_ROUNDS = {10: 100, 100: 60, 1000: 30}
TURNS = {10: 3, 100: 2, 1000: 1}
CORES = (1, 2)
LONGEST = 10.0


def settings_for(clients: int, overrides: Sequence[str] = ()) -> Experiment:
    keys = [f"clients={clients}", "seed=0", "report.pictures=0", "report.html=false"]
    config = composed(["engine=local", *keys, *overrides])
    resolved: Any = OmegaConf.to_container(config, resolve=True)
    return Experiment.of(resolved, RunIdentity.fresh(0))


def timed_server(settings: Experiment, rounds: int, seconds: list[float]) -> Callable[[Grid], None]:
    """Returns a server that plays rounds and notes the seconds of each except the first.

    It ends early, after the fourth round at the earliest, once rounds took `LONGEST` seconds.
    """

    def serve(grid: Grid) -> None:
        strategy = build_strategy(settings.server)
        for number in range(1, rounds + 2):
            began = time.perf_counter()
            messages = strategy.configure_train(number, ArrayRecord(), ConfigRecord(), grid)
            strategy.aggregate_train(number, grid.send_and_receive(messages))
            if number > 1:
                seconds.append(time.perf_counter() - began)
            if number > 3 and sum(seconds) > LONGEST:
                break

    return serve


def ours(engine: str, settings: Experiment, rounds: int) -> list[float]:
    """Seconds until the first round has ended, then those of each further round."""
    seconds: list[float] = []
    began = time.perf_counter()
    grid: SimulationGrid
    if engine == "local":
        hosted = fedsink_apps(settings.node)
        grid = LocalGrid(hosted.app, settings.node.clients, batched=hosted.batched)
    else:
        grid = RayGrid(settings.node, num_cpus=len(os.sched_getaffinity(0)))
    try:
        timed_server(settings, rounds, seconds)(grid)
        until_first = time.perf_counter() - began - sum(seconds)
    finally:
        grid.close()
    return [until_first, *seconds]


def stock(settings: Experiment, rounds: int) -> list[float]:
    """Seconds of each round but the first."""
    seconds: list[float] = []
    server = timed_server(settings, rounds, seconds)
    run_flower(server, client_app(settings.node), settings.node.clients, num_cpus=1.0, num_gpus=0.0)
    return seconds


def turn(
    engine: str, clients: int, rounds: int, cores: int | None = None, overrides: Sequence[str] = ()
) -> list[float]:
    """Measures an engine in a new process, on `cores` cores; None: on all."""
    command = [sys.executable, __file__, "turn", engine, str(clients), str(rounds), *overrides]
    if cores is not None:
        command = ["taskset", "--cpu-list", f"0-{cores - 1}", *command]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds: list[float] = json.loads(ended.stdout.splitlines()[-1])
    return seconds


def against_flower(sizes: Sequence[int]) -> None:
    print("| clients | Flower, rounds/s | ours, rounds/s | ratio |\n|---|---|---|---|")
    ratios = []
    for clients in sizes or [10, 100]:
        theirs, mine = [], []
        for _ in range(TURNS[clients]):
            mine += turn("ray", clients, OUR_ROUNDS[clients])[1:]
            theirs += turn("flower", clients, STOCK_ROUNDS[clients])
        slow, fast = statistics.median(theirs), statistics.median(mine)
        print(f"| {clients} | {1 / slow:.3g} | {1 / fast:.3g} | {slow / fast:.0f} |", flush=True)
        ratios.append(f"ratio simulation-rounds-{clients} {slow / fast:.1f}")
    print("\n".join(ratios))


def engines(sizes: Sequence[int], overrides: Sequence[str]) -> None:
    header = (
        "clients", "cores", "local, s to the first", "ray", "local, ms a round", "ray",
        "local / ray", "Ray is ahead after rounds",
    )  # fmt: skip
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for clients in sizes:
        rounds = max(8, min(60, 20_000 // clients))
        for cores in CORES:
            here, *local = turn("local", clients, rounds, cores, overrides)
            there, *ray = turn("ray", clients, rounds, cores, overrides)
            slow, fast = statistics.median(local), statistics.median(ray)
            ahead = f"{(there - here) / (slow - fast):.0f}" if slow > fast else "never"
            print(
                f"| {clients} | {cores} | {here:.1f} | {there:.1f} | {1e3 * slow:.1f} "
                f"| {1e3 * fast:.1f} | {slow / fast:.2f} | {ahead} |",
                flush=True,
            )


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["turn"]:
        engine, clients, rounds, *overrides = arguments[1:]
        settings = settings_for(int(clients), overrides)
        played = (
            stock(settings, int(rounds))
            if engine == "flower"
            else ours(engine, settings, int(rounds))
        )
        print(json.dumps(played))
        return
    overrides = [word for word in arguments if "=" in word]
    sizes = [int(word) for word in arguments if word.isdecimal()]
    if arguments[:1] == ["engines"]:
        engines(sizes or [10, 100, 1000, 10_000], overrides)
    else:
        against_flower(sizes)


if __name__ == "__main__":
    main()
