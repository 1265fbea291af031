"""Engines against one another, at their full cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedsink.simulation.simulate import start

from .conftest import Compose


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["central", "ldp"])
def test_stock_flower_trains_the_same_generator_as_the_in_process_engine(
    composed: Compose, tmp_path: Path, mode: str
) -> None:
    common = (f"mode={mode}", "seed=5", "rounds=6", "clients=2", "report.pictures=0")
    folders = [
        start(composed(*common, f"engine={engine}", small=False), tmp_path / engine)
        for engine in ("local", "flower")
    ]
    local, flower = (load_file(folder / "generator.safetensors") for folder in folders)
    for name, weights in local.items():
        torch.testing.assert_close(flower[name], weights, rtol=0, atol=1e-6)
    local_end, flower_end = (json.loads((f / "privacy.json").read_text()) for f in folders)
    assert local_end == flower_end


@pytest.mark.slow
def test_a_thousand_clients_run_on_ray(composed: Compose, tmp_path: Path) -> None:
    overrides = ("clients=1000", "rounds=3", "seed=0", "report.pictures=0", "engine=ray")
    folder = start(composed(*overrides, small=False), tmp_path / "run")
    assert json.loads((folder / "metrics.json").read_text())["rounds"] == 3
    assert len(json.loads((folder / "privacy.json").read_text())["clients"]) == 1000
