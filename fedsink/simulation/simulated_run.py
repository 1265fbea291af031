"""One simulated run, from its experiment to a finished folder."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedsink.clients.app import client_app
from fedsink.clients.node import close_nodes
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.records.shard import deal
from fedsink.data.labelled import LabelledData
from fedsink.data.partition import Deal, manifest
from fedsink.data.sources import load, notes
from fedsink.data.spec import DataSpec
from fedsink.errors import CheckpointError, ConfigError, DataError, FedsinkError
from fedsink.privacy import LOCAL_NOISE
from fedsink.privacy.adjacency import USER
from fedsink.privacy.noise_share import LOCAL
from fedsink.reporting.displays import ForgivingStream
from fedsink.results.pages.report_page import report_at_end
from fedsink.server.folder import RunFolder, cautions, store_config, stored_config
from fedsink.server.running import build_generator, run_server
from fedsink.server.starting_weights import adopt, adopted, stated_with
from fedsink.simulation.engine import EngineSettings, run_flower
from fedsink.simulation.experiment import Experiment
from fedsink.simulation.grid import SimulationGrid
from fedsink.simulation.run_identity import RunIdentity, kind_of_noise
from fedsink.simulation.virtual_clients import LocalGrid, fedsink_apps
from fedsink.values import Config

_NAMED = 8  # classes of a line on the terminal
_MOST_SHARED = 0.01  # of the clients' records: blank pictures are alike everywhere
_READ_AT_ONCE = 1000  # records, which bounds the memory


def start(config: dict[str, Any], path: Path, *, debug: bool = False) -> Path:
    """Runs a resolved configuration in a new folder, and returns it."""
    RunFolder.fresh(path)
    return play(Experiment.of(config, RunIdentity.fresh(config["seed"])), path, debug=debug)


def play(experiment: Experiment, path: Path, *, debug: bool = False) -> Path:
    """Plays an experiment in a new folder, and returns it.

    Nothing is written before the data and the generator have been checked: bad input leaves nothing
    behind, and the folder of a run that stopped can be resumed.
    """
    folder = RunFolder.fresh(path)
    identity, node, config = experiment.identity, experiment.node, experiment.config
    spec, strategy, source = node.data, experiment.server.strategy, experiment.server.source
    records, most = load(spec), spec.nominal_records
    if len(records) > most:
        raise DataError(
            f"{spec.name}: {len(records)} records were read, more than the public "
            f"data.nominal_records={most}: raise that number, or take the others away."
        )
    shards = deal(node)
    if getattr(strategy.plan, "unit", None) == USER:
        _check_whole_users(records, shards, spec)
    strategy.check_sizes(shards.sizes.tolist())
    build_generator(experiment.server)  # one that cannot be built fails here
    privacy = {**strategy.privacy_entries(kind_of_noise(node)), **experiment.privacy}
    if experiment.public:
        about: list[str | None] = ["Public data, by public=true: the generator may be a start."]
        public = {"data": spec.name, "records": len(records), "classes": list(spec.classes)}
        privacy["public"] = public | {"data_sha256": records.digest()}
    else:
        about = [strategy.notice(privacy), *(f"Mind: {line}" for line in cautions(privacy, config))]
    if node.pooled:
        privacy["noise_draw"] = {
            "draw": "sum",
            "meaning": "A simulation drew the noise of all replies once, in their sum and with its "
            "law; no client had a reply of its own. On devices each draws its own: the same ε.",
        }
        if getattr(strategy, "share", LOCAL_NOISE).name == LOCAL:
            about.append(
                f"noise.draw=sum: the noise of {node.clients} clients is drawn once, in the sum of "
                "their replies; noise.draw=clients draws each client's."
            )
    if source is not None:
        privacy = stated_with(privacy, source, experiment.server.start_plan, strategy.plan, config)
        if "plan" not in privacy["start"]:
            refuse_private(source, spec)
    engine = experiment.engine
    choice = engine.chosen and f"engine={engine.name}: {engine.chosen}"
    for line in (choice, *_notes(experiment), *about):
        if line:
            ForgivingStream(sys.stderr).write(f"{line}\n")
    with folder.claimed():
        try:
            identity.create_key()
            folder.create()
            if source is not None:
                adopt(source, folder.path)
            counts = {
                "note": "Exact counts of private data: known to whoever simulates, never to a "
                "server.",
                **manifest(shards, records.labels, spec.classes),
            }
            folder.write(folder.partition, counts)
            folder.write(folder.privacy, privacy)
            # Last, because this file makes the folder one that can be resumed.
            run = {**(config.get("run") or {}), **identity.to_config()}
            if experiment.arrays is not None:
                run["arrays"] = identity.seal(experiment.arrays)
            store_config(folder, {**config, "run": run})
        except BaseException:
            identity.delete_key()
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
        return _run(experiment, folder, debug)


def resume(
    path: Path,
    assemble: Callable[[Config, RunIdentity], Experiment] | None = None,
    *,
    debug: bool = False,
) -> Path:
    """Continues with the run in a folder, to the same end as if it had never stopped.

    Args:
        path: the folder.
        assemble: makes the experiment that began there, of the stored configuration; None: as
            `Experiment.of` does.
        debug: print the logs of clients on Ray.
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
        if assemble is None:
            own = adopted(folder.path)  # whose plan a total counts: the start may be gone
            assemble, config = Experiment.of, config | ({} if own is None else {"start": str(own)})
        return _run(assemble(config, identity), folder, debug)


def refuse_private(source: Path, private: DataSpec) -> None:
    """Refuses a start in `source` that the clients' records trained, bit by bit, if at hand."""
    try:
        public = _rows(DataSpec.from_config(stored_config(RunFolder(source))["data"]))
    except (FedsinkError, AttributeError, KeyError, OSError):
        return
    _refuse_shared(public, private)


def _refuse_shared(public: set[bytes], private: DataSpec) -> None:
    held = _rows(private)
    found = len(public & held)
    if found > _MOST_SHARED * len(held):
        raise ConfigError(
            f"{found} of the start's records are records of the clients, bit by bit: what clients "
            "hold is not public. Train the start on other data."
        )


def _rows(data: DataSpec) -> set[bytes]:
    """Returns the hashes of the records."""
    records = load(data)
    return {
        hashlib.blake2b(row, digest_size=16).digest()
        for places in torch.arange(len(records)).split(_READ_AT_ONCE)
        for row in records.take(places)[0].flatten(1).numpy()
    }


def _check_whole_users(records: LabelledData, shards: Deal, spec: DataSpec) -> None:
    """Refuses a deal in which somebody's records lie at several clients, whose ε would add up."""
    if records.users is None:
        raise DataError(
            f"adjacency=user protects all records of a user, and {spec.name} does not tell "
            "users apart: choose another adjacency, or data that do (data=femnist)."
        )
    owners = torch.arange(len(shards)).repeat_interleave(shards.sizes)
    users = records.users[shards.order].unique(return_inverse=True)[1]
    held = torch.stack([users, owners]).unique(dim=1)  # each user at each client
    if held.shape[1] > len(users.unique()):
        raise DataError(
            "adjacency=user protects all records of a user at one client, and this partition deals "
            "a user's records to several clients: choose partition=by_user."
        )


def _notes(settings: Experiment) -> list[str]:
    """Lines on the records, only for the person who simulates; no server gets them."""
    data = settings.node.data
    lines = list(notes(data))
    if len(settings.server.classes) > 1:
        counts = torch.bincount(load(data).labels, minlength=len(data.classes)).tolist()
        for number, what in ((0, "no record"), (1, "only one record")):
            if few := [data.classes[label] for label, n in enumerate(counts) if n == number]:
                some = ", ".join(few[:_NAMED]) + (", …" if len(few) > _NAMED else "")
                verb = "holds" if len(few) == 1 else "hold"
                lines.append(f"{len(few)} of {len(counts)} classes {verb} {what}: {some}.")
    return [f"{data.name}: {line}" for line in lines]


def _run(experiment: Experiment, folder: RunFolder, debug: bool) -> Path:
    server, node, engine = experiment.server, experiment.node, experiment.engine
    try:
        if engine.name == "flower":
            serve = partial(run_server, settings=server, folder=folder)
            cpus, gpus = engine.num_cpus or 1.0, engine.num_gpus
            run_flower(serve, client_app(node), node.clients, num_cpus=cpus, num_gpus=gpus)
        else:
            grid = _grid(engine, node, debug)
            try:
                run_server(grid, server, folder)
            finally:
                grid.close()
    finally:
        close_nodes()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    # Nothing is released under the key from here on. Without it nobody can undo the noise.
    experiment.identity.delete_key()
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
