"""The settings of a simulated run (server, clients and engine), and its identity."""

from __future__ import annotations

import math
import os
import secrets
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from fedsink.clients.ledger.ledger import Ledger
from fedsink.clients.node_settings import NodeSettings, Noise
from fedsink.clients.policy_file import read_policy
from fedsink.configuration import Configuration
from fedsink.data.partition import scheme_from_dict
from fedsink.errors import CheckpointError, ConfigError
from fedsink.privacy import LOCAL_NOISE, SecretKey
from fedsink.protocol.requests import given_name, new_run_name
from fedsink.server.running import ServerSettings
from fedsink.simulation.engine import EngineSettings
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
    """The clients' half of a configuration."""
    scheme = {"seed": 0, "keep": None, **config.partition}
    seed_of_deal = checks.count("partition.seed", scheme.pop("seed"), minimum=0)
    keep = scheme.pop("keep")
    if not isinstance(keep, list | tuple | None):
        raise ConfigError(f"partition.keep is null or a list of numbers of clients, not {keep!r}.")
    keep = None if keep is None else tuple(keep)
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
    for name in ("shape", "classes", "range"):
        stated, of_policy = getattr(config.data, name), getattr(node.data, name)
        if stated != of_policy:
            here, there = ("null" if v is None else str(list(v)) for v in (stated, of_policy))
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


def _pools(config: Configuration, engine: EngineSettings, strategy: StrategySettings) -> bool:
    """Tells whether a simulation draws the noise of a sum once; see `NoiseShare.draw`."""
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


@dataclass(frozen=True)
class RunIdentity:
    """The group `run` of a run folder's config.yaml, which names the secret key's file."""

    name: str  # public
    server_seed: int  # keys the server's latents and initial weights
    key_file: Path | None  # None where noise is reproducible (`seed=`)

    @property
    def ledger(self) -> Path | None:
        """The ledger of this run's charges and releases, beside the key."""
        return self.key_file.with_suffix(".sqlite") if self.key_file else None

    @property
    def states(self) -> Path:
        """The clients' states, for a run that is resumed: private, so beside the key."""
        place = self.key_file.parent if self.key_file else key_folder()
        return place / f"{self.name}.states"

    @classmethod
    def fresh(cls, seed: int | None) -> RunIdentity:
        """A new run; no key is made yet."""
        name = new_run_name()
        if seed is not None:
            return cls(name, seed, None)
        return cls(name, secrets.randbits(62), key_folder() / f"{name}.key")

    @classmethod
    def from_config(cls, run: dict[str, Any], *, finished: bool = False) -> RunIdentity:
        """The identity that `to_config` wrote; only an unfinished run needs its key.

        Guarantees:
            - Its key, and what lies beside the key, are of that name in this user's `key_folder`,
              whatever a received folder says.
        """
        name, key_file = str(run["name"]), Path(run["key_file"]) if run["key_file"] else None
        try:
            given_name(name)
        except ValueError as error:
            raise CheckpointError(f"The run's name is {name[:64]!r}: {error}.") from None
        if key_file and key_file.resolve() != (key_folder() / f"{name}.key").resolve():
            raise CheckpointError(
                f"The run's key is said to be {key_file}, and this user's keys lie in "
                f"{key_folder()}: continue the run as the user who started it, with the same "
                "XDG_STATE_HOME."
            )
        identity = cls(name, int(run["server_seed"]), key_file)
        if key_file and not finished and not key_file.is_file():
            raise CheckpointError(
                f"The run's secret noise key {key_file} is missing: without it the rounds after "
                "the checkpoint would get other noise. Start a new run."
            )
        if identity.ledger and not finished and not identity.ledger.is_file():
            raise CheckpointError(
                f"The run's ledger {identity.ledger} is missing: without it rounds could be "
                "answered twice. Start a new run."
            )
        return identity

    def to_config(self) -> dict[str, Any]:
        key_file = str(self.key_file) if self.key_file else None
        return {"name": self.name, "server_seed": self.server_seed, "key_file": key_file}

    def create_key(self) -> None:
        """Draws the secret key from the operating system, mode 0600, if this run has one.

        An empty ledger is made beside it: a run that is resumed without its ledger is refused.
        """
        if self.key_file and self.ledger:
            self.key_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            SecretKey.create(self.key_file, self.name)
            Ledger(self.ledger, durable=False).close()

    def delete_key(self) -> None:
        """Deletes key, ledger, stored replies and states, after the run's last release."""
        shutil.rmtree(self.states, ignore_errors=True)
        if self.key_file and self.ledger:
            for path in (self.key_file, *self.ledger.parent.glob(self.ledger.name + "*")):
                path.unlink(missing_ok=True)
            shutil.rmtree(self.ledger.with_suffix(".replies"), ignore_errors=True)


def key_folder() -> Path:
    """The folder of all keys: outside every run folder, readable only by the user."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "fedsink" / "keys"
