"""Origin of a record: the commit, the configuration, the data; and whether it still holds.

A recipe is frozen in a commit before the test set is read: `frozen_commit` refuses anything else.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from fedsink.conf.acting import compose_config
from fedsink.data.sources import load
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError
from fedsink.results.pages.compare_page import run_settings

ROOT = Path(__file__).resolve().parent.parent
FROZEN = ("fedsink/conf", "packages/papers/src/fedsink_papers/conf", "benchmarks/rows.yaml")
"""What a recipe and its row are made of."""

_NO_MATTER = ("log", "report.", "paper.", "paper", "engine.", "data.download", "public")
_NOT_READ = {
    "central": ("map.", "mechanism.", "shuffler", "shuffler_delta"),
    "ldp": ("view.", "rate", "clip", "shuffler", "shuffler_delta"),
}
"""Keys, and with a dot groups, that change nothing in a run of the mode."""


def frozen_commit(root: Path) -> str:
    """The commit of a checkout; "-dirty" behind it where other files differ from it.

    Raises:
        ConfigError: recipes or rows differ from the commit, or there is no commit.
    """
    if changed := _git(root, "status", "--porcelain", "--", *FROZEN).splitlines():
        raise ConfigError(
            f"{changed[0][3:]} is not committed: commit recipes and rows before the test set is "
            "read, so that no figure chooses them."
        )
    return _git(root, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    except OSError as error:
        raise ConfigError(
            f"git cannot be run ({error}): results need it to name a commit."
        ) from error
    if done.returncode != 0:
        reason = " ".join(done.stderr.split())
        raise ConfigError(f"{root} is no checkout with a commit ({reason}): clone the repository.")
    return done.stdout.rstrip()


def start_of(arguments: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Arguments with start=DIR for `start=$(fedsink simulate WORDS)`, and these words or None.

    >>> start_of(["eps=1", "start=$(fedsink simulate eps=inf public=true)"])
    (['eps=1', 'start=DIR'], ['eps=inf', 'public=true'])
    """
    found = [re.fullmatch(r"start=\$\(fedsink simulate (.*)\)", word) for word in arguments]
    plain = [word if at is None else "start=DIR" for word, at in zip(arguments, found, strict=True)]
    return plain, next((shlex.split(at[1]) for at in found if at), None)


def configuration_hash(config: Mapping[str, Any], start: str | None = None) -> str:
    """SHA-256, shortened, of everything that determines a run's result except the seed.

    The hash leaves out names, places, logs, keys that the method does not read and keys that are
    null, so that a key which is new and unused changes nothing.

    Args:
        config: of a run, all interpolations resolved.
        start: hash of the run that made its start, if it has one.
    """
    idle = (*_NO_MATTER, *_NOT_READ[config["mode"]], *_idle_in_strategy(config))
    if config["noise"]["share"] == "local":  # as before there were integers
        idle = (*idle, "noise.bits", "noise.draw", "noise.masked", "noise.dropouts")
    if config.get("start_plan") == "composed":  # as before there were private starts
        idle = (*idle, "start_plan")
    groups = tuple(key for key in idle if key.endswith("."))
    values = {
        key: value
        for key, value in (run_settings(config) | {"start": start}).items()
        if value is not None and key not in idle and not key.startswith(groups)
    }
    if (device := config["engine"].get("device", "cpu")) != "cpu":  # engines give the same results
        values["engine.device"] = device
    if config["mode"] == "ldp":  # the recipe's table by ε is read when the run begins
        values |= {f"recipe.{key}": config["recipe"].get(key) for key in ("eps", "by_eps")}
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _idle_in_strategy(config: Mapping[str, Any]) -> list[str]:
    """Keys of the strategy that a run does not read."""
    strategy, idle = config["strategy"], []
    if strategy.get("self_term") == "semi_debiased":
        idle.append("strategy.history")
    elif "self_term" in strategy:
        idle.append("strategy.p")
        if config["clip"] == "record" and strategy.get("schedule") == "class":
            idle += ["strategy.label_weight", "strategy.solver"]
    if not (strategy.get("critic") or {}).get("warm_generator"):  # as before there was the key
        idle.append("strategy.critic.warm_generator")
    if config["mode"] == "ldp" and strategy.get("solver") == "annealed":
        idle += ["strategy.tolerance", "strategy.max_iterations"]
    return idle


def configuration_of(arguments: tuple[str, ...]) -> str:
    """`configuration_hash` of the configuration that `fedsink simulate ARGUMENTS` would run.

    Raises:
        ConfigError: it would refuse to start.
    """
    plain, start = start_of(arguments)
    first = None if start is None else configuration_of(tuple(start))
    return configuration_hash(configured(tuple(plain)), first)


@cache
def configured(arguments: tuple[str, ...]) -> Mapping[str, Any]:
    """The configuration that `fedsink simulate ARGUMENTS` would run.

    Raises:
        ConfigError: it would refuse to start.
    """
    try:
        return compose_config(arguments)
    except (HydraException, OmegaConfBaseException) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"fedsink simulate {' '.join(arguments)}: {reason}") from error


def data_hash(config: Mapping[str, Any]) -> str:
    """SHA-256, shortened, of the training and test records that a run's configuration names."""
    spec = DataSpec.from_config(config["data"])
    digests = "".join(load(spec, split).digest() for split in ("train", "test"))
    return hashlib.sha256(digests.encode()).hexdigest()[:16]


def standing(
    records: Sequence[dict[str, Any]], arguments: Sequence[str]
) -> tuple[list[dict[str, Any]], str]:
    """Records that stand for a row, and a mark: "", "†" or "stale".

    Records of one table row are of one configuration: the present one, else the latest. Records
    with a commit replace records without one, which are from before the protocol ("†").

    Args:
        records: of the row, in the order in which they were made.
        arguments: of `fedsink simulate`, without the seed.
    """
    if not records:
        return [], ""
    known = [record for record in records if "configuration" in record]
    present = configuration_of(tuple(arguments)) if known else None
    held = [r for r in records if r.get("configuration", present) == present]
    stale = not held
    if stale:
        last = known[-1]["configuration"]
        held = [r for r in known if r["configuration"] == last]
    held = [r for r in held if "commit" in r] or held
    old = any("commit" not in record for record in held)
    return held, "stale" if stale else "†" if old else ""
