"""One simulated run, from settings to a finished run folder."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from fedsink.clients.app import client_app
from fedsink.clients.node import close_nodes
from fedsink.clients.settings import NodeSettings
from fedsink.data.partition import manifest, partition
from fedsink.data.sources import load
from fedsink.errors import CheckpointError, FedsinkError, ModelError
from fedsink.reporting.atomic import write_atomic
from fedsink.reporting.statement import central_statement, local_statement
from fedsink.server.app import build_generator, server_app
from fedsink.server.folder import RunFolder
from fedsink.simulation.configure import EngineSettings, RunSettings, configure
from fedsink.simulation.grid import SimulationGrid, client_context
from fedsink.simulation.identity_of_run import RunIdentity
from fedsink.simulation.local import LocalGrid
from fedsink.strategies import DPSinkhornSettings


def start(config: dict[str, Any], path: Path, *, debug: bool = False) -> Path:
    """Run a resolved configuration in a new folder.

    Nothing is written before the configuration, the data and the generator have been checked.

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
    stated = statement(settings)
    identity.create_key()
    try:
        folder.create()
        folder.write(folder.partition, shards)
        folder.write(folder.privacy, stated)
        # Last, because this file makes the folder one that can be resumed.
        stored = {**config, "run": identity.to_config()}
        write_atomic(folder.config, OmegaConf.to_yaml(OmegaConf.create(stored)).encode())
    except BaseException:
        identity.delete_key()
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return _run(settings, folder, identity, debug)


def resume(path: Path, *, debug: bool = False) -> Path:
    """Go on with the run in a folder, to the same end as if it had never stopped.

    Raises:
        CheckpointError: the folder holds no run, or its checkpoint or key is unusable.
    """
    folder = RunFolder.existing(path)
    config = stored_config(folder)
    try:
        identity = RunIdentity.from_config(config["run"], finished=folder.finished)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder.config} is not a run's configuration: {error}.") from error
    if folder.finished:
        identity.delete_key()  # a kill may have come between the last file and this
        return folder.path
    settings = configure(config, folder.path, identity)
    return _run(settings, folder, identity, debug)


def stored_config(folder: RunFolder) -> dict[str, Any]:
    """The configuration that a run was started with.

    Raises:
        CheckpointError: config.yaml cannot be read, or is not a table.
    """
    try:
        config: Any = OmegaConf.to_container(OmegaConf.load(folder.config), resolve=True)
    except (YAMLError, OmegaConfBaseException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{folder.config} cannot be read: {reason}.") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{folder.config} is not a run's configuration: not a table.")
    return config


def statement(settings: RunSettings) -> dict[str, Any]:
    """The content of privacy.json."""
    strategy, clients = settings.server.strategy, settings.node.clients
    noise = "secret" if settings.node.seed is None else "reproducible"
    if isinstance(strategy, DPSinkhornSettings):
        return central_statement(strategy.plan, clients, noise)
    training = {
        "cost": strategy.effective_cost,
        "lam": strategy.effective_lam,
        "finite_batch_factor": strategy.finite_batch_factor,
        "matched": not strategy.unmatched,
        "matched_cost": asdict(strategy.plan.matched_cost),
    }
    return local_statement(strategy.plan, clients, noise, training)


def _check(settings: RunSettings) -> dict[str, Any]:
    """Load the data and build the generator once, so that what cannot work fails here."""
    node = settings.node
    records = load(node.data, "train")
    shards = partition(records.labels, node.clients, node.partition, node.partition_seed)
    try:
        build_generator(settings.server)
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, FedsinkError):
            raise
        raise ModelError(
            f"generator={settings.server.generator} cannot be built with the options "
            f"{settings.server.generator_options}: {error}."
        ) from error
    return {
        "note": "Exact counts of private data: known to whoever simulates, never to a server.",
        "clients": manifest(shards, records.labels, node.data.classes),
    }


def _run(settings: RunSettings, folder: RunFolder, identity: RunIdentity, debug: bool) -> Path:
    server = server_app(settings.server)
    try:
        if settings.engine.name == "flower":
            from fedsink.simulation.flower import run_flower

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
    # Nothing can be released under the key any more: whoever takes it cannot undo the noise.
    identity.delete_key()
    return folder.path


def _grid(engine: EngineSettings, node: NodeSettings, debug: bool) -> SimulationGrid:
    if engine.name == "local":
        return LocalGrid(client_app(node), node.clients)
    from fedsink.simulation.ray import RayGrid

    return RayGrid(
        node,
        actors=engine.actors,
        num_cpus=None if engine.num_cpus is None else int(engine.num_cpus),
        num_gpus=engine.num_gpus,
        timeout=engine.timeout,
        debug=debug,
    )
