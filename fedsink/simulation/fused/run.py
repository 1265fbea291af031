"""`engine=fused`: a run in one process, with the run folder of every other engine."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from torch import Tensor

from fedsink.clients.node import open_node
from fedsink.clients.settings import NodeSettings
from fedsink.errors import ConfigError
from fedsink.models import Generator
from fedsink.server.folder import RunFolder
from fedsink.server.loop import train
from fedsink.server.settings import ServerSettings
from fedsink.simulation.fused.step import DrawsName, FusedStep
from fedsink.simulation.grid import SimulationGrid
from fedsink.strategies.central.rounds import CentralRounds
from fedsink.strategies.dp_sinkhorn.settings import DPSinkhornSettings

log = logging.getLogger("fedsink.simulation")


class FusedRounds(CentralRounds):
    """`FusedStep` as a strategy that asks nobody: a turn of the loop plays several rounds.

    Args:
        step: plays them; its settings are the strategy's.
        server_key: keys the pictures' latents.
        together: rounds in one turn.
    """

    def __init__(self, step: FusedStep, server_key: bytes, together: int) -> None:
        super().__init__(step.settings, step.trainer, server_key, together)
        self.step = step

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nobody is asked."""
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Play the turn's rounds; the metrics are those of the last one."""
        while self.round < min(server_round * self.rounds_per_message, self.rounds):
            self.step.step()
            self.round = self.step.round
        return None, MetricRecord({**self.step.metrics()})

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Weights, moments, average and history."""
        tensors, values = self.step.state()
        return tensors, values | {"played": self.round}

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.step.load_state(tensors, values, int(values["played"]))


class _NobodyGrid(SimulationGrid):
    """A grid on which no message is sent."""

    def execute(self, messages: Sequence[Message]) -> list[Message]:
        """Nobody answers."""
        return []

    def keep(self, round: int) -> None:
        """Nobody remembers anything."""


def run_fused(
    settings: ServerSettings, node: NodeSettings, step: FusedStep, *, together: int
) -> None:
    """Train the generator of a step into `settings.folder`.

    Args:
        settings: the server's.
        node: the clients'.
        step: from `build_step` of the same settings.
        together: rounds that are logged at once, those that the step prepares at once.
    """
    torch.set_num_threads(settings.engine.threads)
    strategy = FusedRounds(step, settings.server_key, together)
    train(
        _NobodyGrid(node.clients),
        strategy,
        RunFolder(settings.folder),
        settings.loop,
        settings.identity(),
        f"{settings.strategy.title}, fused",
        classes=settings.classes,
        command=settings.command,
    )
    if overflows := int(step.overflows):
        log.warning(
            "%d of the samples drawn since the start were larger than the capacity %s; the plan's "
            "guarantee accounts for that",
            overflows,
            step.settings.plan.capacity,
        )


def build_step(
    settings: ServerSettings,
    node: NodeSettings,
    generator: Generator,
    *,
    draws: DrawsName,
    together: int,
) -> FusedStep:
    """The step of a run.

    Args:
        settings: the server's, of a strategy that names this engine.
        node: the clients'; they have a seed.
        generator: freshly initialised; trained in place.
        draws: as in `FusedStep`.
        together: rounds that are prepared at once.

    Raises:
        ConfigError: the settings are none that can be fused.
    """
    if node.seed is None:
        raise ConfigError(
            "engine=fused plays server and clients in one process, so its noise is not secret: "
            "give seed=, or choose engine=local for secret noise."
        )
    shards = [open_node(node, client).shard for client in range(node.clients)]
    return FusedStep(
        cast(DPSinkhornSettings, settings.strategy),
        generator,
        shards,
        seed=node.seed,
        server_key=settings.server_key,
        draws=draws,
        ahead=together,
    )
