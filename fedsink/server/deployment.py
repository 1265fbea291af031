"""A run on real nodes: configured by whoever submits it, privatized by who owns the data."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from fedsink.errors import CheckpointError, ConfigError, FedsinkError
from fedsink.protocol.run import new_run_name
from fedsink.server.compose import compose_config, store_config, stored_config
from fedsink.server.configure import configure_server
from fedsink.server.folder import RunFolder
from fedsink.server.running import run_server
from fedsink.server.settings import ServerSettings
from fedsink.server.waiting import wait_for_nodes
from fedsink.values import Config, number

COMMAND = "fedsink deploy"
_MISSING = "start the others, lower clients=, or raise engine.wait"

# What a node's owner decides, and where: the key, its only value here, and why.
_OWNERS = (
    ("seed", None, "every node draws noise of its own"),
    ("noise", "fast", "every node's policy says how its noise is drawn"),
    ("noise.share", "local", "nodes answer the server one by one, and nothing adds them up before"),
    ("policy", None, "every node is started with the policy of its owner"),
    ("data.clients_file", None, "every node's policy says which records are its own"),
    ("data.corrupt", None, "real nodes answer from their records as they are"),
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
    for key, only, why in _OWNERS:
        if chosen[key] != only:
            raise ConfigError(f"{COMMAND} takes no {key}={chosen[key]}: {why}.")
    if data["root"] is not None:
        raise ConfigError(
            f"{COMMAND} takes no data.root={data['root']}: the server sees no data, "
            "and every node's policy says where its own lie."
        )
    return config


def deployed_settings(config: Config, folder: RunFolder, run: Mapping[str, Any]) -> ServerSettings:
    """The settings of a run on real nodes.

    Args:
        config: from `deployable`, or stored by an earlier process.
        folder: the run folder on the server's disk.
        run: name and server_seed.

    Raises:
        FedsinkError: a value is unknown, out of range, or contradicts another.
    """
    try:
        number(config["engine"], "wait", minimum=0.0, where="engine.")
        return configure_server(
            config,
            folder.path,
            run=str(run["name"]),
            server_seed=int(run["server_seed"]),
            command=COMMAND,
        )
    except FedsinkError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"A value in the configuration is missing or of the wrong type: {error}."
        ) from error


def run_deployed(grid: Grid, run_config: Mapping[str, Any]) -> None:
    """Run, or go on with, what `run_config` says.

    Its keys are `folder` (the run folder on the server's disk), `overrides` (Hydra overrides as
    one JSON list) and `resume` (whether to go on with the run in that folder).

    An error is written to failed.json in the folder, for whoever submitted the run: `message`
    (one sentence) and `exit_code`.

    Raises:
        FedsinkError: the configuration is wrong, nodes are missing, or one of them refuses.
    """
    folder = RunFolder(Path(str(run_config["folder"])))
    folder.failed.unlink(missing_ok=True)
    try:
        config, settings = _prepared(folder, run_config)
        seconds = float(config["engine"]["wait"])
        wait_for_nodes(grid, settings.strategy.clients, seconds, advice=_MISSING)
        run_server(grid, settings)
    except Exception as error:
        known = isinstance(error, FedsinkError)
        message = str(error) if known else f"{type(error).__name__}: {error or 'no message'}."
        message = " ".join(message.split())  # libraries speak over several lines
        code = error.exit_code if isinstance(error, FedsinkError) else 1
        folder.write(folder.failed, {"message": message, "exit_code": code})
        raise


def _prepared(
    folder: RunFolder, run_config: Mapping[str, Any]
) -> tuple[dict[str, Any], ServerSettings]:
    if run_config["resume"]:
        config = stored_config(RunFolder.existing(folder.path))
        try:
            return config, deployed_settings(config, folder, config["run"])
        except (KeyError, TypeError) as error:
            raise CheckpointError(
                f"{folder.config} is not a run's configuration: {error}."
            ) from error
    RunFolder.fresh(folder.path)
    config = deployable(json.loads(str(run_config["overrides"])))
    run = {"name": new_run_name(), "server_seed": secrets.randbits(62), "key_file": None}
    settings = deployed_settings(config, folder, run)
    folder.create()
    folder.write(folder.privacy, settings.strategy.statement("node"))
    store_config(folder, {**config, "run": run})
    return config, settings
