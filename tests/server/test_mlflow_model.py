"""`log=mlflow` on real runs: the generator as a model, figures of evaluations, nested sweeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedsink.errors import ModelError
from fedsink.server.finished import open_run
from fedsink.server.mlflow_model import DrawnPictures

mlflow = pytest.importorskip("mlflow")
pytest.importorskip("mlflow.pyfunc", reason="it needs pandas")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SMALL = ["engine=local", "clients=2", "rounds=6", "report.pictures=0", "report.html=false"]


def fedsink(folder: Path, command: str, *keys: str) -> None:
    environment = {
        **os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true",
    }  # fmt: skip
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-m", "fedsink", command, *keys],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stderr, done.stderr


@pytest.fixture(autouse=True)
def _file_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    yield
    mlflow.set_tracking_uri(None)


def runs_in(folder: Path) -> dict[str, object]:
    client = mlflow.MlflowClient(tracking_uri=(folder / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("fedsink")
    return {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}


@pytest.mark.parametrize("mode", ["central", "ldp"])
def test_the_model_draws_what_fedsink_draws(tmp_path: Path, mode: str) -> None:
    keys = [*SMALL, f"mode={mode}", "seed=0", "log=mlflow", "hydra.run.dir=run"]
    fedsink(tmp_path, "simulate", *keys)
    fedsink(tmp_path, "evaluate", "run=run", "n=60")
    run = runs_in(tmp_path / "run")["run"]
    assert run.info.status == "FINISHED"  # type: ignore[attr-defined]
    accuracy = json.loads((tmp_path / "run" / "evaluation.json").read_text())["accuracy"]
    logged = run.data.metrics  # type: ignore[attr-defined]
    for name, value in accuracy.items():
        assert logged[f"evaluation.accuracy.{name}"] == pytest.approx(value)

    pictures, labels = open_run(str(tmp_path / "run")).draw(30, 7)
    mlflow.set_tracking_uri((tmp_path / "run" / "mlruns").as_uri())
    model = mlflow.pyfunc.load_model(f"runs:/{run.info.run_id}/model")  # type: ignore[attr-defined]
    pandas = pytest.importorskip("pandas")
    drawn = model.predict(pandas.DataFrame({"label": labels.numpy()}), params={"seed": 7})
    # draw takes its labels from the same stream; the model is given them.
    assert drawn.shape == tuple(pictures.shape)
    assert drawn.min() >= 0
    again = model.predict(pandas.DataFrame({"label": labels.numpy()}), params={"seed": 7})
    other = model.predict(pandas.DataFrame({"label": labels.numpy()}), params={"seed": 8})
    assert (drawn == again).all()
    assert (drawn != other).any()
    balanced, order = open_run(str(tmp_path / "run")).draw(30, 7, balanced=True)
    same = model.predict(pandas.DataFrame({"label": order.numpy()}), params={"seed": 7})
    assert torch.equal(torch.from_numpy(same), balanced)


def test_runs_of_a_sweep_are_nested(tmp_path: Path) -> None:
    keys = [*SMALL, "log=mlflow", "seed=0,1", "hydra.sweep.dir=tuned"]
    fedsink(tmp_path, "simulate", "--multirun", *keys)
    runs = runs_in(tmp_path / "tuned")
    assert set(runs) == {"tuned", "seed=0", "seed=1"}
    parent = runs["tuned"].info  # type: ignore[attr-defined]
    assert parent.status == "FINISHED"
    for name in ("seed=0", "seed=1"):
        tags = runs[name].data.tags  # type: ignore[attr-defined]
        assert tags["mlflow.parentRunId"] == parent.run_id
    stored = b"".join(p.read_bytes() for p in (tmp_path / "tuned").rglob("tags/*"))
    assert str(tmp_path).encode() not in stored


def test_a_label_that_the_generator_lacks_is_refused(tmp_path: Path) -> None:
    fedsink(tmp_path, "simulate", *SMALL, "seed=0", "hydra.run.dir=run")
    run = tmp_path / "run"
    how = json.loads((run / "metrics.json").read_text()) | {"observation": {}}
    (run / "drawing.json").write_text(json.dumps(how))
    with pytest.raises(ModelError, match="label goes from 0 to 9"):
        DrawnPictures(run).predict({"label": [0, 10]})
