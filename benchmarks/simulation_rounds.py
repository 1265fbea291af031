"""Rounds per second of a simulation: Flower's own engine against ours, with the same apps.

DP-Sinkhorn on the embedded digits, every client asked in every round. Both engines run the same
`ServerApp` and the same `ClientApp`; ours adds the replies up where they arise. Engines take
turns, each turn in a process of its own, for both want Ray to themselves. The arguments name the
rows: `python benchmarks/simulation_rounds.py 10 100 1000`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_LOG_LEVEL="ERROR", FLWR_DISABLE_UPDATE_CHECK="1")

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from fedsink.clients.app import client_app
from fedsink.server.running import build_strategy
from fedsink.simulation.flower import run_flower
from fedsink.simulation.grid import client_context
from fedsink.simulation.identity_of_run import RunIdentity
from fedsink.simulation.ray.grid import RayGrid
from fedsink.simulation.settings import RunSettings
from fedsink.simulation.simulate import configure

# Flower's engine takes half a minute for a round of a thousand clients.
STOCK_ROUNDS = {10: 15, 100: 6, 1000: 2}
OUR_ROUNDS = {10: 100, 100: 60, 1000: 30}
TURNS = {10: 3, 100: 2, 1000: 1}


def settings_for(clients: int) -> RunSettings:
    with initialize_config_module("fedsink.conf", version_base="1.3"):
        config = compose(
            "config",
            overrides=[f"clients={clients}", "seed=0", "report.pictures=0", "report.html=false"],
        )
    resolved: Any = OmegaConf.to_container(config, resolve=True)
    return configure(resolved, Path(tempfile.gettempdir()) / "unused", RunIdentity.fresh(0))


def timed_server(settings: RunSettings, rounds: int, seconds: list[float]) -> ServerApp:
    """A `ServerApp` that plays rounds and notes how long each took; the first is not noted."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = build_strategy(settings.server)
        for number in range(1, rounds + 2):
            began = time.perf_counter()
            messages = strategy.configure_train(number, ArrayRecord(), ConfigRecord(), grid)
            strategy.aggregate_train(number, grid.send_and_receive(messages))
            if number > 1:
                seconds.append(time.perf_counter() - began)

    return app


def ours(settings: RunSettings, rounds: int) -> list[float]:
    seconds: list[float] = []
    grid = RayGrid(settings.node)
    try:
        context = client_context(0, settings.node.clients, 1)
        timed_server(settings, rounds, seconds)(grid, context)
    finally:
        grid.close()
    return seconds


def stock(settings: RunSettings, rounds: int) -> list[float]:
    seconds: list[float] = []
    server = timed_server(settings, rounds, seconds)
    run_flower(server, client_app(settings.node), settings.node.clients, num_cpus=1.0, num_gpus=0.0)
    return seconds


def turn(engine: str, clients: int, rounds: int) -> list[float]:
    """Seconds of each round, measured in a process of its own."""
    command = [sys.executable, __file__, engine, str(clients), str(rounds)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds: list[float] = json.loads(ended.stdout.splitlines()[-1])
    return seconds


def main() -> None:
    arguments = sys.argv[1:]
    if arguments and arguments[0] in ("flower", "ours"):
        engine = stock if arguments[0] == "flower" else ours
        print(json.dumps(engine(settings_for(int(arguments[1])), int(arguments[2]))))
        return
    print("| clients | Flower, rounds/s | ours, rounds/s | ratio |\n|---|---|---|---|")
    ratios = []
    for clients in [int(argument) for argument in arguments] or [10, 100]:
        theirs, mine = [], []
        for _ in range(TURNS[clients]):
            mine += turn("ours", clients, OUR_ROUNDS[clients])
            theirs += turn("flower", clients, STOCK_ROUNDS[clients])
        slow, fast = statistics.median(theirs), statistics.median(mine)
        print(f"| {clients} | {1 / slow:.3g} | {1 / fast:.3g} | {slow / fast:.0f} |", flush=True)
        ratios.append(f"ratio simulation-rounds-{clients} {slow / fast:.1f}")
    print("\n".join(ratios))


if __name__ == "__main__":
    main()
