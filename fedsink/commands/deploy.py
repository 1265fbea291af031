"""`fedsink deploy`: a run on real nodes, through a SuperLink that is already there."""

from __future__ import annotations

import json
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsink.commands.flower import Submission
from fedsink.errors import ConfigError
from fedsink.server.folder import RunFolder

_USAGE = """\
fedsink deploy: learn an image generator on real nodes.

Usage: fedsink deploy app=DIR superlink=NAME [folder=DIR] [group=choice …] [key=value …]
       fedsink deploy app=DIR superlink=NAME resume=FOLDER

  app        folder of the Flower app: deploy/ of fedsink's repository
  superlink  name of a connection in $FLWR_HOME/config.toml (see docs/deploy.md)
  folder     the run folder, on the disk that this command shares with the SuperLink
  resume     a run folder to continue
  clients    how many nodes take part; each holds one number from 0 in its --node-config

Everything else is as in fedsink simulate, except what is each node's owner's: data.root, seed,
noise, policy and engine.

Examples:
  fedsink deploy app=deploy superlink=lab mode=central clients=2 rounds=600 eps=5 \\
    strategy.uses_per_message=60
  fedsink deploy app=deploy superlink=lab mode=ldp clients=2 eps=20
A message takes seconds whatever it holds: give it many uses (strategy.uses_per_message)."""


@dataclass(frozen=True)
class _Wanted:
    """What was typed."""

    app: Path
    superlink: str
    folder: Path
    resume: bool
    overrides: list[str]


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Check, submit, wait; prints the run folder in the last line of standard output."""
    if any(a in ("--help", "-h") for a in arguments):
        print(_USAGE)
        return 0
    wanted = _read(arguments)
    _check(wanted)
    run_config = {
        "folder": str(wanted.folder),
        "overrides": json.dumps(wanted.overrides),
        "resume": wanted.resume,
    }
    with tempfile.TemporaryDirectory(prefix="fedsink-deploy-") as scratch:
        path = Path(scratch) / "run.toml"
        # JSON's strings and truth values are TOML's.
        path.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in run_config.items()))
        submission = Submission(wanted.app, wanted.superlink, path)
        try:
            submission.wait(everything=debug)
        except KeyboardInterrupt:
            return _stopped(submission, wanted)
    return _outcome(submission, RunFolder(wanted.folder))


def _read(arguments: Sequence[str]) -> _Wanted:
    own: dict[str, str] = {}
    overrides = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if argument.startswith("-") or not equals:
            raise ConfigError(f"{argument!r} is not of the form key=value; see fedsink deploy -h.")
        if key not in ("app", "superlink", "folder", "resume"):
            overrides.append(argument)
        elif key in own:
            raise ConfigError(f"{key} was given twice.")
        else:
            own[key] = value
    for key, example in (("app", "app=deploy"), ("superlink", "superlink=lab")):
        if not own.get(key):
            raise ConfigError(f"{key} must be given, for example {example}; see fedsink deploy -h.")
    if "resume" in own and (overrides or "folder" in own):
        raise ConfigError(
            f"resume={own['resume']} uses the configuration stored in that folder: leave "
            f"out {' '.join(overrides or ['folder'])}."
        )
    chosen = own.get("resume") or own.get("folder") or _default_folder()
    app, folder = (Path(text).expanduser().resolve() for text in (own["app"], chosen))
    return _Wanted(app, own["superlink"], folder, "resume" in own, overrides)


def _default_folder() -> str:
    return time.strftime("runs/%Y-%m-%d/%H-%M-%S-") + secrets.token_hex(3) + "-deploy"


def _check(wanted: _Wanted) -> None:
    """Refuse here and now what the server would refuse a minute later."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from fedsink.commands.hydra_errors import one_sentence
    from fedsink.server.compose import stored_config
    from fedsink.server.deployment import deployable, deployed_settings
    from fedsink.server.running import build_generator

    if not (wanted.app / "pyproject.toml").is_file():
        raise ConfigError(
            f"app={wanted.app} holds no pyproject.toml: name the folder deploy/ of fedsink's "
            "repository, or a copy of it."
        )
    if wanted.resume:
        folder = RunFolder.existing(wanted.folder)
        if folder.finished:
            raise ConfigError(f"The run in {folder.path} has ended: there is nothing to resume.")
        stored_config(folder)
        return
    folder = RunFolder.fresh(wanted.folder)
    try:
        config = deployable(wanted.overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(one_sentence(error)) from error
    settings, _ = deployed_settings(config, folder, {"name": "check", "server_seed": 0})
    build_generator(settings)


def _outcome(submission: Submission, folder: RunFolder) -> int:
    if folder.failed.is_file():
        failure = json.loads(folder.failed.read_text())
        print(f"fedsink: {failure['message']}", file=sys.stderr)
        return int(failure["exit_code"])
    if folder.finished:
        print(folder.path)
        return 0
    print(f"fedsink: {submission.what_happened()}", file=sys.stderr)
    return 1


def _stopped(submission: Submission, wanted: _Wanted) -> int:
    submission.stop()
    print(
        f"\nfedsink: run {submission.run_id or 'not yet submitted'} was stopped. What the nodes "
        "released is charged in their ledgers. Continue with: fedsink deploy "
        f"app={wanted.app} superlink={wanted.superlink} resume={wanted.folder}",
        file=sys.stderr,
    )
    return 130
