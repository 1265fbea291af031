"""`engine=auto`: the chosen engine, its message, and its entries in a run folder."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from fedsink.errors import ClientError, ConfigError
from fedsink.reporting.typed import shown_settings
from fedsink.simulation.engine import EngineSettings, chosen_engine, usable_cores, wait_for_nodes
from fedsink.simulation.simulated_run import resume, start

from .conftest import Compose, Configure

_AUTO = EngineSettings("auto")
_QUICK = ("clients=2", "rounds=6", "report.pictures=0", "report.html=false", "seed=1")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("overrides", "engines"),
    [
        ("clients=10", {1: "local", 2: "local", 16: "local"}),
        ("clients=100", {1: "local", 2: "local", 16: "local"}),
        ("data=shapes clients=10000", {2: "local", 16: "local"}),
        ("data=shapes clip=batch clients=999", {16: "local"}),
        ("data=shapes clip=batch clients=1000", {1: "local", 2: "ray", 16: "ray"}),
        ("strategy=gs_wgan", {1: "local", 2: "local"}),
        ("strategy=gs_wgan clients=100", {1: "local", 2: "ray"}),
        ("strategy=gs_wgan clients=1000 sigma=1 rounds=100000 strategy.published=true "
         "strategy.critics=1", {64: "local"}),  # one client a round is no work to share
        ("mode=ldp clients=1000", {2: "local", 16: "local"}),
    ],
)  # fmt: skip
def test_ray_is_taken_where_many_clients_answer_a_round(
    configured: Configure, overrides: str, engines: dict[int, str]
) -> None:
    strategy = configured("seed=0", *overrides.split(), small=False).server.strategy
    found = {cores: chosen_engine(_AUTO, strategy, cores) for cores in engines}
    assert {cores: engine.name for cores, engine in found.items()} == engines
    for cores, engine in found.items():
        assert (engine.chosen or "").endswith(f" a round on {cores} core{'s' * (cores > 1)}")


@pytest.mark.medium
@pytest.mark.parametrize(
    "option",
    ["address=auto", "address=HEAD:6379", "actors=2", "num_cpus=2", "data=object_store",
     "revive_seconds=5", "timeout=200"],
)  # fmt: skip
def test_an_option_that_ray_alone_has_takes_ray(configured: Configure, option: str) -> None:
    found = configured("seed=0", "engine=auto", f"engine.{option}").engine
    assert (found.name, found.chosen) == ("ray", f"engine.{option} is only for Ray")


@pytest.mark.medium
def test_an_option_of_ray_is_checked_as_ever(configured: Configure) -> None:
    with pytest.raises(ConfigError, match=r"num_cpus must be null or a whole number of at least 1"):
        configured("seed=0", "engine=auto", "engine.num_cpus=0.5")
    with pytest.raises(ConfigError, match=r"keeps on this machine's disk.*leave out engine\.add"):
        configured("seed=0", "engine=auto", "engine.address=auto", "strategy=gs_wgan")


@pytest.mark.medium
def test_an_engine_that_was_named_is_kept(configured: Configure) -> None:
    for name in ("local", "ray", "flower"):
        engine = configured("seed=0", f"engine={name}").engine
        assert (engine.name, engine.chosen) == (name, None)


@pytest.mark.medium
def test_clients_on_gpus_are_shared_among_gpus(
    configured: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "seed=0", "data=shapes", "clip=batch", "clients=1000"
    strategy = configured(*words, small=False).server.strategy
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for gpus, expected in ((1, ("local", 0.0, None)), (4, ("ray", 1.0, 4))):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        found = chosen_engine(replace(_AUTO, device="cuda"), strategy, 64)
        assert (found.name, found.num_gpus, found.actors) == expected
        assert found.client_device == "cuda"
        assert f"on {gpus} GPU" in (found.chosen or "")


def test_the_cores_of_this_process_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_cores() >= 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 5}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert usable_cores() == 2


@pytest.mark.medium
def test_a_run_says_stores_and_keeps_what_was_taken(
    composed: Compose, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run = start(composed("engine=auto", "engine.threads=2", *_QUICK, small=False), tmp_path / "a")
    cores = usable_cores()
    chosen = f"2 clients a round on {cores} core{'s' if cores > 1 else ''}"
    assert f"engine=local: {chosen}\n" in capsys.readouterr().err
    stored: Any = yaml.safe_load((run / "config.yaml").read_text())
    assert stored["engine"] == {
        "name": "local", "timeout": None, "threads": 2, "device": "cpu", "chosen": chosen,
    }  # fmt: skip
    assert shown_settings(stored)["engine.chosen"] == f'"{chosen}"'
    # On a machine where auto would take another engine, the run continues with its first one.
    (run / "metrics.json").unlink()
    monkeypatch.setattr("fedsink.simulation.engine.usable_cores", lambda: 64)
    monkeypatch.setattr(
        "fedsink.strategies.dp_sinkhorn.strategy.DPSinkhornSettings.many_clients", 1
    )
    assert resume(run) == run
    assert yaml.safe_load((run / "config.yaml").read_text()) == stored


def test_late_nodes_are_waited_for_and_missing_ones_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedsink.simulation.engine._POLL_SECONDS", 0.01)
    found = iter([[], [1001], [1000, 1001]])
    grid = SimpleNamespace(get_node_ids=lambda: next(found))
    wait_for_nodes(grid, 2, 60.0)
    assert list(found) == []
    grid = SimpleNamespace(get_node_ids=lambda: [1000])
    with pytest.raises(ClientError, match=r"1 of 2 nodes are connected after 0.05 s: fewer clie"):
        wait_for_nodes(grid, 2, 0.05)
