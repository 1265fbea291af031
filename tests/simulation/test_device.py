"""Runs whose server and clients are on a GPU. See `support/stand_in.py`."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsink.clients.node import close_nodes
from fedsink.errors import ConfigError
from fedsink.simulation.simulated_run import start

from .conftest import Compose, Configure

Gpu = Callable[[], AbstractContextManager[Any]]

RUNS = {
    "record": ("mode=central", "generator=mlp"),
    "record, capacity": ("mode=central", "capacity=auto"),
    "batch": ("mode=central", "clip=batch"),
    "weights": ("mode=central", "strategy=parameter_gradient"),
    "ldp": ("mode=ldp",),
    "ldp, learnt": ("mode=ldp", "strategy.loss=debiased"),
}


@pytest.mark.medium
@pytest.mark.quick("ldp, learnt")
@pytest.mark.parametrize("run", RUNS)
def test_a_run_on_a_gpu_ends_as_one_on_the_cpu(
    composed: Compose, tmp_path: Path, gpu: Gpu, run: str
) -> None:
    overrides = ("seed=3", "rounds=2", *RUNS[run])
    expected = start(composed(*overrides), tmp_path / "cpu")
    close_nodes()
    with gpu() as mode:
        folder = start(composed(*overrides, "engine.device=cuda"), tmp_path / "gpu")
    assert mode.operations > 100
    losses = [_losses(path) for path in (folder, expected)]
    assert len(losses[0]) == 2
    # The stand-in has no backward pass, so a step changes nothing, and no gradient of weights is
    # that of the CPU.
    if run != "weights":
        assert losses[0][0] == losses[1][0]
    assert (folder / "generator.safetensors").exists()


def _losses(folder: Path) -> list[float]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ("engine.device=cuda", r"engine\.device asks for 'cuda'"),
        ("engine=ray engine.num_gpus=0.25", r"engine\.num_gpus=0\.25 asks for 'cuda'"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_written(
    composed: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: str, told: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=f"{told}, but torch finds cpu and no CUDA device"):
        start(composed("seed=0", *overrides.split()), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.medium
def test_clients_compute_on_the_gpu_that_their_engine_gives_them(
    configured: Configure, gpu: Gpu
) -> None:
    with gpu():
        devices = {
            overrides: configured("seed=0", *overrides.split()).node.device
            for overrides in (
                "engine=local", "engine=local engine.device=cuda", "engine=ray engine.device=cuda",
                "engine=ray engine.num_gpus=0.25", "engine=flower engine.num_gpus=1",
            )
        }  # fmt: skip
    assert list(devices.values()) == ["cpu", "cuda", "cpu", "cuda", "cuda"]
