"""What a study is: which runs, and what is made of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from fedsink.clients.node_settings import NodeSettings
from fedsink.server.finished import FinishedRun
from fedsink.values import Config


@dataclass(frozen=True)
class StudyPlan:
    """The runs of a study, fixed before the first of them starts.

    Attributes:
        runs: the whole configuration of each, by the name of its folder, in their order.
        notes: what the report needs beside the runs, in plain values.
    """

    runs: dict[str, dict[str, Any]]
    notes: dict[str, Any] = field(default_factory=dict)


class Study(ABC):
    """An experiment of several runs, and what is made of them.

    A study is a frozen dataclass in a file of this folder, and an entry in `running.STUDIES`. Its
    fields are the keys of `study` in a configuration, beside `study.name`.

    Its runs are ordinary ones, in sub-folders of the study's folder. They are planned once; a study
    that was stopped continues with the plan that it stored, so that nothing of `plan` is repeated.
    """

    name: ClassVar[str]

    @abstractmethod
    def plan(self, config: Config, node: NodeSettings) -> StudyPlan:
        """Plan the runs.

        Args:
            config: of the study, all interpolations resolved.
            node: the clients of a single run of this configuration.

        Raises:
            FedsinkError: there are no such runs.
        """

    @abstractmethod
    def conclude(self, folder: Path, notes: Config, runs: Mapping[str, FinishedRun]) -> str:
        """Write the report into the study's folder, and return what is printed of it.

        Args:
            folder: of the study.
            notes: of the plan.
            runs: all of them, by name.
        """
