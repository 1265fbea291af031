"""The engine that hosts the clients: its settings, `engine=auto` and `engine=flower`.

`chosen_engine` chooses local or ray once, before a run begins, by public numbers only.
`run_flower` is Flower's own simulation on Ray, unmodified; it is slow, and there for parity.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Literal, Self

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedsink.environment import device_named
from fedsink.errors import ClientError, ConfigError
from fedsink.flower_internals import run_stock_simulation
from fedsink.server.loop import Interruption
from fedsink.server.running import ServerEngine
from fedsink.strategies.base.round_strategy import StrategySettings
from fedsink.values import Config, checks, strictly

_OF_RAY = ("address", "actors", "num_cpus", "num_gpus", "data", "revive_seconds", "timeout")


@dataclass(frozen=True)
class EngineSettings(ServerEngine):
    """The engine that hosts the clients, and the hardware that it uses.

    Its name is "auto", "ray", "local" or "flower"; threads are also those of each client, and the
    device is also that of the clients of `local`.
    """

    address: str | None = None  # Ray cluster to join, "auto" or "host:port"; None: of this machine
    actors: int | None = None  # number of Ray actors; None: one per CPU core
    num_cpus: float | None = None  # cores of this machine's Ray instance, or per client (flower)
    num_gpus: float = 0.0  # fraction of a GPU per actor (ray) or client (flower)
    data: Literal["path", "object_store"] = "path"  # read by Ray's actors, or one copy for all
    revive_seconds: float = 300.0  # to wait for places for Ray actors, also after a loss
    chosen: str | None = None  # why `engine=auto` took this one; None where a user named it

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.choice("engine.data", self.data, "path", "object_store")
        checks.positive("engine.revive_seconds", self.revive_seconds)
        if self.address is not None:
            if not re.fullmatch(r"auto|\S+:\d+", str(self.address)) or "/" in self.address:
                raise ConfigError(
                    f"engine.address must be null, auto or host:port, not {self.address!r}: it is "
                    "what ray start --head said."
                )
            if self.num_cpus is not None:
                raise ConfigError(
                    f"engine.num_cpus={self.num_cpus:g} is for a Ray instance of this machine, and "
                    f"those of engine.address={self.address} have the cores they were started "
                    "with: leave one of them out."
                )
        if self.actors is not None:
            checks.count("engine.actors", self.actors, also="null or ")
        if self.num_cpus is not None:
            # Ray counts its own whole cores; stock Flower deals out fractions of cores.
            check = checks.positive if self.name == "flower" else checks.count
            check("engine.num_cpus", self.num_cpus, also="null or ")
        gpus = checks.number("engine.num_gpus", self.num_gpus)
        if gpus > 1 and gpus % 1:  # Ray refuses it
            raise ConfigError(f"engine.num_gpus must be whole above 1, not {self.num_gpus}.")
        if self.address is None:  # else Ray knows which nodes have GPUs
            device_named(self.client_device, f"engine.num_gpus={self.num_gpus:g}")

    @classmethod
    def from_config(cls, engine: Config) -> Self:
        checks.choice("engine.name", engine.get("name"), "auto", "ray", "local", "flower")
        return strictly(cls, engine, "engine")

    def stored(self, given: Config) -> Config:
        """The group `engine` of config.yaml: as it was given, or as `engine=auto` has chosen it."""
        if self.chosen is None:
            return given
        of_local = [field.name for field in fields(ServerEngine)]
        names = of_local if self.name == "local" else given
        return {name: getattr(self, name) for name in (*names, "chosen")}

    @property
    def client_device(self) -> str:
        """Device of the clients: the GPU that they hold, or that of the server in this process."""
        if self.num_gpus > 0:
            return "cuda"
        return self.device if self.name == "local" else "cpu"


def chosen_engine(
    engine: EngineSettings, strategy: StrategySettings, cores: int | None = None
) -> EngineSettings:
    """Returns the engine that replaces `engine=auto`, with the reason; any other as it is.

    Ray is taken for an option that it alone has, and where many clients answer a round and there
    are several cores (GPUs, with `engine.device=cuda`); docs/cluster.md has the measurements.
    """
    if engine.name != "auto":
        return engine
    options = [
        f"engine.{field.name}={value}"
        for field in fields(engine)
        if field.name in _OF_RAY and (value := getattr(engine, field.name)) != field.default
    ]
    if options:
        return replace(engine, name="ray", chosen=f"{', '.join(options)} is only for Ray")
    gpus = torch.cuda.device_count() if engine.device == "cuda" else 0
    workers = gpus or cores or usable_cores()
    unit = "GPU" if gpus else "core"
    asked = sum(strategy.rounds_asked(client, 1) for client in range(strategy.clients))
    why = f"{asked} client{'s' * (asked > 1)} a round on {workers} {unit}{'s' * (workers > 1)}"
    if workers == 1 or asked < strategy.many_clients:
        return replace(engine, name="local", chosen=why)
    if gpus:
        return replace(engine, name="ray", num_gpus=1.0, actors=workers, chosen=why)
    return replace(engine, name="ray", chosen=why)


def usable_cores() -> int:
    """CPU cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_POLL_SECONDS = 1.0


def run_flower(
    serve: Callable[[Grid], object],
    client: ClientApp,
    clients: int,
    *,
    num_cpus: float,
    num_gpus: float,
) -> None:
    """Runs a server and clients under Flower's `run_simulation`.

    Flower runs the server in a thread and only logs its failure, so its error is caught there and
    raised here.
    """
    caught: list[BaseException] = []
    ended = threading.Event()
    carrying = ServerApp()

    @carrying.main()
    def main(grid: Grid, context: Context) -> None:
        pull = grid.pull_messages

        def pull_while_it_runs(message_ids: Iterable[str]) -> Iterable[Message]:
            if ended.is_set():
                raise ClientError("Flower's engine has ended: no reply can come.")
            return pull(message_ids)

        grid.pull_messages = pull_while_it_runs  # type: ignore[method-assign]
        try:
            wait_for_nodes(grid, clients, seconds=60.0)
            serve(grid)
        except BaseException as error:
            caught.append(error)

    logging.getLogger("flwr").setLevel(logging.ERROR)
    backend = {
        "client_resources": {"num_cpus": num_cpus, "num_gpus": num_gpus},
        # Without an address Ray would join whatever RAY_ADDRESS or a file of the machine names.
        "init_args": {"address": "local", "include_dashboard": False, "log_to_driver": False},
    }
    try:
        with Interruption():  # Flower runs the server in a thread, which no signal reaches
            run_stock_simulation(carrying, client, clients, backend)
    except RuntimeError as error:
        if not caught:
            raise ClientError(
                "Flower's engine has failed, and its log above tells why: engine=ray and "
                "engine=local run the same clients without it."
            ) from error
    finally:
        ended.set()
    if caught:
        raise caught[0]


def wait_for_nodes(grid: Grid, nodes: int, seconds: float) -> None:
    """Returns once so many are there: on a busy machine Flower starts the server before them."""
    deadline = time.monotonic() + seconds
    while (found := len(list(grid.get_node_ids()))) < nodes:
        if time.monotonic() > deadline:
            raise ClientError(
                f"{found} of {nodes} nodes are connected after {seconds:g} s: fewer clients=, or "
                "engine=ray, start sooner."
            )
        time.sleep(_POLL_SECONDS)
