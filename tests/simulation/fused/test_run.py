from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from safetensors.torch import load_file

from fedsink.errors import ConfigError
from fedsink.simulation.fused.step import FusedStep
from fedsink.simulation.settings import EngineSettings
from fedsink.simulation.simulate import resume, start

_COMMON = ("seed=5", "clients=3", "rounds=20", "capacity=auto", "report.pictures=1")


def config(*overrides: str) -> dict[str, Any]:
    with initialize_config_module("fedsink.conf", version_base="1.3"):
        found = compose("config", overrides=[*_COMMON, *overrides])
    resolved: Any = OmegaConf.to_container(found, resolve=True, throw_on_missing=True)
    return resolved


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "generator", [(), ("generator=conv", "generator.hidden=32", "generator.maps=[8,4]")]
)
def test_the_run_folder_is_that_of_the_local_engine(
    tmp_path: Path, generator: tuple[str, ...]
) -> None:
    local = start(config("engine=local", *generator), tmp_path / "local")
    fused = start(config("engine=fused", "engine.together=8", *generator), tmp_path / "fused")
    for name in ("privacy.json", "partition.json", "generator.json"):
        assert (fused / name).read_text() == (local / name).read_text()
    ours, theirs = (load_file(f / "generator.safetensors") for f in (fused, local))
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-4)
    assert [line["round"] for line in lines(fused)] == [8, 16, 20]
    by_round = {line["round"]: line for line in lines(local)}
    for line in lines(fused):
        for name in ("loss", "signal_to_noise", "epsilon"):
            assert line[name] == pytest.approx(by_round[line["round"]][name], rel=1e-4, abs=1e-4)
    assert sorted(p.name for p in (fused / "samples").iterdir())[0] == "round-000000.png"
    assert json.loads((fused / "metrics.json").read_text())["rounds"] == 20


@pytest.mark.slow
def test_a_run_builds_its_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records and generator of a large run take seconds: what was checked is what plays."""
    from fedsink.simulation.fused import run as module

    built: list[FusedStep] = []
    build = module.build_step

    def counted(*args: Any, **options: Any) -> FusedStep:
        built.append(build(*args, **options))
        return built[-1]

    monkeypatch.setattr(module, "build_step", counted)
    start(config("engine=fused"), tmp_path / "run")
    assert [step.round for step in built] == [20]


@pytest.mark.slow
def test_a_stopped_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = ("engine=fused", "engine.together=4", "report.checkpoint_seconds=0")
    whole = start(config(*overrides), tmp_path / "whole")

    from fedsink.simulation.fused import run as module

    played = module.FusedRounds.aggregate_train

    def stops(self: Any, server_round: int, replies: Any) -> Any:
        if server_round == 4:
            raise KeyboardInterrupt
        return played(self, server_round, replies)

    monkeypatch.setattr(module.FusedRounds, "aggregate_train", stops)
    with pytest.raises(KeyboardInterrupt):
        start(config(*overrides), tmp_path / "stopped")
    monkeypatch.undo()
    resumed = resume(tmp_path / "stopped")
    assert [line["round"] for line in lines(resumed)] == [4, 8, 12, 16, 20]
    ours, theirs = (load_file(f / "generator.safetensors") for f in (resumed, whole))
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_overflows_are_reported_to_whoever_simulates(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    overrides = ("engine=fused", "clip=batch", "capacity=1", "strategy.solver=annealed")
    with caplog.at_level(logging.WARNING, logger="fedsink.simulation"):
        folder = start(config(*overrides, "strategy.self_term=semi_debiased"), tmp_path / "run")
    assert "larger than the capacity 1" in caplog.text
    for name in ("metrics.json", "metrics.jsonl", "partition.json"):
        assert "overflow" not in (folder / name).read_text()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("seed=null",), "its noise is not secret: give seed="),
        (("capacity=null",), "set capacity=auto"),
        (
            ("mode=ldp", "capacity=null"),
            "privatize_once needs engine=local, ray or flower",
        ),
        (("clip=batch",), "choose one of them, or engine=local"),
    ],
)
def test_what_cannot_be_fused_leaves_nothing_behind(
    tmp_path: Path, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        start(config("engine=fused", *overrides), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": "x"}, "engine.draws is keyed or device, not 'x'"),
        ({"together": 0}, "engine.together must be a whole number of at least 1, not 0"),
    ],
)
def test_wrong_engine_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineSettings("fused", **options)
