"""The settings of a simulated run: server, clients and engine."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Literal, Self, cast

from fedsink.clients.node_settings import NodeSettings, Noise
from fedsink.clients.policy_file import read_policy
from fedsink.configuration import Configuration
from fedsink.data.partition import scheme_from_dict
from fedsink.devices import device_named
from fedsink.errors import ConfigError
from fedsink.server.settings import ServerEngine, ServerSettings
from fedsink.simulation.identity_of_run import RunIdentity
from fedsink.values import Config, choice, integer, number, positive, strictly


@dataclass(frozen=True)
class EngineSettings(ServerEngine):
    """Which engine hosts the clients, and on what.

    Attributes:
        name: "auto", "ray", "local" or "flower".
        timeout: seconds to wait for a round's replies; None: for ever.
        threads: torch threads of the server and of each client.
        device: where the generator lives, and the clients of `local`: "cpu" or "cuda".
        address: Ray cluster to join: "auto" or "host:port"; None: an instance of this machine.
        actors: Ray cohorts; None: one per CPU core.
        num_cpus: CPU cores of the Ray instance of this machine (ray) or per client (flower).
        num_gpus: fraction of a GPU per cohort (ray) or client (flower).
        data: whether Ray's actors read the records ("path") or share one copy ("object_store").
        revive_seconds: how long to wait for places for Ray cohorts, at the start or after a loss.
        chosen: why `engine=auto` took the one named; None where a user named it.

    Raises:
        ConfigError: a value out of range.
    """

    address: str | None = None
    actors: int | None = None
    num_cpus: float | None = None
    num_gpus: float = 0.0
    data: Literal["path", "object_store"] = "path"
    revive_seconds: float = 300.0
    chosen: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        values = vars(self)
        choice(values, "data", "path", "object_store", where="engine.")
        positive(values, "revive_seconds", where="engine.")
        if self.address is not None:
            self._check_address(self.address)
        if self.actors is not None:
            integer(values, "actors", where="engine.", also="null or ")
        if self.num_cpus is not None:
            # Ray counts whole cores of its own; stock Flower deals out fractions of them.
            check = partial(number, minimum=1.0) if self.name != "flower" else positive
            check(values, "num_cpus", where="engine.", also="null or ")
        if number(values, "num_gpus", where="engine.") > 1 and self.num_gpus % 1:  # Ray refuses it
            raise ConfigError(f"engine.num_gpus must be whole above 1, not {self.num_gpus}.")
        if self.address is None:  # else Ray knows which nodes have GPUs
            device_named(self.client_device, f"engine.num_gpus={self.num_gpus:g}")

    def _check_address(self, address: str) -> None:
        if not re.fullmatch(r"auto|\S+:\d+", str(address)) or "/" in address:
            raise ConfigError(
                f"engine.address must be null, auto or host:port, not {address!r}: it is what ray "
                "start --head said."
            )
        if self.num_cpus is not None:
            raise ConfigError(
                f"engine.num_cpus={self.num_cpus:g} is for a Ray instance of this machine, and "
                f"those of engine.address={address} have the cores they were started with: leave "
                "one of them out."
            )

    @classmethod
    def from_config(cls, engine: Config) -> Self:
        """The engine of a simulation.

        Raises:
            ConfigError: a key is unknown or missing, or a value out of range.
        """
        names = ("auto", "ray", "local", "flower")
        choice({"name": None, **engine}, "name", *names, where="engine.")
        return strictly(cls, engine, "engine")

    def stored(self, given: Config) -> Config:
        """What config.yaml holds of `engine`: what was given, or what `engine=auto` has taken.

        Args:
            given: the group's options in the configuration.
        """
        if self.chosen is None:
            return given
        of_local = [field.name for field in fields(ServerEngine)]
        names = of_local if self.name == "local" else given
        return {name: getattr(self, name) for name in (*names, "chosen")}

    @property
    def client_device(self) -> str:
        """Where the clients compute: on the GPU that they hold, or in this process beside it."""
        if self.num_gpus > 0:
            return "cuda"
        return self.device if self.name == "local" else "cpu"


@dataclass(frozen=True)
class RunSettings:
    """A whole simulated run, seen from above."""

    server: ServerSettings
    node: NodeSettings
    engine: EngineSettings


def node_settings(config: Configuration, engine: EngineSettings, run: RunIdentity) -> NodeSettings:
    """The clients' half of a configuration.

    Raises:
        FedsinkError: a value is unknown or out of range, or contradicts another or the policy.
    """
    scheme = {"seed": 0, "keep": None, **config.partition}
    seed_of_deal = integer(scheme, "seed", minimum=0, where="partition.")
    keep = _kept(scheme["keep"])
    del scheme["seed"], scheme["keep"]
    partition = scheme_from_dict(scheme)
    unprotected, secure = config.eps == math.inf, config.noise.backend == "secure"
    if config.policy is None:
        return NodeSettings(
            data=config.data,
            partition=partition,
            clients=config.clients,
            partition_seed=seed_of_deal,
            keep=keep,
            seed=config.seed,
            noise=cast(Noise, config.noise.backend),
            key_file=run.key_file,
            ledger=run.ledger,
            states=None if engine.address is not None else run.states,
            # Any of Flower's workers may get a client's next message.
            states_at_once=engine.name == "flower",
            unprotected=unprotected,
            corruption=config.corruption,
            device=engine.client_device,
            threads=engine.threads,
        )
    if config.seed is not None:
        raise ConfigError(
            "A node under a policy never uses the noise of a seed: leave out "
            f"seed={config.seed} or policy=."
        )
    if unprotected:
        raise ConfigError(
            "eps=inf protects nothing, and a policy always refuses it: leave out "
            f"policy={config.policy} or eps=inf."
        )
    if config.data.clients_file is not None:
        raise ConfigError(
            f"The policy {config.policy} says which records a node holds: leave out "
            f"data.clients_file={config.data.clients_file}."
        )
    node = NodeSettings.from_policy(
        read_policy(Path(config.policy)),
        clients=config.clients,
        partition=partition,
        partition_seed=seed_of_deal,
        device=engine.client_device,
        threads=engine.threads,
    )
    for name in ("shape", "classes"):
        stated, of_policy = getattr(config.data, name), getattr(node.data, name)
        if stated != of_policy:
            raise ConfigError(
                f"data.{name} is {list(stated)}, but the policy {config.policy} is for "
                f"{list(of_policy)}: state what it says."
            )
    if secure and node.noise != "secure":
        raise ConfigError(
            f"noise=secure was asked for, but the policy {config.policy} says "
            f"noise.backend={node.noise!r}: the policy decides; leave out noise=."
        )
    return replace(node, keep=keep, corruption=config.corruption)


def _kept(numbers: object) -> tuple[int, ...] | None:
    if numbers is None:
        return None
    if not isinstance(numbers, list | tuple):
        raise ConfigError(
            f"partition.keep is null or a list of numbers of clients, not {numbers!r}."
        )
    return tuple(numbers)
