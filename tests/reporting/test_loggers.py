"""Each logger told by hand: a run, a kill after the checkpoint, and the run once more."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fedsink.errors import ConfigError
from fedsink.reporting import loggers as module
from fedsink.reporting.loggers import (
    Ending,
    Observer,
    Observers,
    logger_names,
    loggers,
    require_packages,
)
from fedsink.reporting.output_files import RELEASED

CONFIG = {
    "mode": "central",
    "eps": 3,
    "data": {"name": "digits", "root": "/home/somebody/data"},
    "run": {"name": "abc", "key_file": "/home/somebody/key"},
}
PRIVACY = {"epsilon": 2.99, "delta": 1e-5, "protected": "the labels"}


def line(round: int, **more: Any) -> dict[str, Any]:
    return {"round": round, "loss": 1 / round, "epsilon": None, "seconds": 0.5 * round, **more}


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "samples" / "round-000002.png"
    path.parent.mkdir()
    Image.new("L", (6, 4), 255).save(path)
    return path


@pytest.fixture
def _own_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    # Set and so restored: the logger sets them where they are not there.
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


def killed_and_resumed(name: str, folder: Path, picture: Path) -> None:
    """Rounds 1 to 4, a checkpoint at 2, a kill, from there to the end at round 5, an evaluation."""
    for released in RELEASED:
        (folder / released).write_text("{}")
    first = loggers([name], folder, CONFIG, PRIVACY)
    first.begin(0)
    for round in (1, 2):
        first.metrics(line(round))
    first.picture(2, picture)
    first.keep()
    for round in (3, 4):
        first.metrics(line(round))
    first.keep()  # a kill may come between this and the checkpoint
    second = loggers([name], folder, CONFIG, PRIVACY)
    second.begin(2)
    for round in (3, 4):
        second.metrics(line(round))
    second.metrics(line(5, absent=[1, 2], mean_noise_std=0.25))
    second.picture(5, picture)
    second.keep()
    second.end("finished")
    (folder / "evaluation.json").write_text("{}")
    third = loggers([name], folder, CONFIG, {})
    third.evaluated(folder / "evaluation.json", {"accuracy": {"cnn": 0.5}, "observation": True})
    assert third._observers, "none has failed"
    assert first._observers, "none has failed"
    assert second._observers, "none has failed"


def test_no_path_of_this_machine_is_logged(tmp_path: Path) -> None:
    config = {"start": "/home/me/s", "policy": "/home/me/p", "data": {"root": "/a", "name": "x"}}
    assert module.Observer(tmp_path, config, {}).config == {"data.name": "x"}


def test_tensorboard(tmp_path: Path, picture: Path) -> None:
    killed_and_resumed("tensorboard", tmp_path, picture)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"images": 0})
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"loss", "seconds", "mean_noise_std"}
    assert [(e.step, e.value) for e in events.Scalars("seconds")] == [
        (n, 0.5 * n) for n in range(1, 6)
    ]
    images = events.Images("samples")
    assert [image.step for image in images] == [2, 5]
    assert (images[0].width, images[0].height) == (6, 4)
    stored = b"".join(p.read_bytes() for p in (tmp_path / "tensorboard").iterdir())
    assert b"the labels" in stored
    assert b"digits" in stored
    assert b"/home/somebody" not in stored


@pytest.mark.medium
@pytest.mark.usefixtures("_own_mlflow")
def test_mlflow(tmp_path: Path, picture: Path) -> None:
    (tmp_path / "multirun.yaml").touch()  # the runs of a sweep share one mlruns/
    (tmp_path / "seed=0").mkdir()
    killed_and_resumed("mlflow", tmp_path / "seed=0", picture)
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("fedsink")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "loss")
    assert sorted((m.step, m.value) for m in history) == [(n, 1 / n) for n in range(1, 6)]
    assert run.data.params["data.name"] == "digits"
    assert run.data.params["privacy.epsilon"] == "2.99"
    assert not any("/home/somebody" in value for value in run.data.params.values())
    files = [f.path for f in client.list_artifacts(run.info.run_id)]
    assert files == ["evaluation.json", "generator", "privacy.json", "samples"]
    released = [f.path for f in client.list_artifacts(run.info.run_id, "generator")]
    assert released == sorted(f"generator/{name}" for name in RELEASED)
    assert run.data.metrics["evaluation.accuracy.cnn"] == 0.5
    assert "evaluation.observation" not in run.data.metrics
    (stored,) = client.list_artifacts(run.info.run_id, "samples")
    assert stored.path == "samples/round-000002.png"


@pytest.mark.medium
@pytest.mark.usefixtures("_own_mlflow")
@pytest.mark.parametrize(("ending", "status"), [("stopped", "KILLED"), ("failed", "FAILED")])
def test_mlflow_says_how_a_run_ended(
    tmp_path: Path, ending: Any, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "elsewhere").as_uri())
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    logger = loggers(["mlflow"], tmp_path, CONFIG, PRIVACY)
    logger.begin(0)
    logger.metrics(line(1))
    logger.end(ending)
    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert run.info.status == status
    assert run.data.metrics["loss"] == 1
    assert not (tmp_path / "mlruns").exists()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(module, "find_spec", lambda n: None if n == "mlflow" else find(n))
    require_packages(["tensorboard"])
    with pytest.raises(ConfigError) as caught:
        require_packages(["tensorboard", "mlflow"])
    assert str(caught.value) == (
        "log=mlflow needs the package mlflow, which is not installed: "
        "`pip install mlflow`, or leave log=mlflow out."
    )


def test_names() -> None:
    assert logger_names(None) == ()
    assert logger_names("mlflow") == ("mlflow",)
    assert logger_names(("tensorboard", "mlflow")) == ("tensorboard", "mlflow")
    for value in ("wandb", 5, ["mlflow", None], {"mlflow": 1}):
        with pytest.raises(ConfigError, match="is unknown; choose one of mlflow, tensorboard"):
            logger_names(value)
    with pytest.raises(ConfigError, match=r"log=csv is gone: metrics\.jsonl .* leave it out"):
        logger_names(["mlflow", "csv"])


def test_an_installed_package_adds_a_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    value = f"{module.__name__}:TensorBoardLogger"
    entry = EntryPoint("board", value, "fedsink.loggers")
    found = {"fedsink.loggers": [entry]}
    monkeypatch.setattr("fedsink.registry.entry_points", lambda group: found.get(group, []))
    monkeypatch.delitem(vars(module.LOGGERS), "_installed", raising=False)
    assert logger_names("board") == ("board",)
    assert module.LOGGERS.find("board") is module.TensorBoardLogger
    del vars(module.LOGGERS)["_installed"]


def test_the_extras_exist() -> None:
    import tomllib

    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    assert {name for name in module.LOGGERS if module.LOGGERS[name].package} <= set(extras)


def test_nobody_listens_without_loggers(tmp_path: Path) -> None:
    silent = loggers([], tmp_path, CONFIG, PRIVACY)
    silent.begin(0)
    silent.end("finished")
    assert list(tmp_path.iterdir()) == []


class Listener(Observer):
    """Writes down its events, and fails at one of them."""

    def __init__(self, fails_at: str = "") -> None:
        self.told: list[str] = []
        self.fails_at = fails_at

    def _note(self, event: str) -> None:
        self.told.append(event)
        if event == self.fails_at:
            raise OSError(28, "No space\nleft")

    def begin(self, round: int) -> None:
        self._note(f"begin {round}")

    def metrics(self, line: Mapping[str, Any]) -> None:
        self._note(f"metrics {line['round']}")

    def picture(self, round: int, path: Path) -> None:
        self._note(f"picture {round} {path}")

    def keep(self) -> None:
        self._note("keep")

    def end(self, ending: Ending) -> None:
        self._note(f"end {ending}")

    def evaluated(self, path: Path, figures: Mapping[str, Any]) -> None:
        self._note(f"evaluated {path}")


def tell(observer: Observer) -> None:
    observer.begin(3)
    observer.metrics({"round": 4})
    observer.picture(4, Path("x"))
    observer.keep()
    observer.end("finished")
    observer.evaluated(Path("y"), {})


ALL = ["begin 3", "metrics 4", "picture 4 x", "keep", "end finished", "evaluated y"]


def test_all_are_told_everything_in_order() -> None:
    listeners = Listener(), Listener()
    tell(Observers(dict(zip("ab", listeners, strict=True))))
    assert [listener.told for listener in listeners] == [ALL, ALL]


@pytest.mark.parametrize("event", ALL)
def test_one_that_fails_is_left_out_and_said_once(
    event: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, other = Listener(event), Listener()
    tell(Observers({"log=broken": broken, "log=other": other}))
    assert broken.told == ALL[: ALL.index(event) + 1]
    assert other.told == ALL
    assert capsys.readouterr().err == (
        "log=broken failed (OSError: [Errno 28] No space left) and is left out from now on.\n"
    )


def test_what_has_not_begun_does_not_end() -> None:
    listener = Listener()
    Observers({"a": listener}).end("failed")
    assert listener.told == []


def test_an_interrupt_is_no_failure_of_the_logger() -> None:
    class Interrupted(Observer):
        def keep(self) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Observers({"a": Interrupted(Path(), {}, {})}).keep()
