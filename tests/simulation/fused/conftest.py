"""A small problem of pictures, the fused step for it, and the engine that it must equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord
from torch import Tensor

from fedsink.clients.app import client_app
from fedsink.clients.node import open_node
from fedsink.clients.settings import NodeSettings
from fedsink.clients.shard import Shard
from fedsink.data.partition import Dirichlet
from fedsink.data.spec import DataSpec
from fedsink.models import Generator, build
from fedsink.privacy import (
    BatchClip,
    ClassSchedule,
    JointSchedule,
    NoiseShare,
    PrivacyPlan,
    RecordClip,
)
from fedsink.protocol import Objective
from fedsink.simulation.fused import FusedStep
from fedsink.simulation.local import LocalGrid
from fedsink.strategies import DPSinkhorn, DPSinkhornSettings
from fedsink.strategies.self_term import SelfTermSettings
from fedsink.strategies.trainer import OptimizerSettings

SHAPE, CLASSES, RECORDS, SEED = (1, 4, 4), 3, 90, 7
SERVER_KEY = b"server"

CASES: dict[str, dict[str, Any]] = {
    "record, more clients than classes": {},
    "record, fewer clients than classes": {"clients": 2},
    "record, all classes at once": {"schedule": "joint"},
    "record, unconditional": {"schedule": "joint", "classes": 1},
    "record, pixels, room for all": {"view": "pixel", "capacity": RECORDS},
    "record, small capacity": {"capacity": 2},
    "record, without an average": {"ema": 0.0},
    "record, strays drawn back": {"self_term": SelfTermSettings("history", 2, tether=1.2)},
    "record, shared noise, cohorts of 3 and 2": {
        "clients": 7,
        "share": NoiseShare("secure_aggregation"),
    },
    "batch, shared noise": {
        "clip": "batch",
        "schedule": "joint",
        "share": NoiseShare("secure_aggregation", 1),
    },
    "batch as published": {"clip": "batch", "schedule": "joint", "view": "pixel", "rate": 0.1},
    "batch, class by class": {"clip": "batch", "view": "pixel", "clients": 2},
    "batch, small capacity": {"clip": "batch", "schedule": "joint", "capacity": 2},
}


def _pictures(spec: DataSpec, split: str) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(5)
    labels = torch.randint(0, CLASSES, (RECORDS,), generator=random)
    base = torch.rand(CLASSES, *SHAPE, generator=random)
    noise = 0.2 * torch.rand(RECORDS, *SHAPE, generator=random)
    return 0.8 * base[labels] + noise, labels


@pytest.fixture(autouse=True)
def _source(install_source: Callable[..., None]) -> None:
    install_source(_pictures)


def settings(
    *, clip: str = "record", schedule: str = "class", clients: int = 4, rounds: int = 24,
    capacity: int | None = 12, rate: float = 0.3, view: str = "dct", classes: int = CLASSES,
    ema: float = 0.9, **more: Any,
) -> DPSinkhornSettings:  # fmt: skip
    batch = clip == "batch"
    found = DPSinkhornSettings(
        PrivacyPlan(
            rate, 1.0, rounds, BatchClip(0.5) if batch else RecordClip(0.5),
            JointSchedule() if schedule == "joint" else ClassSchedule(classes), 1e-5,
            capacity=capacity, nominal_records=None if capacity is None else RECORDS,
        ),
        Objective(
            lam=0.5, classes=classes, m=1.0 if batch else 0.0,
            label_weight=2.0 if classes > 1 else 0.0,
            solver="annealed" if batch else "converged",
        ),
        SelfTermSettings("semi_debiased" if batch else "history", 2, 0.4),
        {"name": view, "shape": list(SHAPE)} | ({"radius": 3.0} if view == "dct" else {}),
        5,
        OptimizerSettings(0.01, warmup=3, ema=ema),
        clients,
        RECORDS / clients,
    )  # fmt: skip
    return replace(found, **more)


def generator(classes: int = CLASSES) -> Generator:
    random = torch.Generator().manual_seed(3)
    # A bias before BatchNorm has no gradient but rounding, which Adam would blow up.
    return build(
        "mlp", SHAPE, classes, generator=random, latent_dim=3, hidden=[16], batch_norm=False
    )


def node(clients: int) -> NodeSettings:
    spec = DataSpec("tiny", SHAPE, tuple("abc"), RECORDS)
    return NodeSettings(spec, Dirichlet(0.5), clients, seed=SEED)


def shards(clients: int) -> list[Shard]:
    return [open_node(node(clients), client).shard for client in range(clients)]


def fused(of: DPSinkhornSettings, device: str = "cpu", **more: Any) -> FusedStep:
    model = generator(of.objective.classes).to(device)
    options = {"seed": SEED, "server_key": SERVER_KEY} | more
    return FusedStep(of, model, shards(of.clients), **options)


def reference(of: DPSinkhornSettings) -> tuple[DPSinkhorn, list[dict[str, Any]]]:
    """A run of all rounds client by client, and its metrics."""
    strategy = DPSinkhorn(of, generator(of.objective.classes), SERVER_KEY)
    grid, metrics = LocalGrid(client_app(node(of.clients)), of.clients), []
    for number in range(1, of.plan.rounds + 1):
        messages = strategy.configure_train(number, ArrayRecord(), ConfigRecord(), grid)
        _, record = strategy.aggregate_train(number, grid.send_and_receive(messages))
        metrics.append(dict(record or {}))
    return strategy, metrics


def play(step: FusedStep, rounds: int) -> FusedStep:
    for _ in range(rounds):
        step.step()
    return step
