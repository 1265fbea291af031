"""A run as Python sees it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsink.errors import CheckpointError
from fedsink.server.finished import FinishedRun, open_run
from fedsink.server.recorded import RecordedRun

if TYPE_CHECKING:
    from torch import Tensor

    from fedsink.evaluation.labelled import Report
    from fedsink.models import Generator
    from fedsink.simulation.run_figures import Measured


class Run:
    """A run in its folder: what it promised, how it went, and what can be drawn from it.

    A folder of several runs, a study's, has these in `parts`, and none of its own figures. Of a run
    that has not finished there is what it has written so far, and no generator.

    Every attribute raises CheckpointError, which says what to do, where the folder lacks it.

    Args:
        folder: the run folder; "~" is the user's home.

    Raises:
        CheckpointError: the folder holds no run.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._recorded = RecordedRun.of(Path(folder))

    @property
    def folder(self) -> Path:
        """Where it lies, an absolute path; docs/run-folder.md says what is in it."""
        return self._recorded.folder.path

    @property
    def parts(self) -> dict[str, Run]:
        """The runs of a study, by name; of a run: none."""
        return {name: Run(part.folder.path) for name, part in self._recorded.parts.items()}

    @property
    def finished(self) -> bool:
        """Whether the run has ended."""
        return self._recorded.finished

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, every key of the command line."""
        return self._recorded.config

    @property
    def privacy(self) -> dict[str, Any]:
        """The guarantee, in numbers and words: `epsilon`, `delta`, `unit`, `protected` and more."""
        stated = self._recorded.privacy
        if stated is None:
            raise CheckpointError(
                f"{self.folder} holds no privacy.json: a study's runs have their own, in .parts."
            )
        return stated

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """A record for each round: `round`, `loss`, `epsilon`, `seconds` and more.

        pandas.DataFrame(run.metrics) is a table of them.
        """
        return [dict(record) for record in self._recorded.rounds]

    @property
    def pictures(self) -> dict[int, Path]:
        """The sample grids, by the round that they show, in order."""
        return self._recorded.pictures

    @property
    def evaluations(self) -> dict[str, dict[str, Any]]:
        """What has been measured so far, by the names of the files without their ending."""
        return RecordedRun(self._recorded.folder).evaluations

    @property
    def generator(self) -> Generator:
        """The trained generator, a `torch.nn.Module` on the CPU."""
        return self._finished.generator

    def sample(
        self,
        n: int,
        *,
        seed: int = 0,
        balanced: bool = False,
        classes: Sequence[str] | None = None,
        observation: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Draw labelled pictures, as `fedsink sample` does. This costs no privacy.

        Args:
            n: how many.
            seed: the same pictures and labels for the same arguments.
            balanced: as many of each class; else classes are drawn as in training.
            classes: of these classes alone, by name; None: of all.
            observation: with the run's observation model; else they are the generator's own.

        Returns:
            Pictures (n, C, H, W) in [0, 1], or points (n, d); and labels (n,), int64.

        Raises:
            CheckpointError: the run has not finished.
            ConfigError: n or seed is no such number, or a class that the run does not have.
        """
        finished = self._finished if observation else self._bare
        return finished.draw(n, seed, balanced=balanced, classes=classes)

    def evaluate(
        self,
        suite: str = "fast",
        *,
        classifiers: str = "ours",
        n: int | None = None,
        runs: int | None = None,
        seed: int = 0,
        threads: int | None = None,
        reference: bool | None = None,
        observation: bool = True,
        inception: str | Path | None = None,
        report: Report | None = None,
    ) -> Measured:
        """Train classifiers on drawn pictures, test them on real ones, as `fedsink evaluate` does.

        The figures are written into the run folder. They are computed on real data without privacy:
        they are for public benchmarks.

        Args:
            suite: "fast", "paper" or "full" (docs/evaluation.md).
            classifiers: "ours"; or "published", in suite "full".
            n: drawn pictures; None: 10000 (fast), or as many as the dataset nominally has.
            runs: of the suites "paper" and "full"; None: five.
            seed: of the pictures and the classifiers.
            threads: processor threads; None: all cores, and one for small pictures.
            reference: also measure real training pictures and class means; None: not in "fast".
            observation: with the run's observation model.
            inception: weights of torchvision's Inception v3, for FID in suites "fast" and "full".
            report: receives lines of text while it is measured.

        Returns:
            The `figures`, a `table` of them to print, and the `path` of their file.

        Raises:
            FedsinkError: a value belongs to another suite, or the run has not finished.
        """
        from fedsink.simulation.run_figures import evaluate_run

        return evaluate_run(
            str(self.folder),
            suite=suite,
            classifiers=classifiers,
            n=n,
            runs=runs,
            seed=seed,
            threads=threads,
            reference=reference,
            observation=observation,
            inception=inception,
            report=report,
        )

    def report(self) -> Path:
        """Write report.html, one page about the run, as `fedsink report` does; return its path."""
        from fedsink.pages.report import write_report

        return write_report(self.folder)

    @cached_property
    def _finished(self) -> FinishedRun:
        return open_run(str(self.folder))

    @cached_property
    def _bare(self) -> FinishedRun:
        return open_run(str(self.folder), observed=False)

    def __repr__(self) -> str:
        return f"<fedsink.Run {self._place()}: {self._summary()}>"

    def _repr_html_(self) -> str:
        text = f"<p>{escape(self._summary())}<br><code>{escape(self._place())}</code></p>"
        if not self.pictures:
            return text
        from fedsink.pages.page import data_uri

        round, path = list(self.pictures.items())[-1]
        picture = data_uri(path.read_bytes(), "image/png")
        return f'{text}<img src="{picture}" alt="Samples, round {round}">'

    def _place(self) -> str:
        """The folder, from here where it lies below."""
        here = Path.cwd()
        return str(
            self.folder.relative_to(here) if self.folder.is_relative_to(here) else self.folder
        )

    def _summary(self) -> str:
        if self._recorded.is_study:
            return f"a study of the runs {', '.join(self.parts) or 'to come'}"
        rounds = self._recorded.rounds
        done = rounds[-1]["round"] if rounds else 0
        parts = [self.config["mode"], promise(self._recorded.privacy), f"{done} rounds"]
        return ", ".join([*parts, *([] if self.finished else ["unfinished"])])


def promise(privacy: dict[str, Any] | None) -> str:
    """What privacy.json promises, in a few words."""
    if privacy is None:
        return "nothing promised yet"
    if privacy["epsilon"] is None:
        return "nothing protected"
    delta = f", δ = {privacy['delta']:g}" if privacy["delta"] else ""
    return f"ε = {privacy['epsilon']:.4g}{delta} per {privacy['unit']}"
