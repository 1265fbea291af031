"""`import fedsink`: the commands' work as functions, and a run as an object."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsink.environment import undisturbed
from fedsink.errors import CheckpointError, ConfigError
from fedsink.server.finished import FinishedRun, finished_record, open_run
from fedsink.server.folder import RecordedRun, promise

if TYPE_CHECKING:
    from torch import Tensor

    from fedsink.models import Generator
    from fedsink.results.evaluation.sets import Report
    from fedsink.simulation.run_figures import Measured

__all__ = ["Run", "load", "resume", "simulate"]


@undisturbed()
def simulate(
    values: Mapping[str, Any] | None = None,
    /,
    *,
    folder: str | os.PathLike[str] | None = None,
    **keys: Any,
) -> Run:
    """Learns a generator from simulated clients, as `fedsink simulate` does.

    The arguments are the keys of the command line: groups and keys by keyword, keys with a dot
    through a mapping. Omitted keys have the command's values.

        run = fedsink.simulate(mode="central", eps=5, seed=0)
        run = fedsink.simulate({"strategy.rows": 20}, mode="central")
        run = fedsink.simulate(mode="central", strategy={"rows": 20})
        runs = [fedsink.simulate(mode="ldp", eps=eps) for eps in (20, 35)]

    Progress is shown on standard error, or below a notebook's cell. The process is as before the
    call, the caller's Ray included (docs/python.md).

    Args:
        values: values by key. A mapping under the name of a group holds the group's options.
        folder: the run folder, new or empty; None: a new one under `runs`, as `hydra.run.dir` says.
        keys: values by key, as keywords.

    Returns:
        The finished run.

    Raises:
        FedsinkError: bad input, in the command's words (nothing was written), or a failed run.
        KeyboardInterrupt: the run was stopped; the text says how to continue it.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from fedsink.commands.hydra_keys import one_sentence
    from fedsink.conf.acting import composed_run
    from fedsink.conf.loading import as_overrides, groups

    given: dict[str, Any] = {}
    for source in (values or {}, keys, {} if folder is None else {"hydra.run.dir": folder}):
        if twice := sorted(given.keys() & source.keys()):
            raise ConfigError(f"{twice[0]} was given twice: leave one of them out.")
        given |= source
    if given.get("resume") is not None:
        raise ConfigError(
            f"fedsink.simulate starts runs: continue with fedsink.resume({given['resume']!r})."
        )
    nested = any(isinstance(value, Mapping) for value in given.values())
    try:
        config, path = composed_run(as_overrides(given, groups() if nested else ()))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(one_sentence(error)) from error
    with _stoppable(path):
        from fedsink.simulation.simulated_run import start

        return Run(start(config, path))


@undisturbed()
def resume(folder: str | os.PathLike[str]) -> Run:
    """Continues the run in a folder, with the same result as if it had never stopped.

    Raises:
        FedsinkError: the folder holds no run that can be continued, or the run failed again.
        KeyboardInterrupt: the run was stopped again.
    """
    path = Path(folder).expanduser().resolve()
    with _stoppable(path):
        from fedsink.simulation.simulated_run import resume

        return Run(resume(path))


@undisturbed()
def load(folder: str | os.PathLike[str]) -> Run:
    """Opens the run in a folder, finished or not; a file is read when it is first needed.

    Raises:
        CheckpointError: the folder holds no run.
    """
    return Run(folder)


class Run:
    """A run in its folder: its guarantee, its metrics, and samples of its generator.

    A run that has not finished has its files so far, and no generator.

    `privacy`, `generator` and the methods raise CheckpointError, which says what to do, where the
    folder lacks what they need; `metrics`, `pictures` and `evaluations` are then empty.

    Args:
        folder: the run folder; "~" is the user's home.

    Raises:
        CheckpointError: the folder holds no run.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._recorded = RecordedRun.of(Path(folder))

    @property
    def folder(self) -> Path:
        """Absolute path of the folder; docs/run-folder.md describes its files."""
        return self._recorded.folder.path

    @property
    def finished(self) -> bool:
        """True once the run has ended."""
        return self._recorded.finished

    @property
    def config(self) -> dict[str, Any]:
        """Resolved configuration, with every key of the command line."""
        return self._recorded.config

    @property
    def privacy(self) -> dict[str, Any]:
        """Guarantee in numbers and words: `epsilon`, `delta`, `unit`, `protected` and more."""
        entries = self._recorded.privacy
        if entries is None:
            raise CheckpointError(
                f"{self.folder} holds no privacy.json: restore it from a copy, or run again."
            )
        return entries

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Lines of metrics.jsonl, one for each message: `round` (its last), `loss`, `epsilon`, ….

        pandas.DataFrame(run.metrics) makes a table of the lines.
        """
        return [dict(line) for line in self._recorded.rounds]

    @property
    def pictures(self) -> dict[int, Path]:
        """Sample grids, by the round that they show, in order."""
        return self._recorded.pictures

    @property
    def evaluations(self) -> dict[str, dict[str, Any]]:
        """Measured figures so far, by the names of their files without the ending."""
        return RecordedRun(self._recorded.folder).evaluations

    @property
    @undisturbed()
    def generator(self) -> Generator:
        """Trained generator, a `torch.nn.Module` on the CPU."""
        return self._finished.generator

    @undisturbed()
    def sample(
        self,
        n: int,
        *,
        seed: int = 0,
        balanced: bool = False,
        classes: Sequence[str] | None = None,
        observation: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Draws labelled pictures, as `fedsink sample` does. This costs no privacy.

        Args:
            n: number of pictures.
            seed: equal arguments give equal pictures and labels.
            balanced: equal numbers of each class; else classes are drawn as in training.
            classes: names of the classes to draw; None: all.
            observation: with the run's observation model; else without.

        Returns:
            Pictures (n, C, H, W) in [0, 1], or points (n, d); and labels (n,), int64.

        Raises:
            CheckpointError: the run has not finished.
            ConfigError: n or seed is out of range, or a class is unknown to the run.
        """
        finished = self._finished if observation else self._bare
        return finished.draw(n, seed, balanced=balanced, classes=classes)

    @undisturbed()
    def evaluate(
        self,
        suite: str | None = None,
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
        """Trains classifiers on drawn pictures and tests them on real ones, as `fedsink evaluate`.

        The figures are written into the run folder. They are computed on real data without
        privacy, for public benchmarks. The arguments are the command's keys (docs/evaluation.md);
        None stands for its default.

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

    @undisturbed()
    def report(self) -> Path:
        """Writes report.html, a page about the run, as `fedsink report` does; returns its path."""
        from fedsink.results.pages.report_page import write_report

        return write_report(self.folder)

    @undisturbed()
    def card(self, license: str = "unknown") -> str:
        """Returns a model card in Hugging Face's format, as `fedsink card` writes it.

        Args:
            license: the license of the generator, by its name on the Hub.

        Raises:
            CheckpointError: the run has not finished.
        """
        from fedsink.results.pages.model_card import model_card

        return model_card(*finished_record(str(self.folder)), license)

    @cached_property
    def _finished(self) -> FinishedRun:
        return open_run(str(self.folder))

    @cached_property
    def _bare(self) -> FinishedRun:
        return open_run(str(self.folder), observed=False)

    def __repr__(self) -> str:
        return f"<fedsink.Run {self._place()}: {self._summary()}>"

    @undisturbed()
    def _repr_html_(self) -> str:
        text = f"<p>{escape(self._summary())}<br><code>{escape(self._place())}</code></p>"
        if not self.pictures:
            return text
        from fedsink.results.pages.page import data_uri

        round, path = list(self.pictures.items())[-1]
        picture = data_uri(path.read_bytes(), "image/png")
        return f'{text}<img src="{picture}" alt="Samples, round {round}">'

    def _place(self) -> str:
        """Returns the folder, relative to the working directory if it lies below."""
        here = Path.cwd()
        return str(
            self.folder.relative_to(here) if self.folder.is_relative_to(here) else self.folder
        )

    def _summary(self) -> str:
        rounds = self._recorded.rounds
        done = rounds[-1]["round"] if rounds else 0
        parts = [self.config["mode"], promise(self._recorded.privacy), f"{done} rounds"]
        return ", ".join([*parts, *([] if self.finished else ["unfinished"])])


@contextmanager
def _stoppable(folder: Path) -> Iterator[None]:
    """Makes a KeyboardInterrupt of a stopped run."""
    from fedsink.server.loop import InterruptedRunError

    try:
        yield
    except InterruptedRunError as error:
        raise KeyboardInterrupt(
            f"{error.stopped} Continue with: fedsink.resume({str(folder)!r})"
        ) from error
