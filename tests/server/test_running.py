"""A run's loggers, through the loop: they get the lines of metrics.jsonl, in every engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedsink
from fedsink.errors import ConfigError
from fedsink.reporting import loggers
from fedsink.reporting.loggers import Observer
from fedsink.server.loop import train

SMALL: dict[str, Any] = {
    "clients": 2, "rounds": 12, "seed": 0, "report.pictures": 1, "report.checkpoint_seconds": 0,
}  # fmt: skip


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


@pytest.mark.medium
@pytest.mark.quick("keys0")
@pytest.mark.parametrize(
    "keys",
    [
        {"engine": "local"},
        {"engine": "local", "mode": "ldp"},
        pytest.param({"engine": "ray", "engine.num_cpus": 1}, marks=pytest.mark.slow),
        pytest.param({"engine": "flower"}, marks=pytest.mark.slow),
    ],
)
def test_every_engine_logs_what_it_records(keys, tmp_path):
    run = fedsink.simulate({**SMALL, **keys}, log=["tensorboard"], folder=tmp_path / "run")
    recorded = [(record["round"], pytest.approx(record["loss"])) for record in run.metrics]
    assert scalars(run.folder, "loss") == recorded


class Broken(Observer):
    """Fails at the third line."""

    package = None

    def __init__(self, *run: object) -> None:
        self.lines = 0

    def metrics(self, line: object) -> None:
        self.lines += 1
        if self.lines == 3:
            raise RuntimeError("the server is gone")


@pytest.mark.slow
def test_a_logger_that_fails_does_not_lose_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(loggers.LOGGERS, "broken", Broken)
    names = ["broken", "tensorboard"]
    run = fedsink.simulate(SMALL, engine="local", log=names, folder=tmp_path / "run")
    assert run.finished
    assert len(scalars(run.folder, "loss")) == 12
    said = [line for line in capsys.readouterr().err.splitlines() if "log=broken" in line]
    assert said == [
        "log=broken failed (RuntimeError: the server is gone) and is left out from now on."
    ]


@pytest.mark.slow
def test_a_resumed_run_continues_its_log(tmp_path, monkeypatch):
    """Stopped after a round that no checkpoint holds: its figures do not come twice."""
    endings: list[str] = []
    from fedsink.reporting.loggers import Observers
    from fedsink.server.folder import RunFolder

    log, end = RunFolder.log, Observers.end

    def stop(folder: RunFolder, record: dict[str, Any]) -> None:
        log(folder, record)
        if record["round"] == 8:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "log", stop)
    monkeypatch.setattr(Observers, "end", lambda self, how: (endings.append(how), end(self, how)))
    with pytest.raises(KeyboardInterrupt):
        fedsink.simulate(SMALL, engine="local", log="tensorboard", folder=tmp_path / "run")
    monkeypatch.setattr(RunFolder, "log", log)
    run = fedsink.resume(tmp_path / "run")
    assert [step for step, _ in scalars(run.folder, "loss")] == list(range(1, 13))
    assert scalars(run.folder, "loss")[7][1] == pytest.approx(run.metrics[7]["loss"])
    assert endings == ["stopped", "finished"]


@pytest.mark.medium
def test_a_failed_run_says_so(tmp_path, monkeypatch):
    endings: list[str] = []
    monkeypatch.setattr(
        "fedsink.reporting.loggers.Observers.end", lambda s, how: endings.append(how)
    )
    monkeypatch.setattr("fedsink.server.running.train", _failing)
    with pytest.raises(RuntimeError, match="no more memory"):
        fedsink.simulate(SMALL, engine="local", log="tensorboard", folder=tmp_path / "run")
    assert endings == ["failed"]


def _failing(*arguments: Any, **keywords: Any) -> None:
    assert train is not _failing
    raise RuntimeError("no more memory")


@pytest.mark.medium
def test_a_missing_package_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install tensorboard"):
        fedsink.simulate(SMALL, engine="local", log="tensorboard", folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_configuration_keeps_its_loggers(tmp_path):
    run = fedsink.simulate(SMALL, engine="local", log="tensorboard", folder=tmp_path / "run")
    assert run.config["log"] == "tensorboard"
    assert json.loads((run.folder / "metrics.json").read_text())["rounds"] == 12
