"""From a resolved configuration to the settings of a simulated run: server, clients and engine.

Everything a user can get wrong is refused here, before anything is written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fedsink.clients.settings import NodeSettings
from fedsink.data.corruption import Corruption
from fedsink.data.partition import scheme_from_dict
from fedsink.data.spec import DataSpec
from fedsink.devices import device_named
from fedsink.errors import ConfigError, FedsinkError
from fedsink.server.configure import configure_server
from fedsink.server.settings import ServerSettings
from fedsink.simulation.identity_of_run import RunIdentity
from fedsink.values import Config, choice, integer, strictly

_ENGINES = ("ray", "local", "fused", "flower")


@dataclass(frozen=True)
class EngineSettings:
    """Which engine hosts the clients, and on what.

    Attributes:
        name: "ray", "local", "fused" or "flower".
        timeout: seconds to wait for a round's replies; None: for ever.
        threads: torch threads of the server and of each client.
        device: where the generator lives, and the clients of `local`: "cpu" or "cuda".
        actors: Ray cohorts; None: one per CPU core.
        num_cpus: CPU cores of the Ray instance (ray) or per client (flower).
        num_gpus: fraction of a GPU per cohort (ray) or client (flower).
        draws: "keyed" or "device" (fused).
        together: rounds prepared and logged at once (fused).
    """

    name: str
    timeout: float | None = None
    threads: int = 1
    device: str = "cpu"
    actors: int | None = None
    num_cpus: float | None = None
    num_gpus: float = 0.0
    draws: Literal["keyed", "device"] = "keyed"
    together: int = 32

    def __post_init__(self) -> None:
        choice(vars(self), "name", *_ENGINES, where="engine.")
        choice(vars(self), "draws", "keyed", "device", where="engine.")
        if self.together < 1:
            raise ConfigError(f"engine.together must be at least 1, not {self.together}.")
        if self.threads < 1:
            raise ConfigError(f"engine.threads must be at least 1, not {self.threads}.")
        device_named(choice(vars(self), "device", "cpu", "cuda", where="engine."), "engine.device")
        if self.actors is not None and self.actors < 1:
            raise ConfigError(f"engine.actors must be null or at least 1, not {self.actors}.")
        # Ray counts whole cores of its own; stock Flower deals out fractions of them to clients.
        least = 1 if self.name == "ray" else 0
        if self.num_cpus is not None and not (self.num_cpus > 0 and self.num_cpus >= least):
            raise ConfigError(
                f"engine.num_cpus must be null or {'at least 1' if least else 'positive'}, "
                f"not {self.num_cpus}."
            )
        if not self.num_gpus >= 0:
            raise ConfigError(f"engine.num_gpus must be at least 0, not {self.num_gpus}.")
        if self.num_gpus > 1 and self.num_gpus % 1:  # which Ray refuses
            raise ConfigError(f"engine.num_gpus must be whole above 1, not {self.num_gpus}.")
        device_named(self.client_device, f"engine.num_gpus={self.num_gpus:g}")

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


def configure(config: Config, folder: Path, run: RunIdentity) -> RunSettings:
    """Turn a configuration into settings.

    Args:
        config: plain mappings and values, all interpolations resolved.
        folder: the run folder.
        run: the run's name, seeds and key files.

    Raises:
        FedsinkError: a value is unknown, out of range, or contradicts another; the message
            names the key.
    """
    try:
        choice(config["engine"], "name", *_ENGINES, where="engine.")
        engine = strictly(EngineSettings, config["engine"], "engine")
        server = configure_server(config, folder, run=run.name, server_seed=run.server_seed)
        server.strategy.check_engine(engine.name)
        node = _node(config, engine, run)
        if (corruption := Corruption.from_config(config["data"].get("corrupt"))) is not None:
            node = replace(node, corruption=corruption)
        if config["eps"] == math.inf:
            if node.policy is not None:
                raise ConfigError(
                    f"eps=inf protects nothing, and a policy always refuses it: leave out "
                    f"policy={config['policy']} or eps=inf."
                )
            node = replace(node, unprotected=True)
        return RunSettings(server, node, engine)
    except FedsinkError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"A value in the configuration is missing or of the wrong type: {error}; "
            "fedsink simulate --cfg job shows them all."
        ) from error


def _node(config: Config, engine: EngineSettings, run: RunIdentity) -> NodeSettings:
    scheme = dict(config["partition"])
    seed_of_deal = integer({"seed": 0, **scheme}, "seed", minimum=0, where="partition.")
    scheme.pop("seed", None)
    partition = scheme_from_dict(scheme)
    clients = integer(config, "clients", minimum=1)
    seed = None if config["seed"] is None else integer(config, "seed", minimum=0)
    noise = choice(config["noise"], "backend", "fast", "secure", where="noise.")
    data = DataSpec.from_config(config["data"])
    if config["policy"] is None:
        if noise == "secure" and seed is not None:
            raise ConfigError(
                f"noise=secure is drawn from the operating system and cannot be repeated: leave "
                f"out seed={seed}."
            )
        return NodeSettings(
            data=data,
            partition=partition,
            clients=clients,
            partition_seed=seed_of_deal,
            seed=seed,
            noise="secure" if noise == "secure" else "fast",
            key_file=run.key_file,
            ledger=run.ledger,
            states=run.states,
            # Any of Flower's workers may get a client's next message.
            states_at_once=engine.name == "flower",
            device=engine.client_device,
            threads=engine.threads,
        )
    if seed is not None:
        raise ConfigError(
            f"A node under a policy never uses the noise of a seed: leave out seed={seed} or "
            "policy=."
        )
    node = NodeSettings.from_policy(
        Path(str(config["policy"])),
        clients=clients,
        partition=partition,
        partition_seed=seed_of_deal,
        device=engine.client_device,
        threads=engine.threads,
    )
    for name in ("shape", "classes"):
        ours, theirs = getattr(data, name), getattr(node.data, name)
        if ours != theirs:
            raise ConfigError(
                f"data.{name} is {list(ours)}, but the policy {config['policy']} is for "
                f"{list(theirs)}: state what it says."
            )
    if data.clients_file is not None:
        raise ConfigError(
            f"The policy {config['policy']} says which records a node holds: leave out "
            f"data.clients_file={data.clients_file}."
        )
    if noise == "secure" and node.noise != "secure":
        raise ConfigError(
            f"noise=secure was asked for, but the policy {config['policy']} says "
            f"noise.backend={node.noise!r}: the policy decides; leave out noise=."
        )
    return node
