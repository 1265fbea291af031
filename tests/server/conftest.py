from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from torch import Tensor

from fedsink.clients.app import client_app
from fedsink.clients.node import close_nodes
from fedsink.clients.node_settings import NodeSettings
from fedsink.data.maps import PixelRange
from fedsink.data.partition import Iid
from fedsink.data.spec import DataSpec
from fedsink.privacy import ClassSchedule, PrivacyPlan, RecordClip
from fedsink.protocol.dp_sinkhorn import Objective
from fedsink.protocol.privatize_once import LocalPlan
from fedsink.server.running import ServerSettings
from fedsink.simulation.virtual_clients import LocalGrid
from fedsink.strategies.base.trainer import OptimizerSettings
from fedsink.strategies.dp_sinkhorn.self_term import SelfTermSettings
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhornSettings
from fedsink.strategies.privatize_once import PrivatizeOnceSettings

from ..support.tiny import with_secret_key

SHAPE = (1, 4, 4)
ROUNDS = 8


def _tiny(spec: DataSpec, split: str) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(5)
    labels = torch.arange(40) % 2
    return torch.rand(40, *SHAPE, generator=random) * (labels + 1).view(-1, 1, 1, 1) / 2, labels


@pytest.fixture(autouse=True)
def _tiny_data(install_source: Callable[..., None]) -> None:
    install_source(_tiny)


class WatchedGrid(LocalGrid):
    """Remembers which messages were sent."""

    def __init__(self, node: NodeSettings) -> None:
        super().__init__(client_app(node), node.clients)
        self.asked: list[str] = []

    def execute(self, messages: Any) -> list[Message]:
        for message in messages:
            self.asked.append(message.metadata.message_type)
        return super().execute(messages)


@pytest.fixture
def make_grid(tmp_path: Path) -> Callable[[str], WatchedGrid]:
    """A grid of two clients with "reproducible" or "secret" noise; each call is a new process."""

    def make(noise: str) -> WatchedGrid:
        close_nodes()
        spec = DataSpec("tiny", SHAPE, tuple("ab"), 40)
        settings = NodeSettings(spec, Iid(), 2, seed=7)
        if noise == "reproducible":
            return WatchedGrid(settings)
        return WatchedGrid(with_secret_key(settings, tmp_path))

    return make


@pytest.fixture
def make_settings() -> Callable[..., ServerSettings]:
    """Settings of a run of eight rounds in either mode."""

    def make(mode: str, uses: int = 1, **more: Any) -> ServerSettings:
        optimizer = OptimizerSettings(0.02, warmup=2, ema=0.9)
        strategy: DPSinkhornSettings | PrivatizeOnceSettings
        if mode == "central":
            plan = PrivacyPlan(0.5, 1.0, ROUNDS, RecordClip(1.0), ClassSchedule(2), 1e-5)
            strategy = DPSinkhornSettings(
                plan=plan, objective=Objective(lam=1.0, classes=2),
                self_term=SelfTermSettings("history", 2), rows=4, optimizer=optimizer, clients=2,
                view={"name": "dct", "shape": list(SHAPE), "radius": 3},
                nominal_records=20.0, uses_per_message=uses,
            )  # fmt: skip
        else:
            local = LocalPlan("laplace", PixelRange(SHAPE, "l1"), 300.0, 0.0, 3.0, 2)
            strategy = PrivatizeOnceSettings(local, ROUNDS, 16, optimizer, 2, chunk_size=8)
        return ServerSettings(
            strategy, "mlp", SHAPE, ("a", "b"), 11,
            generator_options={"latent_dim": 2, "hidden": [8]}, **more,
        )  # fmt: skip

    return make
