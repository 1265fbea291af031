"""Observers of a run, and those that `log=` names: TensorBoard, MLflow, a CSV file."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

from fedsink.errors import ConfigError
from fedsink.registry import Registry
from fedsink.reporting.displays import ForgivingStream
from fedsink.reporting.output_files import RELEASED, write_atomic
from fedsink.values import PLACES, leaves, read_json

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
    """An observer that `log=` names."""

    package: ClassVar[str | None] = None
    """The package that the logger imports, from the extra of the logger's name; None: none."""

    def __init__(self, folder: Path, config: Mapping[str, Any], privacy: Mapping[str, Any]) -> None:
        self._folder = folder
        self._name = str(config.get("run", {}).get("name", folder.name))
        # No tracking server needs the names of this machine's files.
        stated = leaves({group: values for group, values in config.items() if group != "run"})
        self._config = {
            key: value
            for key, value in stated
            if key not in PLACES and (key != "start" or value in (None, "public"))
        }
        self._observation = config.get("observation", {})
        self._privacy = dict(privacy)

    @abstractmethod
    def metrics(self, line: Mapping[str, Any]) -> None:
        """Logs the figures of a round."""

    def evaluated(self, path: Path, figures: Mapping[str, Any]) -> None:
        """The finished run was evaluated: `figures` were written to `path`, a JSON file."""


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
    """A run at MLFLOW_TRACKING_URI, or in mlruns/ beside the run: figures, pictures, the generator.

    Figures are sent together at every checkpoint, because a tracking server may be slow. The run
    has the tag `fedsink.run`, in the experiment MLFLOW_EXPERIMENT_NAME or "fedsink". Runs of a
    sweep are nested in a run with the tag `fedsink.sweep`, and share one mlruns/.
    """

    package = "mlflow"
    _STATUS: ClassVar[Mapping[Ending, str]] = {
        "finished": "FINISHED",
        "stopped": "KILLED",
        "failed": "FAILED",
    }

    def begin(self, round: int) -> None:
        """Finds the run that is resumed, or makes one."""
        from mlflow.entities import Metric, Param

        self._connect()
        self._metric = Metric
        self._waiting: list[Metric] = []
        self._last = 0
        self._parent = self._sweeps_run()
        if known := self._found("fedsink.run", self._name):
            self._run = known
            self._client.update_run(self._run, status="RUNNING")
            logged = self._client.get_metric_history(self._run, "seconds")
            self._last = max((metric.step for metric in logged), default=0)
            return
        tags = {"fedsink.run": self._name}
        if self._parent is not None:
            tags["mlflow.parentRunId"] = self._parent
        run = self._client.create_run(self._experiment, tags=tags, run_name=self._folder.name)
        self._run = run.info.run_id
        values = self._config | {
            f"privacy.{key}": self._privacy[key] for key in ("epsilon", "delta")
        }
        params = [Param(key, str(value)[:500]) for key, value in values.items()]
        for start in range(0, len(params), 100):
            self._client.log_batch(self._run, params=params[start : start + 100])
        self._client.log_dict(self._run, self._privacy, "privacy.json")

    def _connect(self) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = ((self._sweep or self._folder) / "mlruns").as_uri()
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=uri)
        named = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedsink")
        known = self._client.get_experiment_by_name(named)
        self._experiment = known.experiment_id if known else self._client.create_experiment(named)

    @property
    def _sweep(self) -> Path | None:
        """The folder of the sweep that the run belongs to: Hydra writes multirun.yaml there."""
        above = self._folder.parent
        return above if (above / "multirun.yaml").is_file() else None

    def _sweeps_run(self) -> str | None:
        """Finds or makes the run in which those of this sweep are nested."""
        if self._sweep is None:
            return None
        # Not the path: no tracking server needs the names of this machine's files.
        made = (self._sweep / "multirun.yaml").stat().st_mtime_ns
        name = hashlib.sha256(f"{self._sweep}|{made}".encode()).hexdigest()[:16]
        if known := self._found("fedsink.sweep", name):
            return known
        run = self._client.create_run(
            self._experiment, tags={"fedsink.sweep": name}, run_name=self._sweep.name
        )
        return str(run.info.run_id)

    def _found(self, tag: str, value: str) -> str | None:
        runs = self._client.search_runs([self._experiment], f"tags.`{tag}` = '{value}'")
        return str(runs[0].info.run_id) if runs else None

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
        """Sends the rest, the generator of a finished run, and how the run ended."""
        self.keep()
        if ending == "finished" and (self._folder / "generator.json").is_file():
            self._log_model()
        self._client.set_terminated(self._run, status=self._STATUS[ending])
        if self._parent is not None:
            self._client.set_terminated(self._parent, status=self._STATUS[ending])

    def _log_model(self) -> None:
        """Stores the generator as a model, whose loader is `fedsink.server.mlflow_model`."""
        import mlflow.pyfunc
        from mlflow.models import ModelSignature
        from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

        with tempfile.TemporaryDirectory() as place:
            data = Path(place) / "data"
            data.mkdir()
            for name in RELEASED:
                shutil.copyfile(self._folder / name, data / name)
            result = read_json((self._folder / "metrics.json").read_bytes())
            drawing = {"label_prior": result["label_prior"], "observation": self._observation}
            write_atomic(data / "drawing.json", json.dumps(drawing).encode())
            mlflow.pyfunc.save_model(
                str(Path(place) / "model"),
                loader_module="fedsink.server.mlflow_model",
                data_path=str(data),
                pip_requirements=["fedsink"],
                signature=ModelSignature(
                    inputs=Schema([ColSpec("long", "label")]),
                    params=ParamSchema([ParamSpec("seed", "long", 0)]),
                ),
            )
            self._client.log_artifacts(self._run, str(Path(place) / "model"), "model")

    def evaluated(self, path: Path, figures: Mapping[str, Any]) -> None:
        """Logs every number of the figures as NAME.KEY, and the file."""
        self._connect()
        if (run := self._found("fedsink.run", self._name)) is None:
            return
        for key, value in leaves(figures):
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._client.log_metric(run, f"{path.stem}.{key}", float(value))
        self._client.log_artifact(run, str(path))


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
        ConfigError: a package is missing; the message says how to install it.
    """
    for name in names:
        package = LOGGERS.find(name).package
        if package is not None and find_spec(package) is None:
            raise ConfigError(
                f"log={name} needs the package {package}, which is not installed: "
                f"`pip install {package}`, or leave log={name} out."
            )


def loggers(
    names: Collection[str], folder: Path, config: Mapping[str, Any], privacy: Mapping[str, Any]
) -> Observers:
    """Makes the named loggers of a run; a logger that fails does not stop the run."""
    made = {f"log={name}": LOGGERS.find(name)(folder, config, privacy) for name in names}
    return Observers(made)


def log_evaluation(
    folder: Path, config: Mapping[str, Any], path: Path, figures: Mapping[str, Any]
) -> None:
    """Tells the loggers of a finished run about an evaluation; one that fails is reported."""
    for name in logger_names(config.get("log")):
        try:
            LOGGERS.find(name)(folder, config, {}).evaluated(path, figures)
        except Exception as error:
            reason = " ".join(str(error).split()) or "no message"
            ForgivingStream(sys.stderr).write(
                f"log={name} failed ({type(error).__name__}: {reason}): {path.name} is written.\n"
            )


def _figures(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in line.items():
        if name != "round" and isinstance(value, int | float):
            yield name, float(value)
