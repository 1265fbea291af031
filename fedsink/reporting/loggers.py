"""Observers of a run, and those that `log=` names: TensorBoard, MLflow, an installed package's."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

from fedsink.errors import ConfigError
from fedsink.registry import Registry
from fedsink.reporting.displays import ForgivingStream
from fedsink.reporting.output_files import RELEASED
from fedsink.values import PLACES, leaves

Ending = Literal["finished", "stopped", "failed"]
"""End of training; a run that was stopped or has failed can be resumed."""


class Observer:
    """Listens to a run. Every event does nothing here; a subclass overrides those that it needs.

    A resumed run begins again after a checkpoint: it repeats the events after the checkpoint, and
    none before `keep`. `log=` names it; an installed package adds one by `fedsink.loggers`.

    Attributes:
        package: imported by the observer, from the extra of its name; None: none.
        folder, name: those of the run.
        config: by dotted keys, without those that name files of this machine.
        privacy: content of privacy.json.
    """

    package: ClassVar[str | None] = None

    def __init__(self, folder: Path, config: Mapping[str, Any], privacy: Mapping[str, Any]) -> None:
        self.folder, self.privacy = folder, dict(privacy)
        self.name = str(config.get("run", {}).get("name", folder.name))
        # No tracking server needs the names of this machine's files.
        settings = leaves({group: values for group, values in config.items() if group != "run"})
        self.config = {key: value for key, value in settings if key not in (*PLACES, "start")}

    def begin(self, round: int) -> None:
        """Called when training begins after `round`: 0, or the checkpoint's."""

    def metrics(self, line: Mapping[str, Any]) -> None:
        """Called when a line was written to metrics.jsonl."""

    def picture(self, round: int, path: Path) -> None:
        """Called when a PNG that shows `round` was written to samples/."""

    def keep(self) -> None:
        """Called when a checkpoint is about to be written: store all events so far."""

    def end(self, ending: Ending) -> None:
        """Called when training has ended."""

    def evaluated(self, path: Path, figures: Mapping[str, Any]) -> None:
        """Called when the finished run was evaluated: `path`, a JSON file, has the `figures`."""


class Observers(Observer):
    """Passes events on to observers by name. One that fails is reported and gets no more events."""

    def __init__(self, observers: Mapping[str, Observer]) -> None:
        self._observers, self._begun = dict(observers), False

    def begin(self, round: int) -> None:
        self._begun = True
        self._pass_on("begin", round)

    def metrics(self, line: Mapping[str, Any]) -> None:
        self._pass_on("metrics", line)

    def picture(self, round: int, path: Path) -> None:
        self._pass_on("picture", round, path)

    def keep(self) -> None:
        self._pass_on("keep")

    def end(self, ending: Ending) -> None:
        if self._begun:
            self._pass_on("end", ending)

    def evaluated(self, path: Path, figures: Mapping[str, Any]) -> None:
        self._pass_on("evaluated", path, figures)

    def _pass_on(self, event: str, *values: object) -> None:
        for name, observer in list(self._observers.items()):
            try:
                getattr(observer, event)(*values)
            except Exception as error:
                del self._observers[name]
                reason = " ".join(str(error).split()) or "no message"
                failure = f"{name} failed ({type(error).__name__}: {reason})"
                ForgivingStream(sys.stderr).write(f"{failure} and is left out from now on.\n")


class TensorBoardLogger(Observer):
    """Event files in tensorboard/ of the run folder: figures, pictures, the guarantee."""

    package = "tensorboard"

    def begin(self, round: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        place = str(self.folder / "tensorboard")
        self._writer = SummaryWriter(place, purge_step=round + 1 if round else 0)
        texts = {"configuration": self.config, "privacy": self.privacy} if round == 0 else {}
        for name, values in texts.items():
            text = json.dumps(values, indent=2, ensure_ascii=False)
            self._writer.add_text(name, f"```\n{text}\n```", 0)

    def metrics(self, line: Mapping[str, Any]) -> None:
        for name, value in _figures(line):
            self._writer.add_scalar(name, value, line["round"])

    def picture(self, round: int, path: Path) -> None:
        from torchvision.io import read_image

        self._writer.add_image("samples", read_image(str(path)), round)

    def keep(self) -> None:
        self._writer.flush()

    def end(self, ending: Ending) -> None:
        self._writer.close()


class MLflowLogger(Observer):
    """A run at MLFLOW_TRACKING_URI, or in mlruns/ beside the run: figures, pictures, the generator.

    Figures are sent together at every checkpoint, because a tracking server may be slow. The run
    has the tag `fedsink.run`, in the experiment MLFLOW_EXPERIMENT_NAME or "fedsink"; runs of a
    sweep share one mlruns/.
    """

    package = "mlflow"
    _client: Any
    _run: Any

    def begin(self, round: int) -> None:
        from mlflow.entities import Param

        self._waiting: list[Any] = []
        self._last = 0
        if self._find_run():
            self._client.update_run(self._run, status="RUNNING")
            logged = self._client.get_metric_history(self._run, "seconds")
            self._last = max((metric.step for metric in logged), default=0)
            return
        tags = {"fedsink.run": self.name}
        run = self._client.create_run(self._experiment, tags=tags, run_name=self.folder.name)
        self._run = run.info.run_id
        promise = {f"privacy.{key}": self.privacy[key] for key in ("epsilon", "delta")}
        params = [Param(key, str(value)[:500]) for key, value in (self.config | promise).items()]
        self._client.log_batch(self._run, params=params)
        self._client.log_dict(self._run, self.privacy, "privacy.json")

    def _find_run(self) -> bool:
        """Connects to the tracking server; returns True if the run is there already."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            above = self.folder.parent  # Hydra writes multirun.yaml into the folder of a sweep
            beside = above if (above / "multirun.yaml").is_file() else self.folder
            uri = (beside / "mlruns").as_uri()
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=uri)
        named = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedsink")
        experiment = self._client.get_experiment_by_name(named)
        self._experiment = (
            experiment.experiment_id if experiment else self._client.create_experiment(named)
        )
        runs = self._client.search_runs([self._experiment], f"tags.`fedsink.run` = '{self.name}'")
        self._run = runs[0].info.run_id if runs else None
        return bool(runs)

    def metrics(self, line: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        if (step := line["round"]) > self._last:
            now = int(time.time() * 1000)
            self._waiting += [Metric(name, value, now, step) for name, value in _figures(line)]

    def picture(self, round: int, path: Path) -> None:
        self._client.log_artifact(self._run, str(path), "samples")

    def keep(self) -> None:
        self._client.log_batch(self._run, metrics=self._waiting)
        self._waiting = []

    def end(self, ending: Ending) -> None:
        self.keep()
        for name in RELEASED if ending == "finished" else ():
            self._client.log_artifact(self._run, str(self.folder / name), "generator")
        status = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}[ending]
        self._client.set_terminated(self._run, status=status)

    def evaluated(self, path: Path, figures: Mapping[str, Any]) -> None:
        if not self._find_run():
            return
        for key, value in leaves(figures):
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._client.log_metric(self._run, f"{path.stem}.{key}", float(value))
        self._client.log_artifact(self._run, str(path))


LOGGERS: Registry[type[Observer]] = Registry(
    "log", {"tensorboard": TensorBoardLogger, "mlflow": MLflowLogger}, group="fedsink.loggers"
)


def logger_names(value: object) -> tuple[str, ...]:
    """Returns the names in `log`; a ConfigError refuses one of no logger, or one twice."""
    names = tuple(value) if isinstance(value, list | tuple) else () if value is None else (value,)
    for name in names:
        LOGGERS.find(name)
    if len(set(names)) < len(names):
        raise ConfigError(f"log={list(names)} names a logger twice.")
    return names


def require_packages(names: Collection[str]) -> None:
    """Refuses loggers whose package is not installed; a ConfigError says how to install it."""
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
    return Observers({f"log={n}": LOGGERS.find(n)(folder, config, privacy) for n in names})


def _figures(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in line.items():
        if name != "round" and isinstance(value, int | float):
            yield name, float(value)
