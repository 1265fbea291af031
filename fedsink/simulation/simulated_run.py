"""One simulated run: its settings, its identity, and from them to a finished run folder."""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from fedsink.clients.app import client_app
from fedsink.clients.ledger.ledger import Ledger
from fedsink.clients.node import close_nodes
from fedsink.clients.node_settings import NodeSettings, Noise
from fedsink.clients.policy_file import read_policy
from fedsink.clients.shard import deal
from fedsink.configuration import Configuration
from fedsink.data.partition import manifest, scheme_from_dict
from fedsink.data.sources import load, notes
from fedsink.data.spec import DataSpec
from fedsink.errors import CheckpointError, ConfigError, DataError, FedsinkError
from fedsink.pages.report_page import report_at_end
from fedsink.privacy import LOCAL_NOISE
from fedsink.privacy.adjacency import USER
from fedsink.privacy.randomness.keys import EntropyKey, ReproducibleKey, SecretKey
from fedsink.protocol.requests import given_name, new_run_name
from fedsink.registry import GONE
from fedsink.reporting.displays import ForgivingStream
from fedsink.reporting.loggers import require_packages
from fedsink.server.folder import RunFolder, cautions, store_config, stored_config
from fedsink.server.running import ServerSettings, build_generator, server_app
from fedsink.server.starting_weights import adopt, statement_of
from fedsink.simulation.engine import EngineSettings, chosen_engine, run_flower
from fedsink.simulation.grid import SimulationGrid, client_context
from fedsink.simulation.virtual_clients import LocalGrid, fedsink_apps
from fedsink.strategies.methods import settings_of
from fedsink.strategies.round_strategy import StrategySettings
from fedsink.values import Config, checks

_NAMED = 8  # classes of a line on the terminal
_MOST_SHARED = 0.01  # of the clients' records: blank pictures are alike everywhere
_READ_AT_ONCE = 1000  # records, which bounds the memory


def start(config: dict[str, Any], path: Path, *, debug: bool = False) -> Path:
    """Runs a resolved configuration in a new folder, and returns it.

    Nothing is written before the configuration, the data and the generator have been checked: bad
    input leaves nothing behind, and the folder of a run that stopped can be resumed.
    """
    folder = RunFolder.fresh(path)
    identity = RunIdentity.fresh(config["seed"])
    settings = configure(config, folder.path, identity)
    spec, strategy, source = settings.node.data, settings.server.strategy, settings.server.start
    records, most = load(spec), spec.nominal_records
    if len(records) > most:
        raise DataError(
            f"{spec.name}: {len(records)} records were read, more than the public "
            f"data.nominal_records={most}: raise that number, or take the others away."
        )
    if getattr(strategy.plan, "unit", None) == USER and records.users is None:
        raise DataError(
            f"adjacency=user protects all records of a user, and {spec.name} does not tell "
            "users apart: choose another adjacency, or data that do (data=femnist)."
        )
    shards = deal(settings.node)
    strategy.check_sizes([len(shard) for shard in shards])
    build_generator(settings.server)  # one that cannot be built fails here
    stated = strategy.stated(kind_of_noise(settings.node))
    if config.get("public") is True:
        about: list[str | None] = ["Public data, by public=true: the generator may be a start."]
        public = {"data": spec.name, "records": len(records), "classes": list(spec.classes)}
        stated["public"] = public | {"data_sha256": records.digest()}
    else:
        about = [strategy.notice(stated), *(f"Mind: {line}" for line in cautions(stated, config))]
    if source is not None:
        refuse_private(source, config["data"])
        stated |= statement_of(source)
    chosen = settings.engine.chosen and f"engine={settings.engine.name}: {settings.engine.chosen}"
    for line in (chosen, *_notes(settings), *about):
        if line:
            ForgivingStream(sys.stderr).write(f"{line}\n")
    stated |= Configuration.of_paper(config)
    with folder.claimed():
        try:
            identity.create_key()
            folder.create()
            if source is not None:
                adopt(source, folder.path)
            counts = {
                "note": "Exact counts of private data: known to whoever simulates, never to a "
                "server.",
                "clients": manifest(shards, records.labels, spec.classes),
            }
            folder.write(folder.partition, counts)
            folder.write(folder.privacy, stated)
            # Last, because this file makes the folder one that can be resumed.
            engine = settings.engine.stored(config["engine"])
            run = {**(config.get("run") or {}), **identity.to_config()}
            store_config(folder, {**config, "engine": engine, "run": run})
        except BaseException:
            identity.delete_key()
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
        return _run(settings, folder, identity, debug)


def resume(path: Path, *, debug: bool = False) -> Path:
    """Continues with the run in a folder, to the same end as if it had never stopped."""
    folder = RunFolder.existing(path)
    folder.refuse_links()
    with folder.held():
        config = stored_config(folder)
        try:
            identity = RunIdentity.from_config(config["run"], finished=folder.finished)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{folder.config} is not a run's configuration: {error}."
            ) from error
        if folder.finished:
            identity.delete_key()  # a kill may have come after the last file, before the key went
            report_at_end(folder.path)
            return folder.path
        settings = configure(config, folder.path, identity)
        return _run(settings, folder, identity, debug)


@dataclass(frozen=True)
class RunSettings:
    """The settings of a whole simulated run."""

    server: ServerSettings
    node: NodeSettings
    engine: EngineSettings


def configure(values: Config, folder: Path, run: RunIdentity) -> RunSettings:
    """The settings of a run, everything checked that a user can get wrong.

    The values of its configuration are in plain mappings, all interpolations resolved.
    """
    if values.get("start") == "public":  # of an earlier version
        raise ConfigError(GONE["start=public"])
    config = Configuration.read(values)
    engine = EngineSettings.from_config(config.engine)
    strategy = settings_of(config, run.name)
    engine = chosen_engine(engine, strategy)
    if engine.address is not None and strategy.remembers:
        raise ConfigError(
            f"strategy={strategy.name} keeps on this machine's disk what its clients have learned: "
            "leave out engine.address."
        )
    server = ServerSettings.from_config(config, strategy, engine, folder, run.server_seed)
    require_packages(server.log)
    node = node_settings(config, engine, run, strategy)
    if engine.name in ("ray", "flower"):
        from fedsink.simulation.ray.cluster import check_instance

        check_instance(engine.address, engine.num_cpus if engine.name == "ray" else None)
    if engine.address is not None and node.seed is None:
        from fedsink.simulation.ray.ray_grid import DriverAdmission

        DriverAdmission.lendable(node)
    return RunSettings(server, node, engine)


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


def kind_of_noise(node: NodeSettings) -> str:
    """The kind of the simulated clients' noise key, as privacy.json names it."""
    if node.seed is not None:
        return ReproducibleKey.kind
    return EntropyKey.kind if node.noise == "secure" else SecretKey.kind


def refuse_private(source: Path, private: Config) -> None:
    """Refuses a start in `source` that the clients' records trained, bit by bit, if at hand.

    `private` is the table `data` of the run that begins.
    """
    try:
        public = _rows(stored_config(RunFolder(source))["data"])
    except (FedsinkError, AttributeError, KeyError, OSError):
        return
    _refuse_shared(public, private)


def _refuse_shared(public: set[bytes], private: Config) -> None:
    held = _rows(private)
    found = len(public & held)
    if found > _MOST_SHARED * len(held):
        raise ConfigError(
            f"{found} of the start's records are records of the clients, bit by bit: what clients "
            "hold is not public. Train the start on other data."
        )


def _rows(values: Config) -> set[bytes]:
    """Returns the hashes of the records that a configuration's table `data` names."""
    records = load(DataSpec.from_config(values))
    return {
        hashlib.blake2b(row, digest_size=16).digest()
        for places in torch.arange(len(records)).split(_READ_AT_ONCE)
        for row in records.take(places)[0].flatten(1).numpy()
    }


def _notes(settings: RunSettings) -> list[str]:
    """Lines on the records, only for the person who simulates; no server gets them."""
    data = settings.node.data
    said = list(notes(data))
    if len(settings.server.classes) > 1:
        counts = torch.bincount(load(data).labels, minlength=len(data.classes)).tolist()
        for number, what in ((0, "no record"), (1, "only one record")):
            if few := [data.classes[label] for label, n in enumerate(counts) if n == number]:
                some = ", ".join(few[:_NAMED]) + (", …" if len(few) > _NAMED else "")
                verb = "holds" if len(few) == 1 else "hold"
                said.append(f"{len(few)} of {len(counts)} classes {verb} {what}: {some}.")
    return [f"{data.name}: {line}" for line in said]


def _run(settings: RunSettings, folder: RunFolder, identity: RunIdentity, debug: bool) -> Path:
    server = server_app(settings.server)
    try:
        node, engine = settings.node, settings.engine
        if engine.name == "flower":
            cpus, gpus = engine.num_cpus or 1.0, engine.num_gpus
            run_flower(server, client_app(node), node.clients, num_cpus=cpus, num_gpus=gpus)
        else:
            grid = _grid(engine, node, debug)
            try:
                server(grid, client_context(0, node.clients, 1))
            finally:
                grid.close()
    finally:
        close_nodes()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    # Nothing is released under the key from here on. Without it nobody can undo the noise.
    identity.delete_key()
    report_at_end(folder.path)
    return folder.path


def _grid(engine: EngineSettings, node: NodeSettings, debug: bool) -> SimulationGrid:
    """Returns the grid, alone: what hosts the clients must not stay in the frame of a failure."""
    if engine.name == "local":
        hosted = fedsink_apps(node)
        return LocalGrid(hosted.app, node.clients, batched=hosted.batched)
    from fedsink.simulation.ray.ray_grid import RayGrid

    return RayGrid(
        node,
        actors=engine.actors,
        address=engine.address,
        num_cpus=None if engine.num_cpus is None else int(engine.num_cpus),
        num_gpus=engine.num_gpus,
        data=engine.data,
        timeout=engine.timeout,
        revive_seconds=engine.revive_seconds,
        debug=debug,
    )
