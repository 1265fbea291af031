"""The settings of a simulated run: server, clients and engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from fedsink.clients.node_settings import NodeSettings, Noise
from fedsink.clients.policy_file import read_policy
from fedsink.configuration import Configuration
from fedsink.data.partition import scheme_from_dict
from fedsink.errors import ConfigError
from fedsink.privacy import LOCAL_NOISE
from fedsink.server.running import ServerSettings
from fedsink.simulation.engine import EngineSettings
from fedsink.simulation.run_identity import RunIdentity
from fedsink.strategies.strategy_settings import StrategySettings
from fedsink.values import checks


@dataclass(frozen=True)
class RunSettings:
    """The settings of a whole simulated run."""

    server: ServerSettings
    node: NodeSettings
    engine: EngineSettings


def node_settings(
    config: Configuration, engine: EngineSettings, run: RunIdentity, strategy: StrategySettings
) -> NodeSettings:
    """The clients' half of a configuration.

    Raises:
        FedsinkError: a value is unknown or out of range, or contradicts another or the policy.
    """
    scheme = {"seed": 0, "keep": None, **config.partition}
    seed_of_deal = checks.count("partition.seed", scheme["seed"], minimum=0)
    keep = _kept(scheme["keep"])
    del scheme["seed"], scheme["keep"]
    partition = scheme_from_dict(scheme)
    pooled = _pools(config, engine, strategy)
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
            pooled=pooled,
            masked=config.noise.shared.masked,
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


def _pools(config: Configuration, engine: EngineSettings, strategy: StrategySettings) -> bool:
    """Tells whether a simulation draws the noise of a sum once; see `NoiseShare.draw`.

    Raises:
        ConfigError: noise.draw=sum where every client's reply is made.
    """
    share = config.noise.shared
    if share == LOCAL_NOISE or share.draw == "clients" or share.masked:
        return False
    for fails, what, why in (
        (not strategy.adds_up, f"clip={config.clip} and clients={config.clients}",
         "only a clip of records, and several clients that share noise, make one sum"),
        (engine.name == "flower", "engine=flower", "it asks every client for a reply"),
        (config.noise.backend == "secure", "noise=secure", "its replies are stored"),
        (config.policy is not None, f"policy={config.policy}", "its node stores its replies"),
    ):  # fmt: skip
        if fails and share.draw == "sum":
            raise ConfigError(f"noise.draw=sum goes without {what}: {why}. Leave noise.draw out.")
        if fails:
            return False
    return True


def _kept(numbers: object) -> tuple[int, ...] | None:
    if numbers is None:
        return None
    if not isinstance(numbers, list | tuple):
        raise ConfigError(
            f"partition.keep is null or a list of numbers of clients, not {numbers!r}."
        )
    return tuple(numbers)
