from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsink.clients.node import close_nodes
from fedsink.conf.acting import compose_config
from fedsink.data.spec import DataSpec
from fedsink.reporting.drawing import save_grid, save_points
from fedsink.reporting.typed import typed_words
from fedsink.server.folder import RunFolder, store_config
from fedsink.simulation.experiment import Experiment
from fedsink.simulation.run_identity import RunIdentity, kind_of_noise

from .small_runs import evaluated, make

Begin = Callable[..., RunFolder]
SMALL = ("engine=local", "clients=5", "rounds=20", "report.html=false", "report.pictures=1")


def hostile_places(config: dict[str, Any]) -> dict[str, Any]:
    """Configuration of a user whose folders have telling names."""
    config["data"]["root"] = "/srv/ward-7/pictures of patients"
    config["data"]["clients_file"] = "/home/ann/users.csv"
    config["policy"] = "/home/ann/policy.toml"
    return config


PLACES = ("/srv", "ward-7", "of patients", "/home", "ann/", "users.csv", "policy.toml")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of small runs, some of them evaluated; tests must not change it."""
    folder = tmp_path_factory.mktemp("small-runs")
    make(folder)
    for name, cnn in (("a0", 0.90), ("a1", 0.80), ("a2", 0.85), ("local", 0.7)):
        evaluated(folder / name, cnn)
    return folder


@pytest.fixture
def begin(tmp_path: Path) -> Begin:
    """Makes the folder of an unfinished run, with its true configuration and promise."""

    def make(*overrides: str, done: int = 20, change: Any = None) -> RunFolder:
        config = compose_config([*SMALL, *overrides])
        folder = RunFolder(tmp_path / "run")
        identity = RunIdentity.fresh(config["seed"])
        settings = Experiment.of(config, identity)
        folder.create()
        stated = settings.server.strategy.statement(kind_of_noise(settings.node))
        folder.write(folder.privacy, stated)
        folder.write(
            folder.partition, {"clients": [{"records": 987654321, "classes": [123456789]}]}
        )
        typed = {"typed": typed_words([*SMALL, *overrides], config)}
        stored = {**config, "run": typed | identity.to_config()}
        store_config(folder, change(stored) if change else stored)
        for round in range(1, done + 1):
            more = {"signal_to_noise": 0.5} if config["mode"] == "central" else {"iterations": 9}
            spent = None if stated["epsilon"] is None else stated["epsilon"] * round / 20
            folder.log(
                {"round": round, "loss": 3 / round, "epsilon": spent, "seconds": 0.1, **more}
            )
        data = DataSpec.from_config(config["data"])
        for round in (0, 10, 20):
            if round <= done:
                _picture(data, folder.samples / f"round-{round:06d}.png")
        if done == 20:
            folder.write(folder.metrics, {"rounds": 20, "seconds": 75.2, "epsilon": 1.0})
        return folder

    return make


def _picture(data: DataSpec, path: Path) -> None:
    random = torch.Generator().manual_seed(1)
    if len(data.shape) == 1:
        save_points(torch.rand(50, 2, generator=random), path)
        return
    labels = torch.arange(len(data.classes)).repeat_interleave(10)
    images = torch.rand(len(labels), *data.shape, generator=random)
    save_grid(images, labels, data.classes, path)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keys of runs lie in an empty folder, and virtual clients end with their test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    close_nodes()
