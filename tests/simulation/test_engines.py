"""Engines against one another, at their full cost."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedsink.clients.app import client_app
from fedsink.clients.node_cohort import NodeCohort
from fedsink.clients.node_settings import NodeSettings
from fedsink.data.partition import Iid
from fedsink.data.spec import DataSpec
from fedsink.errors import ClientError
from fedsink.privacy import JointSchedule, PrivacyPlan, RecordClip
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.exchange import Broadcast, Content, Exchange
from fedsink.protocol.objective import Objective
from fedsink.simulation.simulated_run import start
from fedsink.simulation.virtual_clients import LocalGrid

from .conftest import Compose


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["central", "ldp"])
def test_stock_flower_trains_the_same_generator_as_the_in_process_engine(
    composed: Compose, tmp_path: Path, mode: str
) -> None:
    common = (
        f"mode={mode}",
        "seed=5",
        "rounds=6",
        "clients=2",
        "report.pictures=0",
        "report.html=false",
    )
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
def test_a_stock_flower_whose_ray_does_not_start_ends_in_a_sentence_and_leaves_no_thread(
    composed: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def fail(**given: Any) -> None:
        asked.update(given)
        raise RuntimeError("the node timed out")

    monkeypatch.setattr("ray.init", fail)
    settings = composed("engine=flower", "seed=5", "rounds=2", "clients=2", small=False)
    with pytest.raises(ClientError, match="Flower's engine has failed, and its log above tells"):
        start(settings, tmp_path / "run")
    assert asked["address"] == "local"
    deadline = time.monotonic() + 60
    while any("server_th" in thread.name for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_a_thousand_clients_run_on_ray(composed: Compose, tmp_path: Path) -> None:
    overrides = (
        "clients=1000",
        "rounds=3",
        "seed=0",
        "report.pictures=0",
        "report.html=false",
        "engine=ray",
    )
    folder = start(composed(*overrides, small=False), tmp_path / "run")
    assert json.loads((folder / "metrics.json").read_text())["rounds"] == 3
    assert len(json.loads((folder / "privacy.json").read_text())["clients"]) == 1000


@pytest.mark.slow
def test_ten_thousand_clients_take_part(install_source: Callable[..., None]) -> None:
    """Every client's noise is in the mean: it is a hundredth of one client's."""

    def read(spec: DataSpec, split: str) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(10_000, 4), torch.zeros(10_000, dtype=torch.int64)

    install_source(read)
    node = NodeSettings(DataSpec("tiny", (4,), ("a",), 10_000), Iid(), 10_000, seed=7)
    grid = LocalGrid(client_app(node), 10_000, batched=NodeCohort(node))
    plan = PrivacyPlan(1e-12, 1.0, 50, RecordClip(0.5), JointSchedule(), 1e-5)
    view = {"name": "pixel", "shape": [4]}
    request = GradientRequest(
        1, None, plan, Objective(1.0, 1), view, torch.zeros(100, 4),
        torch.zeros(100, dtype=torch.int64), torch.zeros(100), torch.zeros(100, 4),
    )  # fmt: skip
    broadcast = Broadcast(Content(lambda: [request], request.to_record), grid.roster(), (1, 100, 4))
    reduced: Any = grid.send_and_receive(Exchange("train.dp_sinkhorn", "1", [broadcast]))
    assert reduced.failures == {}
    assert reduced.sums[0].clients == 10_000
    std = float(reduced.sums[0].total.std()) / 10_000
    assert std == pytest.approx(plan.noise_std / 100, rel=0.15)
