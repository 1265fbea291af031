"""`fedsink deploy`: a run on real nodes, through a SuperLink that is already there."""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fedsink.commands.command_keys import Parser, not_a_pair, parse
from fedsink.deployment.server_folder import deployed_name
from fedsink.deployment.submission import Submission, app_at, new_folder, submit
from fedsink.errors import ConfigError
from fedsink.server.folder import RunFolder

HELP = """\
fedsink deploy: learn an image generator on real nodes.

Usage: fedsink deploy app=DIR superlink=NAME [name=NAME] [folder=DIR] [group=choice …] [key=value …]
       fedsink deploy app=DIR superlink=NAME resume=NAME [folder=DIR]

  app        folder of the Flower app: deploy/ of fedsink's repository
  superlink  name of a connection in $FLWR_HOME/config.toml (see docs/deploy.md)
  name       of the run at the server; left out: the time and some random digits
  folder     receives the results on this machine when the run has ended; left out: runs/NAME
  resume     name of a run to continue
  clients    number of nodes; fedsink node client=N, from 0, is one of them

All other keys are those of fedsink simulate, except what each node's owner decides: data.root,
data.clients_file, seed, noise.backend and policy. Of noise, share,
tolerate_dropouts and bits act; of engine, wait, round_timeout, ask_again and timeout
(docs/deploy.md).

Examples:
  fedsink deploy app=deploy superlink=lab mode=central clients=2 rounds=600 eps=5 \\
    strategy.uses_per_message=60
  fedsink deploy app=deploy superlink=lab mode=ldp clients=2 eps=20
A message of any size takes seconds: give it many uses (strategy.uses_per_message).
A run continues without this command; its results come by
  fedsink fetch app=DIR superlink=NAME run=NAME"""

_OWN = ("app", "superlink", "name", "folder", "resume")


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Checks, submits, waits; prints the run folder in the last line of standard output."""
    own, overrides = _read(arguments)
    app, superlink = app_at(own["app"]), own["superlink"]
    resumed = "resume" in own
    name = own.get("resume") or own.get("name") or _new_name()
    folder = new_folder(own.get("folder") or f"runs/{name}")
    config = {} if resumed else _checked(overrides, name)
    print(f"run {name}", file=sys.stderr)

    def stopped(submission: Submission) -> int:
        print(
            f"\nfedsink: run {submission.run_id or 'not yet submitted'} was stopped. What the "
            "nodes released is charged in their ledgers. Continue with: fedsink deploy "
            f"app={app} superlink={superlink} resume={name}",
            file=sys.stderr,
        )
        return 130

    action = "resume" if resumed else "run"
    run_config = {"action": action, "name": name, "config": json.dumps(config)}
    return submit(app, superlink, run_config, folder, everything=debug, stopped=stopped)


def _read(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Returns the keys of this command, and the others."""
    for position, argument in enumerate(arguments):
        if argument.startswith("-") or "=" not in argument:
            raise ConfigError(not_a_pair(arguments, position, "see fedsink deploy --help"))
    mine = [argument for argument in arguments if argument.partition("=")[0] in _OWN]
    overrides = [argument for argument in arguments if argument not in mine]
    parsers: dict[str, Parser] = dict.fromkeys(_OWN, str)
    parsers["name"] = parsers["resume"] = _name
    own = parse(mine, parsers, of="deploy", needs=_OWN[:2])
    if own.get("resume") == "":
        raise ConfigError("resume needs the name of a run, which its first line said.")
    if "resume" in own and (overrides or "name" in own):
        raise ConfigError(
            f"resume={own['resume']} uses the configuration that the server has stored: leave "
            f"out {' '.join(overrides or ['name'])}."
        )
    return own, overrides


def _name(text: str) -> str:
    return deployed_name(text) if text else text


def _new_name() -> str:
    return time.strftime("%Y-%m-%d-%H-%M-%S-") + secrets.token_hex(3)


def _checked(overrides: Sequence[str], name: str) -> dict[str, object]:
    """Returns the configuration; refuses at once what the server would refuse a minute later."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from fedsink.commands.hydra_keys import one_sentence
    from fedsink.commands.hydra_keys import overrides as readable
    from fedsink.deployment.deployed_run import deployable, deployed_settings, received
    from fedsink.server.folder import cautions
    from fedsink.server.running import build_generator

    try:
        config = received(json.dumps(deployable(readable(overrides))))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(one_sentence(error)) from error
    run = {"name": "check", "server_seed": 0}
    settings, _ = deployed_settings(config, RunFolder(Path(name)), run)
    build_generator(settings)
    promise = settings.strategy.statement("node")
    minds = (f"Mind: {line}" for line in cautions(promise, config))
    for line in (settings.strategy.notice(promise), *minds):
        if line:
            print(line, file=sys.stderr)
    return config
