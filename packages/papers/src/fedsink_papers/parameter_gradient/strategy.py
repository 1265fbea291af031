"""Central mode, ablation: DP-Sinkhorn with clip and noise on the gradient of the weights.

This is "parameter-gradient perturbation" of Cao et al. 2021 (Table 2): the mechanism is applied one
step of the chain rule later than in `fedsink.strategies.dp_sinkhorn`. It is also an example of a
method in one module: settings, strategy, and one line in `fedsink/strategies/methods.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedsink.configuration import Configuration
from fedsink.errors import ClientError, ConfigError
from fedsink.models import Generator, parameter_count
from fedsink.models.weights import flat_weights
from fedsink.privacy import LOCAL_NOISE, BatchClip
from fedsink.privacy.clips import UNREACHED
from fedsink.protocol.exchange import Broadcast, Content
from fedsink.strategies.base.central_statement import SampleOfRecords
from fedsink.strategies.base.central_strategy import signal_to_noise
from fedsink.strategies.dp_sinkhorn.rows import Label, Labels, RoundRows
from fedsink.strategies.dp_sinkhorn.self_term import History, self_term
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhornSettings, DPSinkhornStrategy
from fedsink.transport.clipped_sums import clipped_pullback
from fedsink_papers.parameter_gradient.request import (
    ParameterReply,
    ParameterRequest,
    architecture_of,
)


@dataclass(frozen=True, kw_only=True)
class ParameterGradientSettings(DPSinkhornSettings):
    """A DP-Sinkhorn run whose clip bound Δ and noise are in units of the weights' gradient.

    Attributes:
        weights: P, of the generator; only shared noise has to know it.
    """

    name: ClassVar[str] = ParameterRequest.name
    sample: ClassVar[SampleOfRecords] = SampleOfRecords(
        "Poisson-subsampled Gaussian on clipped gradients of the generator's weights"
    )
    leaves: ClassVar[str] = "clipped, noised gradients of the generator's weights"

    weights: int = 0

    @classmethod
    def from_config(cls, config: Configuration, run: str, **more: Any) -> Self:
        """Reads the settings; where noise is shared, counts the generator's weights."""
        if config.noise.shared == LOCAL_NOISE:
            return super().from_config(config, run, **more)
        options = {**config.generator}
        name, shape = options.pop("name"), tuple(config.data.shape)
        weights = parameter_count(name, shape, len(config.classes), **options)
        return super().from_config(config, run, weights=weights, **more)

    @property
    def reply_shape(self) -> tuple[int, ...]:
        """(P,), number of the generator's weights."""
        return (self.weights,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.uses_per_message > 1:
            raise ConfigError(
                "strategy=parameter_gradient sends one generator a message: "
                f"strategy.uses_per_message is 1, not {self.uses_per_message}."
            )
        if self.self_term.tether is not None:
            raise ConfigError(
                "strategy=parameter_gradient has a gradient of the weights and none of the rows: "
                f"none is drawn back. Set strategy.tether=null, not {self.self_term.tether:g}."
            )

    def reply(self, count: int, weights: int) -> RecordDict:
        """Returns a gradient of the weights, for the only round that a message asks for."""
        return ParameterReply(torch.zeros(weights)).to_record()


class ParameterGradient(DPSinkhornStrategy):
    """Sends the generator, collects the clients' noised gradients of its weights, steps it.

    Rows, loss, schedule, accounting and optimiser are those of `DPSinkhornStrategy`; the mechanism
    is applied to JᵀG in P coordinates instead of G in n·D.

    With `clip=batch` everything that the loss says, the self term's extra rows included, is
    inside the clip. With `clip=record` the server's own field is clipped point by point in the
    coordinates of the weights, like the clients', so that both cancel where generated and private
    points have one distribution.

    Args:
        settings: public parameters.
        generator: trained in place.
        key: keys the server's latents (not secret).

    Raises:
        ModelError: the generator has a state beside its parameters.
    """

    Settings = ParameterGradientSettings
    message_type: ClassVar[str] = f"train.{ParameterRequest.name}"

    def __init__(
        self, settings: ParameterGradientSettings, generator: Generator, key: bytes
    ) -> None:
        super().__init__(settings, generator, key)
        self._architecture = architecture_of(generator)
        if not settings.plan.clip.per_record:
            # Extra rows are clipped with the others, in the weights; nothing before.
            unclipped = BatchClip(UNREACHED)
            self.self_term = self_term(
                settings.self_term, settings.objective, unclipped, self.layout, self._like
            )

    def _broadcast(self, labels: Labels, members: Mapping[int, int]) -> Broadcast:
        ((rows,), (label,)) = self._rounds, labels
        request = self._parameter_request(rows, label, next(iter(members)))
        content = Content(lambda: [request], request.to_record)
        return self.broadcast(content, members, (1, len(request.weights)), rows.round)

    def _parameter_request(self, rows: RoundRows, label: Label, client: int) -> ParameterRequest:
        """Returns the request to a client, which pulls its gradient back through the generator."""
        generator, n = self.trainer.generator, self.layout.group_rows
        labels = self.layout.row_labels(rows.kinds).flatten()
        z = self._latents("train", rows.round, rows.kinds)
        places = torch.arange(len(labels)).unflatten(0, rows.rows.shape[:2])
        groups = rows.groups_of(label)
        seen, rest = places[groups, :n].flatten(), places[groups, n:].flatten()
        gradients = rows.parts.outside[groups, n:].flatten(0, 1)
        if generator.uses_batch_statistics:  # every row of the batch shapes those of the client
            others = torch.cat([places[: groups.start], places[groups.stop :]]).flatten()
            rest = torch.cat([rest, others])
            zeros = gradients.new_zeros(len(others), self.view.dimension)
            gradients = torch.cat([gradients, zeros])
        return ParameterRequest(
            self._request(rows, label, client),
            self._architecture,
            flat_weights(generator).detach().cpu(),
            z.cpu()[torch.cat([seen, rest])],
            labels[rest],
            gradients.to(torch.float32),
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Averages the replies per class, adds the self term, takes one optimiser step."""
        if self._points is None:
            raise ClientError(f"Replies for round {server_round} came before its request.")
        (rows,) = self._rounds
        task = f"computing gradients in round {rows.round}"
        sums = self._sums(self._broadcasts, replies, task, range(self.clients))
        weights = flat_weights(self.trainer.generator)
        gradient = torch.zeros(len(weights)).double()
        energy = noise = 0.0
        for labels, part in sums.items():
            mean = part.total[0] / part.clients
            energy += float(mean.square().sum())
            noise += len(mean) * self.settings.mean_noise_variance / part.clients
            gradient += mean / self.settings.gradient_scale
            if self.settings.plan.clip.per_record:
                (request,) = self._broadcasts[labels].content.requests or ()
                gradient += self._history_field(request, labels[0], rows)
        self.trainer.step(weights, gradient, server_round)
        self.self_term.remember(rows.seen, rows.kinds)
        self.round = rows.round
        return None, MetricRecord(
            {
                "loss": float(gradient.norm()),
                **self._mean_noise(min(part.clients for part in sums.values())),
                **signal_to_noise(energy, noise),
            }
        )

    def _history_field(self, request: ParameterRequest, label: Label, rows: RoundRows) -> Tensor:
        """Returns −(1/|S|) Σ_s clip(Jᵀg_s, Δ) over the groups' remembered rows s, (P,) float64."""
        if not isinstance(self.self_term, History):
            raise TypeError("clip=record has a self term of remembered rows.")
        inner = request.gradient
        kinds = rows.kinds[rows.groups_of(label)]
        past = self.self_term.past(kinds)
        pull = request.pullback()
        total = clipped_pullback(
            inner.rows,
            past.flatten(0, 1),
            inner.potentials,
            inner.objective.lam,
            inner.plan.clip.bound,
            lambda gradient: pull(request.padded(gradient)),
            inner.row_labels.unsqueeze(-1) == kinds.repeat_interleave(past.shape[1]),
        )
        return -total / past.shape[1]

    def unpacked(self, record: RecordDict) -> Tensor:
        """Returns the gradient of the weights, (1, P)."""
        return ParameterReply.from_record(record).gradient.unsqueeze(0)
