"""The server's half of mean embeddings: a generator whose random features match the clients'.

DP-MERF (Harder, Adamczewski, Park 2021) over federated clients, with fresh features in every round:

1. draw frequencies ω ~ N(0, I/s²), which are public                             `configure_train`
2. each client: Σ φ(y) over a sample of its records, class by class, with noise   `feature_sums`
3. mean embedding μ̂ of the private records: the sum of the replies, divided by the expected
   number of sampled records                                                      `aggregate_train`
4. one step of the optimiser on ‖μ̂ − (1/n) Σ φ(G_θ(z))‖², an estimate of MMD²    `Trainer.step`
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from torch import Tensor

from fedsink.configuration import Configuration
from fedsink.data.views import view_from_dict
from fedsink.errors import ClientError, ConfigError
from fedsink.models import Generator
from fedsink.privacy import CentralPlan, JointSchedule, NoiseShare, RecordClip
from fedsink.protocol.dp_sinkhorn import GradientReply
from fedsink.protocol.exchange import Broadcast, Content, Exchange
from fedsink.strategies.central_statement import SampleOfRecords
from fedsink.strategies.central_strategy import (
    CentralRounds,
    CentralSettings,
    central_plan,
    common_settings,
    signal_to_noise,
)
from fedsink.strategies.trainer import OptimizerSettings, Trainer
from fedsink.values import checks
from fedsink_plugin.answer import EmbeddingRequest, features

if TYPE_CHECKING:
    from flwr.app import RecordDict


@dataclass(frozen=True)
class MeanEmbeddingSettings(CentralSettings):
    """Everything about such a run; all of it is public.

    Attributes:
        plan, clients, accountant, share, quorum: as in `CentralSettings`.
        view: coordinates of the records, as `View.to_dict()`.
        classes: C.
        records: public number of records of one client.
        rows: F, number of frequencies in a round.
        scale: s, the width of the kernel in units of the coordinates.
        batch: n, generated points in a step.
        optimizer: the generator's optimiser.
        run: public name of the run.
    """

    name: ClassVar[str] = "mean_embedding"
    title: ClassVar[str] = "Mean embeddings"
    sample: ClassVar[SampleOfRecords] = SampleOfRecords(
        "Poisson-subsampled Gaussian on sums of the records' random features"
    )
    leaves: ClassVar[str] = "noised sums of its records' random features, class by class"

    plan: CentralPlan
    view: dict[str, Any]
    classes: int
    records: float
    rows: int
    scale: float
    batch: int
    optimizer: OptimizerSettings
    clients: int
    accountant: str
    run: str
    share: NoiseShare
    quorum: float | None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count("strategy.rows", self.rows)
        checks.count("strategy.batch", self.batch)
        checks.positive("strategy.scale", self.scale)

    @property
    def use_size(self) -> int:
        """C·2F, number of values of a reply."""
        return self.classes * 2 * self.rows

    @property
    def most_sampled(self) -> int:
        """Public bound on the number of records in one client's total."""
        return math.ceil(self.records)

    @classmethod
    def from_config(cls, config: Configuration, run: str) -> Self:
        """Reads the settings of a configuration.

        Raises:
            FedsinkError: a value is unknown or out of range, or belongs to another method.
        """
        for key, value, only in (
            ("clip", config.clip, "record"),
            ("capacity", config.capacity, None),
        ):
            if value != only:
                raise ConfigError(f"strategy={cls.name} has no {key}={value}: leave it out.")
        plan = central_plan(config, RecordClip(1.0), JointSchedule())  # ‖φ‖ = 1
        if not plan.protected:
            raise ConfigError(f"strategy={cls.name} needs a finite eps.")
        return cls(
            plan=plan,
            classes=len(config.classes),
            records=config.data.nominal_records / config.clients,
            scale=config.strategy["scale"],
            batch=config.strategy["batch"],
            **common_settings(config, run),
        )

    def reply(self, count: int, weights: int) -> RecordDict:
        """Returns the sums of all classes, for the only use that a message asks for."""
        return GradientReply(torch.zeros(self.classes, 2 * self.rows)).to_record()


class MeanEmbedding(CentralRounds):
    """Matches the noised mean embedding of the clients' records by that of generated points.

    Args:
        settings: public parameters.
        generator: trained in place.
        key: keys frequencies and latents (not secret).
    """

    Settings = MeanEmbeddingSettings
    settings: MeanEmbeddingSettings

    def __init__(self, settings: MeanEmbeddingSettings, generator: Generator, key: bytes) -> None:
        trainer = Trainer(generator, settings.optimizer, settings.plan.rounds)
        super().__init__(settings, trainer, key)
        self.view = view_from_dict(settings.view)
        self._broadcasts: dict[int, Broadcast] = {}  # by the number of the round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sends the round's frequencies to every client."""
        settings, nodes = self.settings, self.discover(grid)
        noise = settings.noise_of(0)  # one cohort: all clients share it alike
        request = EmbeddingRequest(
            server_round,
            settings.plan,
            settings.view,
            settings.classes,
            self._frequencies(server_round),
            settings.run,
            *noise,
        )
        content = Content(lambda: [request], request.to_record)
        shape, cohort = (1, settings.classes, 2 * settings.rows), settings.cohort(0)
        broadcast = Broadcast(content, nodes, shape, *noise, cohort, server_round)
        self._broadcasts = {server_round: broadcast}
        needed, following = self.quorum.of(self.clients), self.announced(server_round + 1)
        return Exchange("train.mean_embedding", str(server_round), [broadcast], needed, following)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Averages the replies, and takes one optimiser step towards their mean embedding."""
        if server_round not in self._broadcasts:
            raise ClientError(f"Replies for round {server_round} came before its request.")
        task, settings = f"embedding records in round {server_round}", self.settings
        part = self._sums(self._broadcasts, replies, task, range(self.clients))[server_round]
        target = part.total[0] / (part.clients * settings.plan.rate * settings.records)

        generator = self.trainer.generator
        labels = torch.arange(settings.batch) % settings.classes
        z = generator.latent(settings.batch, self.latent_stream("train", server_round))
        points = self.view(generator(z, labels))
        terms = features(points, self._frequencies(server_round).to(points))
        embedded = terms.new_zeros(target.shape).index_add(0, labels.to(terms.device), terms)
        loss = (embedded / settings.batch - target.to(terms)).square().sum()
        (gradient,) = torch.autograd.grad(loss, points)
        self.trainer.step(points, gradient, server_round)
        self.round = server_round

        noise = part.clients * settings.noise_std(0) ** 2 * part.total.numel()
        return None, MetricRecord(
            {
                "loss": float(loss.detach()),
                **signal_to_noise(float(part.total.square().sum()), noise),
                **self._mean_noise(part.clients),
            }
        )

    def _frequencies(self, round: int) -> Tensor:
        """Returns the public frequencies ω of a round, (F, D)."""
        normals = self.latent_stream("frequencies", round).normal(
            self.settings.rows, self.view.dimension
        )
        return (normals / self.settings.scale).float()
