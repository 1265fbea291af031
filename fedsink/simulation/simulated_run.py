"""Executes one simulated run, from settings to a finished run folder."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from fedsink.clients.app import client_app
from fedsink.clients.node import close_nodes
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.shard import deal
from fedsink.configuration import Configuration
from fedsink.data.partition import manifest
from fedsink.data.sources import load, notes
from fedsink.errors import CheckpointError, ConfigError, DataError
from fedsink.pages.report_page import report_at_end
from fedsink.privacy.randomness.keys import EntropyKey, ReproducibleKey, SecretKey
from fedsink.registry import GONE
from fedsink.reporting.displays import ForgivingStream
from fedsink.reporting.loggers import require_packages
from fedsink.server.folder import RunFolder, store_config, stored_config
from fedsink.server.recorded import cautions
from fedsink.server.running import ServerSettings, build_generator, server_app
from fedsink.server.starting_weights import adopt, statement_of
from fedsink.simulation import public_start
from fedsink.simulation.engine import EngineSettings, chosen_engine
from fedsink.simulation.grid import SimulationGrid, client_context
from fedsink.simulation.run_settings import RunIdentity, RunSettings, node_settings
from fedsink.simulation.virtual_clients import LocalGrid, fedsink_apps
from fedsink.strategies.methods import settings_of
from fedsink.values import Config

_NAMED = 8  # classes of a line on the terminal


def start(config: dict[str, Any], path: Path, *, debug: bool = False) -> Path:
    """Runs a resolved configuration in a new folder.

    Nothing is written before the configuration, the data and the generator have been checked.

    Args:
        config: resolved.
        path: of the run folder.
        debug: show what clients log.

    Returns:
        The run folder.

    Raises:
        FedsinkError: bad input (nothing is left behind), or a run that stopped (its folder can
            be resumed).
    """
    folder = RunFolder.fresh(path)
    identity = RunIdentity.fresh(config["seed"])
    settings = configure(config, folder.path, identity)
    shards = _check(settings)
    source = settings.server.start
    stated = settings.server.strategy.stated(kind_of_noise(settings.node))
    if config.get("public") is True:
        about: list[str | None] = ["Public data, by public=true: the generator may be a start."]
        stated |= public_start.entry(settings.node.data)
    else:
        minds = (f"Mind: {line}" for line in cautions(stated, config))
        about = [settings.server.strategy.notice(stated), *minds]
    if source is not None:
        public_start.refuse_private(source, config["data"])
        stated |= statement_of(source)
    _tell([_engine_chosen(settings), *_notes(settings), *about])
    stated |= Configuration.of_paper(config)
    with folder.claimed():
        try:
            identity.create_key()
            folder.create()
            if source is not None:
                adopt(source, folder.path)
            folder.write(folder.partition, shards)
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
    """Continues with the run in a folder, to the same end as if it had never stopped.

    Raises:
        CheckpointError: the folder holds no run or a link, or its checkpoint or key is unusable.
    """
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


def configure(values: Config, folder: Path, run: RunIdentity) -> RunSettings:
    """The settings of a run, everything checked that a user can get wrong.

    Args:
        values: of a configuration, in plain mappings, all interpolations resolved.
        folder: the run folder.
        run: the run's name, seeds and key files.

    Raises:
        FedsinkError: a value is unknown, out of range, or contradicts another; the message
            names the key.
    """
    if values.get("start") == "public":  # of an earlier version
        raise ConfigError(GONE["start=public"])
    config = Configuration.read(values)
    engine = EngineSettings.from_config(config.engine)
    strategy = settings_of(config, run.name)
    engine = chosen_engine(engine, strategy)
    strategy.check_address(engine.address)
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


def kind_of_noise(node: NodeSettings) -> str:
    """The kind of the simulated clients' noise key, as privacy.json names it."""
    if node.seed is not None:
        return ReproducibleKey.kind
    return EntropyKey.kind if node.noise == "secure" else SecretKey.kind


def _tell(lines: Iterable[str | None]) -> None:
    """Writes lines to standard error, except those that are None."""
    for line in lines:
        if line:
            ForgivingStream(sys.stderr).write(f"{line}\n")


def _engine_chosen(settings: RunSettings) -> str | None:
    """The engine that `engine=auto` took, with the reason."""
    engine = settings.engine
    return f"engine={engine.name}: {engine.chosen}" if engine.chosen else None


def _notes(settings: RunSettings) -> list[str]:
    """Lines on the records, only for the person who simulates; no server gets them."""
    data = settings.node.data
    said = list(notes(data))
    if len(settings.server.classes) > 1:
        counts = torch.bincount(load(data).labels, minlength=len(data.classes)).tolist()
        for number, what in ((0, "no record"), (1, "only one record")):
            if few := [data.classes[label] for label, n in enumerate(counts) if n == number]:
                said.append(_few(few, len(data.classes), what))
    return [f"{data.name}: {line}" for line in said]


def _few(names: Sequence[str], of: int, what: str) -> str:
    """A line that names the classes with few records."""
    some = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    verb = "holds" if len(names) == 1 else "hold"
    return f"{len(names)} of {of} classes {verb} {what}: {some}."


def _check(settings: RunSettings) -> dict[str, Any]:
    """The content of partition.json; data and generator that cannot be used fail here."""
    node = settings.node
    records, public = load(node.data, "train"), node.data.nominal_records
    if len(records) > public:
        raise DataError(
            f"{node.data.name}: {len(records)} records were read, more than the public "
            f"data.nominal_records={public}: raise that number, or take the others away."
        )
    shards = deal(node)
    settings.server.strategy.check_sizes([len(shard) for shard in shards])
    build_generator(settings.server)
    return {
        "note": "Exact counts of private data: known to whoever simulates, never to a server.",
        "clients": manifest(shards, records.labels, node.data.classes),
    }


def _run(settings: RunSettings, folder: RunFolder, identity: RunIdentity, debug: bool) -> Path:
    server = server_app(settings.server)
    try:
        if settings.engine.name == "flower":
            from fedsink.simulation.engine import run_flower

            run_flower(
                server,
                client_app(settings.node),
                settings.node.clients,
                num_cpus=settings.engine.num_cpus or 1.0,
                num_gpus=settings.engine.num_gpus,
            )
        else:
            grid = _grid(settings.engine, settings.node, debug)
            try:
                server(grid, client_context(0, settings.node.clients, 1))
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
