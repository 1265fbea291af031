"""A simulated run before it is played: the settings of its server, its clients and its engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, cast

from fedsink.clients.node_settings import NodeSettings, Noise
from fedsink.clients.owner.policy_file import read_policy
from fedsink.configuration import Configuration
from fedsink.data.partition import scheme_from_dict
from fedsink.data.sources import refuse_arrays
from fedsink.errors import ConfigError
from fedsink.privacy import NoiseShare
from fedsink.privacy.clips import simulated_here
from fedsink.privacy.noise_share import LOCAL, OWN_DRAWS
from fedsink.registry import GONE
from fedsink.reporting.loggers import require_packages
from fedsink.server.running import ServerSettings
from fedsink.simulation.engine import EngineSettings, chosen_engine
from fedsink.simulation.run_identity import RunIdentity
from fedsink.strategies.base.round_strategy import StrategySettings
from fedsink.strategies.methods import settings_of
from fedsink.values import Config, checks


@dataclass(frozen=True)
class Experiment:
    """A run without its folder: everything is checked that a user can get wrong.

    A configuration makes one (`of`), and so do the objects of `fedsink.federation`.

    Attributes:
        server, node, engine: settings of the server, of each client, and of what hosts them.
        identity: names the run and its key.
        config: the content of config.yaml, without the identity.
        privacy: entries of privacy.json beside those of the method.
        public: the records are public, as whoever starts the run vouches.
        arrays: the digest of records that a program holds; None: the records have a source.
    """

    server: ServerSettings
    node: NodeSettings
    engine: EngineSettings
    identity: RunIdentity
    config: Config
    privacy: Mapping[str, Any] = field(default_factory=dict)
    public: bool = False
    arrays: str | None = None

    def __post_init__(self) -> None:
        strategy, engine, node = self.server.strategy, self.engine, self.node
        if engine.address is not None and strategy.remembers:
            raise ConfigError(
                f"strategy={strategy.name} keeps on this machine's disk what its clients have "
                "learned: leave out engine.address."
            )
        clip = getattr(getattr(strategy, "plan", None), "clip", None)
        if clip is not None and clip.own:
            if engine.name != "local":
                raise ConfigError(
                    f"{type(clip).__name__} is a clip of your own, which other processes do not "
                    f'know: choose engine="local", not {engine.name!r}.'
                )
            simulated_here(clip, getattr(strategy, "clipped_size", None))
        require_packages(self.server.log)
        if engine.name in ("ray", "flower"):
            from fedsink.simulation.ray.cluster import check_instance

            check_instance(engine.address, engine.num_cpus if engine.name == "ray" else None)
        if engine.address is not None and node.seed is None:
            from fedsink.simulation.ray.ray_grid import DriverAdmission

            DriverAdmission.lendable(node)

    @classmethod
    def of(cls, values: Config, identity: RunIdentity) -> Self:
        """Reads a configuration: plain mappings, all interpolations resolved."""
        if values.get("start") == "public":  # of an earlier version
            raise ConfigError(GONE["start=public"])
        refuse_arrays(values.get("data"))
        config = Configuration.read(values)
        engine = EngineSettings.from_config(config.engine)
        strategy = settings_of(config, identity.name)
        engine = chosen_engine(engine, strategy)
        return cls(
            server=ServerSettings.from_config(config, strategy, engine, identity.server_seed),
            node=node_settings(config, engine, identity, strategy),
            engine=engine,
            identity=identity,
            config={**values, "engine": engine.stored(values["engine"])},
            privacy=config.of_paper(values),
            public=config.public,
        )


def node_settings(
    config: Configuration, engine: EngineSettings, run: RunIdentity, strategy: StrategySettings
) -> NodeSettings:
    """The clients' half of a configuration."""
    scheme = {"seed": 0, "keep": None, **config.partition}
    seed_of_deal = checks.count("partition.seed", scheme.pop("seed"), minimum=0)
    keep = scheme.pop("keep")
    if not isinstance(keep, list | tuple | None):
        raise ConfigError(f"partition.keep is null or a list of numbers of clients, not {keep!r}.")
    keep = None if keep is None else tuple(keep)
    partition = scheme_from_dict(scheme)
    pooled = pools(
        config.noise.shared, strategy, engine, config.noise.backend, config.policy
    )  # fmt: skip
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
            unprotected=unprotected,
            pooled=pooled,
            masked=config.noise.shared.masked,
            **hosted(engine, run),
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
    for name in ("shape", "classes", "range"):
        ours, of_policy = getattr(config.data, name), getattr(node.data, name)
        if ours != of_policy:
            here, there = ("null" if v is None else str(list(v)) for v in (ours, of_policy))
            raise ConfigError(
                f"data.{name} is {here}, but the policy {config.policy} is for {there}: state what "
                "it says."
            )
    if secure and node.noise != "secure":
        raise ConfigError(
            f"noise=secure was asked for, but the policy {config.policy} says "
            f"noise.backend={node.noise!r}: the policy decides; leave out noise=."
        )
    return replace(node, keep=keep)


def hosted(engine: EngineSettings, run: RunIdentity) -> dict[str, Any]:
    """Returns the settings of a client that follow from where it runs, and in which run."""
    return {
        "key_file": run.key_file,
        "ledger": run.ledger,
        "states": None if engine.address is not None else run.states,
        # Any of Flower's workers may get a client's next message.
        "states_at_once": engine.name == "flower",
        "device": engine.client_device,
        "threads": engine.threads,
    }


def pools(
    share: NoiseShare,
    strategy: StrategySettings,
    engine: EngineSettings,
    noise: str,
    policy: str | None = None,
) -> bool:
    """Tells whether a simulation draws the noise of a sum once; see `NoiseShare.draw`."""
    few = share.name == LOCAL and strategy.clients <= OWN_DRAWS
    if share.draw == "clients" or share.masked or (share.draw == "auto" and few):
        return False
    for fails, what, why in (
        (not strategy.computes_sums, f"strategy={strategy.name}", "its clients make no sum"),
        (strategy.clients == 1, "clients=1", "one client makes no sum"),
        (engine.name == "flower", "engine=flower", "it asks every client for a reply"),
        (noise == "secure", "noise=secure", "its replies are stored"),
        (policy is not None, f"policy={policy}", "its node stores its replies"),
    ):
        if fails and share.draw == "sum":
            raise ConfigError(f"noise.draw=sum goes without {what}: {why}. Leave noise.draw out.")
        if fails:
            return False
    return True
