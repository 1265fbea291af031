"""A run on real nodes: configured by whoever submits it, privatized by who owns the data."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from fedsink.configuration import Configuration
from fedsink.errors import CheckpointError, ConfigError, FedsinkError
from fedsink.protocol.run import new_run_name
from fedsink.server.compose import compose_config, store_config, stored_config
from fedsink.server.folder import RunFolder
from fedsink.server.running import run_server
from fedsink.server.settings import ServerEngine, ServerSettings
from fedsink.server.waiting import wait_for_nodes
from fedsink.strategies.registry import settings_of
from fedsink.values import Config, number, strictly

COMMAND = "fedsink deploy"
_MISSING = "start the others, lower clients=, or raise engine.wait"

# What a node's owner decides, and where: the key, its only value here, and why.
_OWNERS = (
    ("seed", None, "every node draws noise of its own"),
    ("noise", "fast", "every node's policy says how its noise is drawn"),
    ("noise.share", "local", "nodes answer the server one by one, and nothing adds them up before"),
    ("strategy.backend", "native", "real nodes solve their problems with fedsink alone"),
    (
        "strategy.published",
        False,
        "real nodes never answer the published form, see docs/gs_wgan.md",
    ),
    ("policy", None, "every node is started with the policy of its owner"),
    ("data.clients_file", None, "every node's policy says which records are its own"),
    ("data.corrupt", None, "real nodes answer from their records as they are"),
    ("study", None, "a study is several runs of a simulation"),
    ("resume", None, f"say {COMMAND} resume=FOLDER app=… superlink=… with no other key"),
)


def deployable(overrides: Sequence[str]) -> dict[str, Any]:
    """Compose a configuration for real nodes.

    Raises:
        ConfigError: a key that has no meaning here, because data and noise are the owners'.
        HydraException, OmegaConfBaseException: an override is malformed, or names nothing.
    """
    for override in overrides:
        if override.partition("=")[0] == "engine":
            raise ConfigError(f"{COMMAND} runs on real nodes: leave out {override}.")
    config = compose_config(["engine=deploy", "data.root=null", *overrides])
    noise, data = config["noise"], config["data"]
    chosen = {**config, "noise": noise["backend"], "noise.share": noise["share"]}
    chosen |= {f"data.{key}": data.get(key) for key in ("clients_file", "corrupt")}
    # In local mode the problems are the server's own.
    central = config["mode"] == "central"
    chosen["strategy.backend"] = (
        config["strategy"].get("backend", "native") if central else "native"
    )
    chosen["strategy.published"] = config["strategy"].get("published", False)
    for key, only, why in _OWNERS:
        if chosen[key] != only:
            raise ConfigError(f"{COMMAND} takes no {key}={chosen[key]}: {why}.")
    if data["root"] is not None:
        raise ConfigError(
            f"{COMMAND} takes no data.root={data['root']}: the server sees no data, "
            "and every node's policy says where its own lie."
        )
    return config


@dataclass(frozen=True)
class DeployEngine(ServerEngine):
    """What the server of a deployment takes from `engine.*`.

    Attributes:
        wait: seconds to wait for the nodes to connect.

    Raises:
        ConfigError: a value out of range.
    """

    wait: float = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        number(vars(self), "wait", where="engine.")


def deployed_settings(
    values: Config, folder: RunFolder, run: Mapping[str, Any]
) -> tuple[ServerSettings, float]:
    """The settings of a run on real nodes, and how many seconds to wait for these.

    Args:
        values: from `deployable`, or stored by an earlier process.
        folder: the run folder on the server's disk.
        run: name and server_seed.

    Raises:
        FedsinkError: a value is unknown, out of range, or contradicts another.
    """
    config = Configuration.read(values)
    if config.eps == math.inf:
        raise ConfigError(
            "eps=inf protects nothing, and real nodes always refuse it: it is for fedsink simulate."
        )
    engine = strictly(DeployEngine, config.engine, "engine")
    strategy = settings_of(config, str(run["name"]))
    seed = int(run["server_seed"])
    settings = ServerSettings.from_config(config, strategy, engine, folder.path, seed, COMMAND)
    return settings, engine.wait


def run_deployed(grid: Grid, run_config: Mapping[str, Any]) -> None:
    """Run, or continue, what `run_config` says.

    Its keys are `folder` (the run folder on the server's disk), `overrides` (Hydra overrides as
    one JSON list) and `resume` (whether to continue the run in that folder).

    An error is written to failed.json in the folder, for whoever submitted the run: `message`
    (one sentence) and `exit_code`.

    Raises:
        FedsinkError: the configuration is wrong, nodes are missing, or one of them refuses.
    """
    folder = RunFolder(Path(str(run_config["folder"])))
    folder.failed.unlink(missing_ok=True)
    try:
        settings, seconds = _prepared(folder, run_config)
        wait_for_nodes(grid, settings.strategy.clients, seconds, advice=_MISSING)
        run_server(grid, settings)
    except Exception as error:
        known = isinstance(error, FedsinkError)
        message = str(error) if known else f"{type(error).__name__}: {error or 'no message'}."
        message = " ".join(message.split())  # libraries speak over several lines
        code = error.exit_code if isinstance(error, FedsinkError) else 1
        folder.write(folder.failed, {"message": message, "exit_code": code})
        raise


def _prepared(folder: RunFolder, run_config: Mapping[str, Any]) -> tuple[ServerSettings, float]:
    if run_config["resume"]:
        config = stored_config(RunFolder.existing(folder.path))
        try:
            return deployed_settings(config, folder, config["run"])
        except (KeyError, TypeError) as error:
            raise CheckpointError(
                f"{folder.config} is not a run's configuration: {error}."
            ) from error
    RunFolder.fresh(folder.path)
    config = deployable(json.loads(str(run_config["overrides"])))
    run = {"name": new_run_name(), "server_seed": secrets.randbits(62), "key_file": None}
    settings, wait = deployed_settings(config, folder, run)
    folder.create()
    folder.write(folder.privacy, settings.strategy.statement("node"))
    store_config(folder, {**config, "run": run})
    return settings, wait
