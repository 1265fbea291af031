"""Playing a study: its runs one after the other, then its report; stop and continue."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedsink.errors import CheckpointError, ConfigError
from fedsink.registry import Registry
from fedsink.reporting.displays import ForgivingStream
from fedsink.server.compose import store_config
from fedsink.server.finished import open_run
from fedsink.server.folder import RunFolder, command_for
from fedsink.server.loop import InterruptedRunError
from fedsink.simulation.settings import RunSettings
from fedsink.simulation.studies.comparison import MethodComparison
from fedsink.simulation.studies.debugging import Debugging
from fedsink.simulation.studies.study import Study, StudyPlan
from fedsink.values import Config, strictly

STUDIES: Registry[type[Study]] = Registry(
    "study.name", {cls.name: cls for cls in (Debugging, MethodComparison)}
)


@dataclass(frozen=True)
class Runner:
    """How `fedsink.simulation.simulate` treats single runs.

    Attributes:
        check: refuses a configuration that cannot run in a folder, and returns its settings.
        start: runs a configuration in a new folder.
        resume: continues the run in a folder, if it has not finished.
    """

    check: Callable[[Config, Path], RunSettings]
    start: Callable[[dict[str, Any], Path], Path]
    resume: Callable[[Path], Path]


def start_study(config: dict[str, Any], path: Path, runner: Runner) -> Path:
    """Play a study in a new folder.

    Nothing is written before all its runs have been planned and checked.

    Returns:
        The study's folder.

    Raises:
        FedsinkError: bad input (nothing is left behind), or a run that stopped (the study's folder
            can be resumed).
    """
    study, plan = planned(config, path, runner)
    folder = RunFolder(path)
    folder.path.mkdir(parents=True, exist_ok=True)
    store_config(folder, {**config, "plan": asdict(plan)})
    return _play(study, plan, folder, runner)


def planned(config: Config, path: Path, runner: Runner) -> tuple[Study, StudyPlan]:
    """A study for a new folder, and its plan, all its runs checked; writes nothing.

    Raises:
        FedsinkError: bad input.
    """
    folder = RunFolder.fresh(path)
    study = _study(config["study"])
    settings = runner.check({**config, "study": None}, folder.path)
    plan = study.plan(config, settings.node)
    for name, values in plan.runs.items():
        runner.check(values, folder.path / name)
    return study, plan


def resume_study(folder: RunFolder, config: Config, runner: Runner) -> Path:
    """Continue with the study in a folder: finished runs are kept, the others resumed or started.

    Args:
        folder: of the study.
        config: as it was stored there.
        runner: of its runs.

    Raises:
        CheckpointError: config.yaml lacks the plan, or a run cannot be resumed.
    """
    try:
        plan = strictly(StudyPlan, config["plan"], "plan")
        study = _study(config["study"])
    except (KeyError, ConfigError) as error:
        raise CheckpointError(f"{folder.config} is not a study's configuration: {error}") from error
    return _play(study, plan, folder, runner)


def _study(options: object) -> Study:
    if not isinstance(options, dict):
        raise ConfigError(
            f"study is null or a table with a name, as in experiment=debug_inverted, not "
            f"{options!r}."
        )
    values = {key: value for key, value in options.items() if key != "name"}
    return strictly(STUDIES.find(options.get("name")), values, "study")


def _play(study: Study, plan: StudyPlan, folder: RunFolder, runner: Runner) -> Path:
    for number, (name, config) in enumerate(plan.runs.items(), start=1):
        path, place = folder.path / name, f"{name}, {number} of {len(plan.runs)}"
        ForgivingStream(sys.stderr).write(f"Run {place}\n")
        try:
            if RunFolder(path).config.is_file():
                runner.resume(path)
                continue
            # A kill may have left a folder that its run had not begun in.
            shutil.rmtree(path, ignore_errors=True)
            runner.start(config, path)
        except InterruptedRunError as error:
            raise InterruptedRunError(
                f"Stopped in the run {place}.", command_for("simulate", "resume", folder.path)
            ) from error
    runs = {name: open_run(str(folder.path / name)) for name in plan.runs}
    print(study.conclude(folder.path, plan.notes, runs))
    return folder.path
