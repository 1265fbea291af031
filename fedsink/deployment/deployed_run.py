"""A run on real nodes, configured by its submitter and privatized by the data's owners.

`app` is the Flower `ServerApp` that deploy/pyproject.toml names. The submitter's command checks the
same configuration by `deployable`, `received` and `deployed_settings` before it sends it.
"""

from __future__ import annotations

import json
import math
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsink.conf.acting import compose_config
from fedsink.configuration import Configuration
from fedsink.deployment.node_grid import NodeGrid, Patience
from fedsink.deployment.results import FAILED, failure_of, frames, public_files
from fedsink.deployment.server_folder import (
    KEY_FILE,
    deployed_name,
    held_run,
    operator_key,
    server_home,
)
from fedsink.deployment.signing_grid import SigningGrid
from fedsink.errors import CheckpointError, ClientError, ConfigError
from fedsink.privacy.noise_share import SECURE_AGGREGATION
from fedsink.protocol.requests import new_run_name
from fedsink.reporting.loggers import require_packages
from fedsink.reporting.typed import typed_words
from fedsink.secagg.parameters import LEAST_COHORT
from fedsink.server.folder import RunFolder, refuse_references, store_config, stored_config
from fedsink.server.running import ServerEngine, ServerSettings, build_generator, run_server
from fedsink.server.starting_weights import adopt, adopted, stated_with
from fedsink.strategies.methods import settings_of
from fedsink.values import Config, checks, read_json, strictly

COMMAND = "fedsink deploy"
STARTS = "starts"
"""Folder of the server's folder with starts by name."""

_FRAMES_AT_ONCE, _PAUSE_SECONDS = 16, 0.25

# Decisions of a node's owner: the key, its only value here, and why.
_OWNERS = (
    ("seed", None, "every node draws its own noise; where an experiment has it, say seed=null"),
    ("noise", "fast", "every node's policy says how its noise is drawn"),
    ("strategy.backend", "native", "real nodes solve their problems only with fedsink"),
    (
        "strategy.published",
        False,
        "real nodes never answer the published form, see docs/gs_wgan.md",
    ),
    ("policy", None, "every node is started with the policy of its owner"),
    ("data.clients_file", None, "every node's policy says which records are its own"),
    ("public", False, "what nodes hold is not public"),
    ("resume", None, f"say {COMMAND} resume=NAME app=… superlink=… with no other key"),
)


def deployable(overrides: Sequence[str]) -> dict[str, Any]:
    """Composes a configuration for real nodes; data and noise are their owners'."""
    for override in overrides:
        if override.partition("=")[0] == "engine":
            raise ConfigError(f"{COMMAND} runs on real nodes: leave out {override}.")
    config = compose_config(["engine=deploy", "data.root=null", *overrides])
    _check_owners(config)
    return {**config, "run": {"typed": typed_words(overrides, config)}}


def _check_owners(config: Config) -> None:
    """Refuses values that are the owners' to choose."""
    noise, data = config["noise"], config["data"]
    values = {**config, "noise": noise["backend"]}
    values["data.clients_file"] = data.get("clients_file")
    # In mode=ldp only the server solves transport problems, by the library that it likes.
    central = config["strategy"] if config["mode"] == "central" else {}
    values["strategy.backend"] = central.get("backend", "native")
    values["strategy.published"] = config["strategy"].get("published", False)
    for key, only, why in _OWNERS:
        if values[key] != only:
            raise ConfigError(f"{COMMAND} takes no {key}={values[key]}: {why}.")
    if config["start"] is not None:
        _start_named(config["start"])
    if data["root"] is not None:
        raise ConfigError(
            f"{COMMAND} takes no data.root={data['root']}: the server sees no data, "
            "and every node's policy says where its own lie."
        )


def _start_named(name: object) -> Path:
    """Returns the folder of a start on the server, by the name that a submitter gives."""
    return server_home() / STARTS / deployed_name(name)


def received(text: str) -> dict[str, Any]:
    """Reads a configuration of `deployable` as a submitter sends it: resolved, in JSON."""
    try:
        config = read_json(text)
        refuse_references(config)  # resolved here, they would tell of this machine
        _check_owners(config)
        if config["engine"]["name"] != "deploy":
            raise ConfigError(f"{COMMAND} runs on real nodes: leave out engine=.")
    except ConfigError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"The submitted text is no configuration: {error}.") from error
    return dict(config)


@dataclass(frozen=True)
class DeployEngine(ServerEngine):
    """Values that the server of a deployment takes from `engine.*`, in seconds: see `Patience`."""

    wait: float = 60.0
    round_timeout: float | None = None
    ask_again: float = 120.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.number("engine.wait", self.wait)
        checks.positive("engine.ask_again", self.ask_again)
        if self.round_timeout is not None:
            checks.positive("engine.round_timeout", self.round_timeout, also="null or ")


def deployed_settings(
    values: Config, folder: RunFolder, run: Mapping[str, Any], source: Path | None = None
) -> tuple[ServerSettings, Patience]:
    """Returns the settings of a run on real nodes, and the patience with the nodes."""
    # `values` are from `deployable`, or were stored; `run` holds its name and server_seed.
    # Nothing adds nodes' replies up before the server has them: parts of the noise need masks.
    noise: dict[str, Any] = {**values["noise"], "dropouts": 0.0}
    noise["masked"] = noise["share"] == SECURE_AGGREGATION
    # A start lies at the server, which adds its place: `source`.
    start = None if source is None else str(source)
    config = Configuration.read({**values, "noise": noise, "start": start})
    if config.eps == math.inf:
        raise ConfigError(
            "eps=inf protects nothing, and real nodes always refuse it: it is for fedsink simulate."
        )
    engine = strictly(DeployEngine, config.engine, "engine")
    strategy = settings_of(config, str(run["name"]))
    if noise["share"] == SECURE_AGGREGATION:
        _check_sums(strategy)
    seed = int(run["server_seed"])
    command = f"{COMMAND} app=… superlink=… resume={folder.path.name}"
    settings = ServerSettings.from_config(config, strategy, engine, seed, command)
    return settings, Patience(engine.wait, engine.round_timeout, engine.ask_again)


def _check_sums(strategy: Any) -> None:
    """Refuses sums that every real node refuses: an owner's least is three clients."""
    fewest = min(strategy.share.cohorts(strategy.plan.schedule, strategy.clients))
    if fewest < LEAST_COHORT:
        parts = strategy.plan.schedule.cohorts
        raise ConfigError(
            f"Real nodes take part in no sum of fewer than {LEAST_COHORT} clients, and "
            f"clients={strategy.clients} are asked in {parts} parts: say strategy.schedule=joint, "
            f"or clients={LEAST_COHORT * parts} or more."
        )


def run_deployed(grid: Grid, run_config: Mapping[str, Any], tell: Callable[[str], object]) -> None:
    """Executes the action in `run_config`, and tells its results to the submitter."""
    # Its keys are `name`, `action` (of _ACTIONS) and `config` (for "run": see `received`). `tell`
    # writes a line to the log that the submitter reads.
    name = str(run_config["name"])
    try:
        with held_run(name) as folder:
            act = _ACTIONS[checks.choice("action", run_config["action"], *_ACTIONS)]
            act(grid, folder, run_config)
            lines = frames(public_files(folder))
    except Exception as error:
        _send(frames({FAILED: json.dumps(failure_of(error)).encode()}), tell)
        raise
    _send(lines, tell)


def _send(lines: Iterable[str], tell: Callable[[str], object]) -> None:
    for sent, frame in enumerate(lines, 1):
        tell(f"{frame}\n")
        if sent % _FRAMES_AT_ONCE == 0:  # Flower sends a log in pieces, each in one request
            time.sleep(_PAUSE_SECONDS)


def _run(grid: Grid, folder: RunFolder, run_config: Mapping[str, Any]) -> None:
    if folder.path.exists():
        raise ConfigError(
            f"The server holds a run {folder.path.name} already: give another name=, or continue "
            f"it by resume={folder.path.name}."
        )
    config = received(str(run_config["config"]))
    run: dict[str, Any] = {
        "name": new_run_name(),
        "server_seed": secrets.randbits(62),
        "key_file": None,
        "typed": (config.get("run") or {}).get("typed"),
    }
    source = None if config["start"] is None else _start_named(config["start"])
    settings, patience = deployed_settings(config, folder, run, source)
    require_packages(settings.log)
    build_generator(settings)
    privacy = settings.strategy.privacy_entries("node") | {"run": run["name"]}
    privacy |= Configuration.read(config).of_paper(config)
    if source is not None:
        plan = settings.strategy.plan
        privacy = stated_with(privacy, source, settings.start_plan, plan, config)
    try:
        folder.create()
        if source is not None:
            adopt(source, folder.path)
        folder.write(folder.privacy, privacy)
        # Last, because this file makes the folder one that can be resumed.
        store_config(folder, {**config, "run": run})
    except BaseException:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    _train(grid, folder, settings, patience, run["name"])


def _resume(grid: Grid, folder: RunFolder, run_config: Mapping[str, Any]) -> None:
    config = _stored(folder)
    if folder.finished:
        if not folder.nodes.is_file():  # killed after the last round, before nodes had signed
            _note_statements(folder, _signing(grid).collect(config["run"]["name"], everybody=True))
        return
    try:
        source = adopted(folder.path)
        settings, patience = deployed_settings(config, folder, config["run"], source)
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{folder.config} is not a run's configuration: {error}.") from error
    require_packages(settings.log)
    _train(grid, folder, settings, patience, str(config["run"]["name"]))


def _fetch(grid: Grid, folder: RunFolder, run_config: Mapping[str, Any]) -> None:
    _stored(folder)
    if folder.finished:
        return
    name, why = folder.path.name, "it was stopped"
    if folder.failed.is_file():
        why = str(read_json(folder.failed.read_bytes())["message"]).removesuffix(".")
    raise ClientError(
        f"The run {name} has not ended ({why}): {COMMAND} app=… superlink=… resume={name}."
    )


_ACTIONS = {"run": _run, "resume": _resume, "fetch": _fetch}


def _stored(folder: RunFolder) -> dict[str, Any]:
    if not folder.config.is_file():
        raise CheckpointError(f"The server holds no run {folder.path.name}.")
    return stored_config(folder)


def _train(
    grid: Grid, folder: RunFolder, settings: ServerSettings, patience: Patience, run: str
) -> None:
    folder.failed.unlink(missing_ok=True)
    clients = settings.strategy.clients
    needed = settings.strategy.enough.of(clients)
    signing = _signing(grid)
    try:
        run_server(NodeGrid(signing, clients, needed, patience), settings, folder)
    except Exception as error:
        folder.write(folder.failed, failure_of(error))
        raise
    finally:
        signed = signing.collect(run)
    _note_statements(folder, signed)


def _signing(grid: Grid) -> SigningGrid:
    home = server_home()
    return SigningGrid(grid, home / "receipts.json", operator_key(home / KEY_FILE))


def _note_statements(folder: RunFolder, signed: list[dict[str, Any]]) -> None:
    """Writes nodes.json, what nodes have signed; owners may add theirs later."""
    folder.write(folder.nodes, {"format": "fedsink nodes 2", "nodes": signed})


app = ServerApp()
"""Runs what `run_config` says on the nodes that are connected."""


@app.main()
def _main(grid: Grid, context: Context) -> None:
    # Flower relays this log to the submitter of the run.
    run_deployed(grid, context.run_config, lambda line: sys.stdout.write(line))
