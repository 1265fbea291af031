"""Local mode: an entropic Sinkhorn GAN on records that were privatized once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedsink.errors import ClientError, ConfigError
from fedsink.models import Generator
from fedsink.privacy import Stream
from fedsink.protocol import LocalPlan, PrivatizeReply, PrivatizeRequest
from fedsink.protocol.run import UNNAMED
from fedsink.strategies.base import RoundStrategy
from fedsink.strategies.trainer import OptimizerSettings, Trainer
from fedsink.transport import ConvergedSolver, cost_named, transport_gradient


@dataclass(frozen=True)
class PrivatizeOnceSettings:
    """Everything about a local-mode run; all of it is public.

    Attributes:
        plan: what each client did to each record.
        rounds: training steps of the server. They cost no privacy (post-processing).
        batch: b, generated points and privatized records per step.
        optimizer: the generator's optimiser.
        clients: K.
        finite_batch_factor: scales λ for minibatches (→ 1 as b grows); below 1 the matched
            channel is a narrower one, so it is reported.
        cost, lam: override the matched cost and λ; need `unmatched`.
        unmatched: declares that cost and λ are not those of Theorem 1.
        max_iterations, tolerance: Sinkhorn iterations, L1 marginal error at which they stop.
        chunk_size: records per upload message.
        run: public name of the run, stated in every request.
    """

    plan: LocalPlan
    rounds: int
    batch: int
    optimizer: OptimizerSettings
    clients: int
    finite_batch_factor: float = 1.0
    cost: str | None = None
    lam: float | None = None
    unmatched: bool = False
    max_iterations: int = 30
    tolerance: float = 2e-2
    chunk_size: int = 4096
    run: str = UNNAMED

    def __post_init__(self) -> None:
        if (self.cost is not None or self.lam is not None) and not self.unmatched:
            matched = self.plan.matched_cost
            raise ConfigError(
                f"The {self.plan.mechanism} mechanism is inverted by cost={matched.cost} and "
                f"λ={matched.lam:.4g} (Theorem 1); to train with strategy.cost or strategy.lam "
                "of your own, say strategy.unmatched=true, and the run will be reported so."
            )
        if not 0.0 < self.finite_batch_factor <= 1.0:
            raise ConfigError(
                f"strategy.finite_batch_factor must be in (0, 1], not {self.finite_batch_factor}."
            )
        if self.batch < 2:
            raise ConfigError(f"strategy.batch must be at least 2, not {self.batch}.")
        if self.lam is not None and not 0.0 < self.lam < math.inf:
            raise ConfigError(f"strategy.lam must be a positive number, not {self.lam}.")
        cost_named(self.effective_cost)

    @property
    def effective_cost(self) -> str:
        """The cost trained with."""
        return self.cost or self.plan.matched_cost.cost

    @property
    def effective_lam(self) -> float:
        """The λ trained with, finite-batch factor included."""
        lam = self.plan.matched_cost.lam if self.lam is None else self.lam
        return lam * self.finite_batch_factor


class PrivatizeOnce(RoundStrategy):
    """Collect the privatized records, then minimise W_{c,λ}(f(G(z)), Y) without debiasing.

    With labels the channel is a product, and so is its likelihood: the cost is
    c(f(x), y) − λ log Q(ỹ | label) (Theorem 1 for the product mechanism). There is no
    debiasing term: the entropic bias is what removes the noise.

    Args:
        settings: public parameters.
        generator: trained in place.
        key: keys the server's own randomness (not secret).
    """

    def __init__(self, settings: PrivatizeOnceSettings, generator: Generator, key: bytes) -> None:
        super().__init__(settings.rounds, settings.clients)
        self.settings = settings
        self.trainer = Trainer(generator, settings.optimizer, settings.rounds)
        self._key = key
        self._values = torch.zeros(0, 0)
        self._labels = torch.zeros(0, dtype=torch.int64)
        self._prior = torch.zeros(0)
        self._solver = ConvergedSolver(
            max_iterations=settings.max_iterations, tolerance=settings.tolerance
        )

    @property
    def generator(self) -> Generator:
        """The averaged generator."""
        return self.trainer.averaged

    def render(self, images: Tensor) -> Tensor:
        """The band of the images that was released: elsewhere the generator had no gradient."""
        return self.settings.plan.map.render(self.settings.plan.map(images))

    def label_prior(self) -> Tensor:
        """Class frequencies estimated from the randomized labels."""
        return self._prior

    def epsilon_so_far(self) -> float:
        """Everything is released before the first training step."""
        return self.settings.plan.total_epsilon if len(self._values) else 0.0

    def latent_stream(self, purpose: str, number: int) -> Stream:
        """The server's randomness of one step."""
        return Stream(self._key, purpose, number)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: the records arrived before the first step and are never asked for again."""
        if not len(self._values):
            self.collect(grid)
        return []

    def collect(self, grid: Grid) -> None:
        """Ask every client for its privatized records, chunk by chunk.

        Raises:
            ClientError: a client fails, refuses, or sends what the plan does not allow.
        """
        nodes = self.discover(grid)
        received: dict[int, list[PrivatizeReply]] = {client: [] for client in nodes}
        waiting, chunk = list(nodes), 0
        while waiting:
            request = PrivatizeRequest(
                self.settings.plan, chunk, self.settings.chunk_size, self.settings.run
            )
            content = request.to_record()
            replies = grid.send_and_receive(
                [
                    Message(content, dst_node_id=nodes[client], message_type="train.privatize")
                    for client in waiting
                ]
            )
            contents = self.replies_by_client(replies, f"uploading chunk {chunk}", waiting)
            for client, record in contents.items():
                received[client].append(self._checked(client, record, chunk))
            chunk += 1
            waiting = [client for client in waiting if received[client][-1].chunks > chunk]
        everything = [reply for client in nodes for reply in received[client]]
        self._accept(
            torch.cat([reply.values for reply in everything]),
            torch.cat([reply.labels for reply in everything]),
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """One optimiser step on a minibatch of privatized records."""
        stream = self.latent_stream("train", server_round)
        batch = min(self.settings.batch, len(self._values))
        chosen = (stream.uniform(batch) * len(self._values)).long()
        labels = torch.searchsorted(self._prior.cumsum(0), stream.uniform(batch).float()).clamp(
            max=len(self._prior) - 1
        )
        generator = self.trainer.generator
        z = generator.latent(batch, stream)
        points = self.settings.plan.map(generator(z, labels))
        lam = self.settings.effective_lam
        label_cost = self._label_cost(labels, self._labels[chosen], lam)
        found = transport_gradient(
            points.detach(),
            self._values[chosen].to(points.device),
            cost_named(self.settings.effective_cost),
            lam,
            extra_cost=None if label_cost is None else label_cost.to(points.device),
            solver=self._solver,
        )
        self.trainer.step(points, found.gradient, server_round)
        self.round = server_round
        return None, MetricRecord(
            {"loss": float(found.value), "iterations": int(found.solution.iterations)}
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Weights, moments and average."""
        return self.trainer.state()

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.trainer.load_state(tensors, values)

    def uploads(self) -> dict[str, Tensor]:
        """The privatized records: asked for once, kept for good."""
        return {"values": self._values, "labels": self._labels}

    def load_uploads(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `uploads` returned."""
        self._accept(tensors["values"], tensors["labels"])

    def _label_cost(self, labels: Tensor, privatized: Tensor, lam: float) -> Tensor | None:
        mechanism = self.settings.plan.label_mechanism
        if mechanism is None:
            return None
        log_q = mechanism.log_likelihood().to(torch.float32)
        return -lam * log_q.T[labels][:, privatized]

    def _accept(self, values: Tensor, labels: Tensor) -> None:
        self._values, self._labels = values, labels
        mechanism = self.settings.plan.label_mechanism
        prior = mechanism.estimate_prior(labels) if mechanism else torch.ones(1)
        self._prior = prior.to(torch.float32)

    def _checked(self, client: int, record: RecordDict, chunk: int) -> PrivatizeReply:
        dimension, classes = self.settings.plan.map.dimension, self.settings.plan.classes
        try:
            reply = PrivatizeReply.from_record(record)
        except ValueError as error:
            raise ClientError(f"Client {client} uploaded chunk {chunk} as: {error}") from error
        # Only the last chunk may be smaller: who announces chunks for ever must fill them.
        smallest = self.settings.chunk_size if chunk + 1 < reply.chunks else 1
        if not smallest <= len(reply.labels) <= self.settings.chunk_size:
            raise ClientError(
                f"Client {client} uploaded {len(reply.labels)} records as chunk {chunk} of "
                f"{reply.chunks}, where {self.settings.chunk_size} make a full one."
            )
        valid = (
            reply.values.ndim == 2
            and reply.values.shape[1] == dimension
            and reply.values.dtype == torch.float32
            and reply.labels.dtype == torch.int64
            and reply.labels.shape == (len(reply.values),)
            and bool(reply.values.isfinite().all())
            and bool(((reply.labels >= 0) & (reply.labels < classes)).all())
        )
        if not valid:
            raise ClientError(
                f"Client {client} uploaded {tuple(reply.values.shape)} values and "
                f"{tuple(reply.labels.shape)} labels; expected finite rows of {dimension} "
                f"float32 values and int64 labels below {classes}."
            )
        return reply
