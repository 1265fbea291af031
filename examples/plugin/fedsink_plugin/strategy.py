"""The server's half of mean embeddings: a generator whose random features match the clients'.

DP-MERF (Harder, Adamczewski, Park 2021) over federated clients, with fresh features in every round:

1. `request`: draw frequencies ω ~ N(0, I/s²), which are public
2. `total` at each client: Σ φ(y) over a sample of its records, class by class; noise is added
3. `learn`: from the replies' mean μ̂ one step on ‖μ̂ − (1/n) Σ φ(G_θ(z))‖², an estimate of MMD²
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedsink.configuration import Configuration
from fedsink.data import view_from_dict
from fedsink.privacy import RecordClip
from fedsink.strategies import CentralSettings, CentralStrategy, SampleOfRecords, central_plan
from fedsink.values import checks
from fedsink_plugin.answer import EmbeddingRequest, features


@dataclass(frozen=True, kw_only=True)
class MeanEmbeddingSettings(CentralSettings):
    """What is this method's own in a run; all of it is public."""

    name: ClassVar[str] = EmbeddingRequest.name
    title: ClassVar[str] = "Mean embeddings"
    sample: ClassVar = SampleOfRecords("Poisson-subsampled Gaussian on sums of random features")
    leaves: ClassVar[str] = "noised sums of its records' random features, class by class"

    view: dict[str, Any]  # coordinates of the records, as `View.to_dict()`
    classes: int  # C
    nominal_records: float  # of one client
    frequencies: int  # F
    scale: float  # s, width of the kernel in units of the coordinates
    batch: int  # n, generated points in a step

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count("strategy.frequencies", self.frequencies)
        checks.count("strategy.batch", self.batch)
        checks.positive("strategy.scale", self.scale)

    @classmethod
    def from_config(cls, config: Configuration, run: str) -> Self:
        return cls.read(config, run, plan=central_plan(config, RecordClip(1.0), only=True))  # ‖φ‖=1

    @property
    def reply_shape(self) -> tuple[int, ...]:
        return self.classes, 2 * self.frequencies

    @property
    def most_sampled(self) -> int:
        return math.ceil(self.nominal_records)


class MeanEmbedding(CentralStrategy):
    """Matches the noised mean embedding of the clients' records by that of generated points."""

    Settings = MeanEmbeddingSettings
    settings: MeanEmbeddingSettings

    def request(self, round: int, **common: Any) -> EmbeddingRequest:
        """Returns what all clients are asked for: sums of features at these frequencies."""
        settings, stream = self.settings, self.latent_stream("frequencies", round)
        normals = stream.normal(settings.frequencies, view_from_dict(settings.view).dimension)
        return EmbeddingRequest(
            round=round,
            view=settings.view,
            classes=settings.classes,
            frequencies=(normals / settings.scale).float(),
            **common,
        )

    def learn(self, request: EmbeddingRequest, total: Tensor, clients: int) -> float:
        """Averages the replies, and takes one optimiser step towards their mean embedding."""
        settings = self.settings
        target = total / (clients * settings.plan.rate * settings.nominal_records)
        generated, labels = self.drawn("train", request.round, settings.batch)
        points = view_from_dict(settings.view)(generated)
        terms = features(points, request.frequencies.to(points))
        embedded = terms.new_zeros(target.shape).index_add(0, labels.to(terms.device), terms)
        loss = (embedded / settings.batch - target.to(terms)).square().sum()
        self.trainer.step(loss, torch.ones(()), request.round)
        return float(loss.detach())
