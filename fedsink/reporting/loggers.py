"""Observers of a run, and those that `log=` names: TensorBoard, MLflow, a CSV file."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

from fedsink.errors import ConfigError
from fedsink.registry import Registry
from fedsink.reporting.displays import ForgivingStream
from fedsink.reporting.output_files import write_atomic
from fedsink.values import PLACES, leaves

Ending = Literal["finished", "stopped", "failed"]
"""End of training; a run that was stopped or has failed can be resumed."""


class Observer:
    """Listens to a run. Every event does nothing here; a subclass overrides those that it needs.

    A resumed run begins again after a checkpoint: it repeats the events after the checkpoint, and
    none before `keep`.
    """

    def begin(self, round: int) -> None:
        """Training begins after `round`: 0, or the checkpoint's."""

    def metrics(self, line: Mapping[str, Any]) -> None:
        """A line was written to metrics.jsonl."""

    def picture(self, round: int, path: Path) -> None:
        """A PNG that shows `round` was written to samples/."""

    def keep(self) -> None:
        """A checkpoint is about to be written: store all events so far."""

    def end(self, ending: Ending) -> None:
        """Training has ended."""


class Observers(Observer):
    """Passes events on to several observers. An observer that fails gets no further events.

    Args:
        observers: by the name under which a failure is reported on standard error.
    """

    def __init__(self, observers: Mapping[str, Observer]) -> None:
        self._observers = dict(observers)
        self._begun = False

    def begin(self, round: int) -> None:
        """Passes the event on."""
        self._begun = True
        self._pass_on("begin", round)

    def metrics(self, line: Mapping[str, Any]) -> None:
        """Passes the event on."""
        self._pass_on("metrics", line)

    def picture(self, round: int, path: Path) -> None:
        """Passes the event on."""
        self._pass_on("picture", round, path)

    def keep(self) -> None:
        """Passes the event on."""
        self._pass_on("keep")

    def end(self, ending: Ending) -> None:
        """Passes the end on, if there was a beginning."""
        if self._begun:
            self._pass_on("end", ending)

    def _pass_on(self, event: str, *values: object) -> None:
        for name, observer in list(self._observers.items()):
            try:
                getattr(observer, event)(*values)
            except Exception as error:
                del self._observers[name]
                reason = " ".join(str(error).split()) or "no message"
                ForgivingStream(sys.stderr).write(
                    f"{name} failed ({type(error).__name__}: {reason}): the run continues without "
                    "it.\n"
                )


class Logger(Observer, ABC):
    """An observer that `log=` names.

    Args:
        folder: the run folder.
        config: the configuration.
        privacy: the content of privacy.json.
    """

    package: ClassVar[str | None] = None
    """The package that the logger imports, from the extra of the logger's name; None: none."""

    def __init__(self, folder: Path, config: Mapping[str, Any], privacy: Mapping[str, Any]) -> None:
        self._folder = folder
        self._name = str(config.get("run", {}).get("name", folder.name))
        # No tracking server needs the names of this machine's files.
        stated = leaves({group: values for group, values in config.items() if group != "run"})
        self._config = {key: value for key, value in stated if key not in PLACES}
        self._privacy = dict(privacy)

    @abstractmethod
    def metrics(self, line: Mapping[str, Any]) -> None:
        """Logs the figures of a round."""


class CSVLogger(Logger):
    """metrics.csv in the run folder: a row for each round, a column for each figure."""

    def begin(self, round: int) -> None:
        """Drops the rows after the checkpoint."""
        self._path = self._folder / "metrics.csv"
        rows = []
        if self._path.is_file():
            with self._path.open(newline="") as file:
                rows = [row for row in csv.DictReader(file) if int(row["round"]) <= round]
        self._columns = list(rows[0]) if rows else []
        self._write(rows)

    def metrics(self, line: Mapping[str, Any]) -> None:
        """Appends a row; a new figure adds a column to all rows."""
        row = {key: json.dumps(v) if isinstance(v, list) else v for key, v in line.items()}
        if new := [key for key in row if key not in self._columns]:
            with self._path.open(newline="") as file:
                rows = list(csv.DictReader(file))
            self._columns += new
            self._write([*rows, row])
            return
        with self._path.open("a", newline="") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    def _write(self, rows: Collection[Mapping[str, Any]]) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns)
        if self._columns:
            writer.writeheader()
        writer.writerows(rows)
        write_atomic(self._path, text.getvalue().encode())


class TensorBoardLogger(Logger):
    """Event files in tensorboard/ of the run folder: figures, pictures, the guarantee."""

    package = "tensorboard"

    def begin(self, round: int) -> None:
        """Opens a file; TensorBoard drops what earlier files hold after the checkpoint."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(
            str(self._folder / "tensorboard"), purge_step=round + 1 if round else 0
        )
        if round == 0:
            for name, values in (("configuration", self._config), ("privacy", self._privacy)):
                text = json.dumps(values, indent=2, ensure_ascii=False)
                self._writer.add_text(name, f"```\n{text}\n```", 0)

    def metrics(self, line: Mapping[str, Any]) -> None:
        """Adds a scalar for each figure."""
        for name, value in _figures(line):
            self._writer.add_scalar(name, value, line["round"])

    def picture(self, round: int, path: Path) -> None:
        """Adds an image."""
        import numpy as np
        from PIL import Image

        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
        self._writer.add_image("samples", pixels, round, dataformats="HWC")

    def keep(self) -> None:
        """Writes the waiting values."""
        self._writer.flush()

    def end(self, ending: Ending) -> None:
        """Closes the file."""
        self._writer.close()


class MLflowLogger(Logger):
    """A run at MLFLOW_TRACKING_URI, or in mlruns/ of the run folder: parameters, figures, pictures.

    Figures are sent together at every checkpoint, because a tracking server may be slow. The run
    has the tag `fedsink.run`, in the experiment MLFLOW_EXPERIMENT_NAME or "fedsink".
    """

    package = "mlflow"
    _STATUS: ClassVar[Mapping[Ending, str]] = {
        "finished": "FINISHED",
        "stopped": "KILLED",
        "failed": "FAILED",
    }

    def begin(self, round: int) -> None:
        """Finds the run that is resumed, or makes one."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = (self._folder / "mlruns").as_uri()
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._client, self._metric = MlflowClient(tracking_uri=uri), Metric
        self._waiting: list[Metric] = []
        self._last = 0
        named = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedsink")
        known = self._client.get_experiment_by_name(named)
        experiment = known.experiment_id if known else self._client.create_experiment(named)
        runs = self._client.search_runs([experiment], f"tags.`fedsink.run` = '{self._name}'")
        if runs:
            self._run = runs[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            logged = self._client.get_metric_history(self._run, "seconds")
            self._last = max((metric.step for metric in logged), default=0)
            return
        tags = {"fedsink.run": self._name}
        run = self._client.create_run(experiment, tags=tags, run_name=self._folder.name)
        self._run = run.info.run_id
        values = self._config | {
            f"privacy.{key}": self._privacy[key] for key in ("epsilon", "delta")
        }
        params = [Param(key, str(value)[:500]) for key, value in values.items()]
        for start in range(0, len(params), 100):
            self._client.log_batch(self._run, params=params[start : start + 100])
        self._client.log_dict(self._run, self._privacy, "privacy.json")

    def metrics(self, line: Mapping[str, Any]) -> None:
        """Keeps the figures until the next checkpoint."""
        if line["round"] > self._last:
            now = int(time.time() * 1000)
            step = line["round"]
            self._waiting += [self._metric(name, v, now, step) for name, v in _figures(line)]

    def picture(self, round: int, path: Path) -> None:
        """Stores the file."""
        self._client.log_artifact(self._run, str(path), "samples")

    def keep(self) -> None:
        """Sends the waiting values."""
        for start in range(0, len(self._waiting), 1000):
            self._client.log_batch(self._run, metrics=self._waiting[start : start + 1000])
        self._waiting = []

    def end(self, ending: Ending) -> None:
        """Sends the rest, and how the run ended."""
        self.keep()
        self._client.set_terminated(self._run, status=self._STATUS[ending])


LOGGERS: Registry[type[Logger]] = Registry(
    "log", {"csv": CSVLogger, "tensorboard": TensorBoardLogger, "mlflow": MLflowLogger}
)


def logger_names(value: object) -> tuple[str, ...]:
    """Returns the names of loggers in `log`: none, one, or a list.

    Raises:
        ConfigError: an unknown name, or one that stands twice.
    """
    if value is None:
        return ()
    names = tuple(value) if isinstance(value, list | tuple) else (value,)
    for name in names:
        LOGGERS.find(name)
    if len(set(names)) < len(names):
        raise ConfigError(f"log={list(names)} names a logger twice.")
    return names


def require_packages(names: Collection[str]) -> None:
    """Refuses loggers whose package is not installed.

    Raises:
        ConfigError: a package is missing; the message names the extra.
    """
    for name in names:
        package = LOGGERS.find(name).package
        if package is not None and find_spec(package) is None:
            raise ConfigError(
                f"log={name} needs the package {package}, which is not installed: "
                f'`pip install "fedsink[{name}]"`, or leave log={name} out.'
            )


def loggers(
    names: Collection[str], folder: Path, config: Mapping[str, Any], privacy: Mapping[str, Any]
) -> Observers:
    """Makes the named loggers of a run; a logger that fails does not stop the run."""
    made = {f"log={name}": LOGGERS.find(name)(folder, config, privacy) for name in names}
    return Observers(made)


def _figures(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in line.items():
        if name != "round" and isinstance(value, int | float):
            yield name, float(value)
