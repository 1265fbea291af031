"""A study: an experiment of several runs, played one after the other, and its report.

`Study` is a study's interface; `start_study` and `resume_study` play it. `STUDIES` in the package's
`__init__` has all of them by name.
"""

from __future__ import annotations

import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from fedsink.clients.node_settings import NodeSettings
from fedsink.errors import CheckpointError, ConfigError
from fedsink.reporting.displays import ForgivingStream
from fedsink.server.finished import FinishedRun, open_run
from fedsink.server.folder import RunFolder, command_for, names_part, store_config
from fedsink.server.loop import InterruptedRunError
from fedsink.simulation.run_settings import RunSettings
from fedsink.values import Config, strictly


@dataclass(frozen=True)
class StudyPlan:
    """The runs of a study, fixed before the first of them starts.

    Attributes:
        runs: the whole configuration of each run, by the name of its folder, in order.
        notes: plain values that the report needs beside the runs.

    Raises:
        ConfigError: a name is a path, which would lead out of the study's folder.
    """

    runs: dict[str, dict[str, Any]]
    notes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.runs:
            if not names_part(name):
                raise ConfigError(f"A run of a study is named by one part of a path, not {name!r}.")


class Study(ABC):
    """An experiment of several runs, and the report that is made of them.

    A study is a frozen dataclass in a file of this folder, and an entry in `STUDIES`. Its fields
    are the keys of `study` in a configuration, beside `study.name`.

    Its runs are ordinary ones, in sub-folders of the study's folder. They are planned once: a study
    that was stopped continues with the plan that it stored.
    """

    name: ClassVar[str]

    @abstractmethod
    def plan(self, config: Config, node: NodeSettings) -> StudyPlan:
        """Plans the runs.

        Args:
            config: of the study, all interpolations resolved.
            node: the clients of a single run of this configuration.

        Raises:
            FedsinkError: there are no such runs.
        """

    @abstractmethod
    def conclude(self, folder: Path, notes: Config, runs: Mapping[str, FinishedRun]) -> str:
        """Writes the report into the study's folder, and returns the text to print.

        Args:
            folder: of the study.
            notes: of the plan.
            runs: all of them, by name.
        """


@dataclass(frozen=True)
class SingleRuns:
    """The functions of `fedsink.simulation.simulated_run` for single runs.

    Attributes:
        check: refuses a configuration that cannot run in a folder, and returns its settings.
        start: runs a configuration in a new folder.
        resume: continues the run in a folder, if it has not finished.
    """

    check: Callable[[Config, Path], RunSettings]
    start: Callable[[dict[str, Any], Path], Path]
    resume: Callable[[Path], Path]


def start_study(study: Study, config: dict[str, Any], path: Path, single: SingleRuns) -> Path:
    """Plays a study in a new folder; writes nothing before all its runs are planned and checked.

    Args:
        study: of the configuration's group `study`.
        config: resolved.
        path: of the folder.
        single: starts its runs.

    Returns:
        The study's folder.

    Raises:
        FedsinkError: bad input (nothing is left behind), or a run that stopped (the study's folder
            can be resumed).
    """
    plan = planned(study, config, path, single)
    folder = RunFolder(path)
    with folder.claimed():
        store_config(folder, {**config, "plan": asdict(plan)})
        return _play(study, plan, folder, single)


def planned(study: Study, config: Config, path: Path, single: SingleRuns) -> StudyPlan:
    """The plan of a study for a new folder, all its runs checked; writes nothing.

    Raises:
        FedsinkError: bad input.
    """
    folder = RunFolder.fresh(path)
    settings = single.check({**config, "study": None}, folder.path)
    plan = study.plan(config, settings.node)
    for name, values in plan.runs.items():
        single.check(values, folder.path / name)
    return plan


def resume_study(
    folder: RunFolder, config: Config, read: Callable[[object], Study], single: SingleRuns
) -> Path:
    """Continues with the study in a folder: finished runs are kept, the others resumed or started.

    Args:
        folder: of the study.
        config: as it was stored there.
        read: makes the study of its options in a configuration.
        single: resumes or starts its runs.

    Raises:
        CheckpointError: config.yaml lacks the plan, or a run cannot be resumed.
    """
    try:
        plan = strictly(StudyPlan, config["plan"], "plan")
        study = read(config["study"])
    except (KeyError, ConfigError) as error:
        raise CheckpointError(f"{folder.config} is not a study's configuration: {error}") from error
    return _play(study, plan, folder, single)


def _play(study: Study, plan: StudyPlan, folder: RunFolder, single: SingleRuns) -> Path:
    for number, (name, config) in enumerate(plan.runs.items(), start=1):
        path, place = folder.path / name, f"{name}, {number} of {len(plan.runs)}"
        ForgivingStream(sys.stderr).write(f"Run {place}\n")
        try:
            if RunFolder(path).config.is_file():
                single.resume(path)
                continue
            # A kill may have left a folder before its run had begun.
            shutil.rmtree(path, ignore_errors=True)
            single.start(config, path)
        except InterruptedRunError as error:
            raise InterruptedRunError(
                f"Stopped in the run {place}.", command_for("simulate", "resume", folder.path)
            ) from error
    runs = {name: open_run(str(folder.path / name)) for name in plan.runs}
    print(study.conclude(folder.path, plan.notes, runs))
    return folder.path
