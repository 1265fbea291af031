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
from fedsink.protocol.dp_sinkhorn import GradientRequest, Objective
from fedsink.protocol.exchange import Broadcast, Content, Exchange
from fedsink.simulation.simulated_run import start
from fedsink.simulation.virtual_clients import LocalGrid

from .conftest import Compose

BIGGAN = (
    *("generator=biggan", "generator.width=4", "generator.blocks=2", "generator.latent_dim=3"),
    *("generator.label_embedding=2", "clients=3", "rounds=6", "capacity=auto"),
)
CRITICS = (
    *("strategy=gs_wgan", "clients=4", "rounds=3", "strategy.critics=3", "strategy.critic.warm=2"),
    "strategy.critic.steps=1",
)
PICKED = (*CRITICS, "strategy.published=true", "strategy.critics=1", "strategy.row_sigma=1")
MASKED = (
    *("clients=5", "rounds=3", "strategy.schedule=joint", "noise.share=secure_aggregation"),
    *("noise.tolerate_dropouts=1", "noise.masked=true"),
)
RUNS: dict[str, tuple[float, tuple[str, ...]]] = {
    "flower, central": (1e-6, ("rounds=6",)),
    "flower, ldp": (1e-6, ("rounds=6", "mode=ldp")),
    "ray, unprotected": (1e-6, ("rounds=4", "eps=inf", "capacity=auto")),
    "ray, biggan": (1e-4, BIGGAN),
    "ray, biggan by batch": (
        1e-4,
        (*BIGGAN, "clip=batch", "strategy.self_term=semi_debiased", "strategy.solver=annealed",
         "strategy.m=1"),
    ),
    **{f"{engine}, critics in turn": (1e-3, (*CRITICS, "strategy.turns=2"))
       for engine in ("ray", "flower")},
    **{f"{engine}, a picked critic": (1e-3, PICKED) for engine in ("ray", "flower")},
    **{f"{engine}, masked": (0.0, MASKED) for engine in ("ray", "flower")},
}  # fmt: skip
"""How far weights may be apart by rounding, and a run, by the name of an engine."""


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_every_engine_trains_the_generator_of_the_local_one(
    composed: Compose, tmp_path: Path, name: str
) -> None:
    apart, keys = RUNS[name]
    folders = [
        start(composed("seed=5", *keys, f"engine={engine}"), tmp_path / engine)
        for engine in ("local", name.partition(",")[0])
    ]
    local, other = (load_file(folder / "generator.safetensors") for folder in folders)
    for part, values in local.items():
        torch.testing.assert_close(other[part], values, rtol=0, atol=apart)
    ends = [json.loads((folder / "privacy.json").read_text()) for folder in folders]
    assert ends[0] == ends[1]


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
    overrides = ("clients=1000", "rounds=3", "seed=0", "engine=ray")
    folder = start(composed(*overrides), tmp_path / "run")
    assert json.loads((folder / "metrics.json").read_text())["rounds"] == 3
    (entry,) = json.loads((folder / "privacy.json").read_text())["clients"]
    assert entry["client"] == "0-999"


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
        round=1, plan=plan, objective=Objective(1.0, 1), view=view, rows=torch.zeros(100, 4),
        row_labels=torch.zeros(100, dtype=torch.int64), potentials=torch.zeros(100),
        self_gradient=torch.zeros(100, 4),
    )  # fmt: skip
    broadcast = Broadcast(Content(lambda: [request], request.to_record), grid.roster(), (1, 100, 4))
    reduced: Any = grid.send_and_receive(Exchange("train.dp_sinkhorn", "1", [broadcast]))
    assert reduced.failures == {}
    assert reduced.sums[0].clients == 10_000
    std = float(reduced.sums[0].total.std()) / 10_000
    assert std == pytest.approx(plan.noise_std / 100, rel=0.15)
