from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from flwr.app import Error, Message, RecordDict
from flwr.app.message import make_message

from fedsink.clients.app import client_app
from fedsink.clients.node_settings import NodeSettings
from fedsink.data.maps import PointBall
from fedsink.models import Generator, build
from fedsink.privacy import BatchClip, ClassSchedule, JointSchedule, PrivacyPlan, RecordClip
from fedsink.protocol.dp_sinkhorn import Objective
from fedsink.protocol.privatize_once import LocalPlan
from fedsink.simulation.grid import node_of
from fedsink.simulation.virtual_clients import LocalGrid
from fedsink.strategies.base.trainer import OptimizerSettings
from fedsink.strategies.dp_sinkhorn.self_term import SelfTermSettings
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhornSettings, DPSinkhornStrategy
from fedsink.strategies.privatize_once import PrivatizeOnce, PrivatizeOnceSettings

from ..support.tiny import CLASSES, RECORDS, SIZE, points, tiny_clients


@pytest.fixture(autouse=True)
def _tiny_points(install_source: Callable[..., None]) -> None:
    install_source(points)


@pytest.fixture
def make_generator() -> Callable[[], Generator]:
    """Makes a small point generator, equal every time."""

    def make(classes: int = CLASSES) -> Generator:
        random = torch.Generator().manual_seed(3)
        return build(
            "mlp", (SIZE,), classes, generator=random,
            latent_dim=2, hidden=[8], output="linear", batch_norm=False,
        )  # fmt: skip

    return make


class Wrapped(LocalGrid):
    """A local grid that remembers its messages and may change the replies to training."""

    def __init__(self, node: NodeSettings) -> None:
        super().__init__(client_app(node), node.clients)
        self.node = node
        self.asked: list[Message] = []
        self.change: Callable[[list[Message]], list[Message]] = lambda replies: replies

    def execute(self, messages: Any) -> list[Message]:
        self.asked += messages
        replies = super().execute(messages)
        training = messages and messages[0].metadata.message_type != "query.identity"
        return self.change(replies) if training else replies

    def lose(self, *clients: int) -> None:
        """From now on replies of these clients do not arrive."""
        gone = {node_of(client) for client in clients}
        self.change = lambda replies: [r for r in replies if r.metadata.src_node_id not in gone]

    def fail(self, client: int, code: int) -> None:
        """From now on a client answers with an error."""

        def change(replies: list[Message]) -> list[Message]:
            for reply in replies:
                if reply.metadata.src_node_id == node_of(client):
                    wrong = make_message(metadata=reply.metadata, error=Error(code, "secret text"))
                    replies[replies.index(reply)] = wrong
            return replies

        self.change = change

    def say(self, client: int, content: RecordDict) -> None:
        """From now on a client answers with something else."""

        def change(replies: list[Message]) -> list[Message]:
            for reply in replies:
                if reply.metadata.src_node_id == node_of(client):
                    reply.content = content
            return replies

        self.change = change


@pytest.fixture
def make_grid() -> Callable[..., Wrapped]:
    """A grid of K clients with the tiny data and reproducible noise."""

    def make(clients: int = 3, **more: Any) -> Wrapped:
        return Wrapped(replace(tiny_clients(clients), **more))

    return make


@pytest.fixture
def make_central(make_generator: Callable[..., Generator]) -> Callable[..., DPSinkhornStrategy]:
    """A DP-Sinkhorn strategy; keywords are of the plan, the self term or the settings."""

    def make(
        *, clip: str = "record", schedule: str = "class", clients: int = 3, rounds: int = 6,
        rate: float = 0.5, classes: int = CLASSES, self_term: str = "history", p: float = 0.5,
        tether: float | None = None, rows: int = 5, lr: float = 0.05, key: bytes = b"server",
        **more: Any,
    ) -> DPSinkhornStrategy:  # fmt: skip
        settings = DPSinkhornSettings(
            plan=PrivacyPlan(
                rate,
                1.0,
                rounds,
                BatchClip(0.5) if clip == "batch" else RecordClip(0.5),
                JointSchedule() if schedule == "joint" else ClassSchedule(classes),
                1e-5,
            ),
            objective=Objective(lam=1.0, classes=classes, label_weight=2.0 if classes > 1 else 0.0),
            self_term=SelfTermSettings(self_term, 2, p, tether),
            view={"name": "pixel", "shape": [SIZE]},
            rows=rows,
            optimizer=OptimizerSettings(lr, warmup=2, ema=0.9),
            clients=clients,
            nominal_records=RECORDS / clients,
        )
        return DPSinkhornStrategy(replace(settings, **more), make_generator(classes), key)

    return make


@pytest.fixture
def local_plan() -> LocalPlan:
    """Laplace noise on the point, randomized response on the label."""
    return LocalPlan("laplace", PointBall("l1", 3.0, SIZE), 40.0, 0.0, 4.0, CLASSES)


@pytest.fixture
def make_local(
    make_generator: Callable[..., Generator], local_plan: LocalPlan
) -> Callable[..., PrivatizeOnce]:
    """A privatize-once strategy for three clients; keywords are of its settings."""

    def make(**more: Any) -> PrivatizeOnce:
        settings = PrivatizeOnceSettings(
            more.pop("plan", local_plan),
            rounds=6,
            batch=16,
            optimizer=OptimizerSettings(0.05, warmup=2, ema=0.9),
            clients=3,
            chunk_size=8,
        )
        settings = replace(settings, **more)
        return PrivatizeOnce(settings, make_generator(settings.plan.classes), b"server")

    return make
