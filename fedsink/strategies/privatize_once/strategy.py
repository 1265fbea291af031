"""The server's half of an entropic Sinkhorn GAN on privatized records (Reshetova et al. 2024).

1. Clients privatize their records once and upload them, chunk by chunk       `collect`
2. In every step, draw privatized records Y and generated points X = f(G_θ(z, labels))  `_batch`
3. W_{c,λ}(X, Y) and its gradient at X (Theorem 1)                            `LocalLoss`
4. Backpropagate the gradient into θ, one step of the optimiser               `Trainer.step`

Only step 1 meets records, at `fedsink/clients/privatize_once.py`. All later steps are
post-processing: their number costs no ε.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedsink.errors import ClientError
from fedsink.models import Generator
from fedsink.privacy import Stream
from fedsink.protocol.exchange import Broadcast, Content, Exchange
from fedsink.protocol.privatize_once import PrivatizeReply, PrivatizeRequest
from fedsink.strategies.privatize_once.loss import LabelStrata, loss_named
from fedsink.strategies.privatize_once.settings import PrivatizeOnceSettings
from fedsink.strategies.round_strategy import RoundStrategy
from fedsink.strategies.trainer import Trainer


class PrivatizeOnce(RoundStrategy):
    """Collects the privatized records, then minimises W_{c,λ}(f(G(z)), Y) without debiasing.

    With labels the loss compares the records of each randomized label ỹ with generated points
    whose labels follow P(label | ỹ) (`LabelStrata`). There is no debiasing term: the entropic bias
    removes the noise. `settings.loss` may name a comparison instead (`LocalLoss`).

    Args:
        settings: public parameters.
        generator: trained in place.
        key: keys the server's own randomness (not secret).
    """

    Settings = PrivatizeOnceSettings

    def __init__(self, settings: PrivatizeOnceSettings, generator: Generator, key: bytes) -> None:
        super().__init__(settings.rounds, settings.clients, quorum=settings.enough)
        self.settings = settings
        self.trainer = Trainer(generator, settings.optimizer, settings.rounds)
        self._key = key
        self._values = torch.zeros(0, 0)
        self._labels = torch.zeros(0, dtype=torch.int64)
        self._prior = torch.zeros(0)
        self._targets = self._values  # the records as the loss compares them: `LocalLoss.targets`
        self._loss = loss_named(settings.loss)(settings)
        self._strata: LabelStrata | None = None

    @property
    def generator(self) -> Generator:
        """The averaged generator."""
        return self.trainer.averaged

    def label_prior(self) -> Tensor:
        """Returns class frequencies estimated from the randomized labels."""
        return self._prior

    def epsilon_so_far(self) -> float:
        """Returns the whole ε once records arrived: training releases nothing more."""
        return self.settings.plan.total_epsilon if len(self._values) else 0.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Collects the records before the first step, and asks for nothing in any step."""
        if not len(self._values):
            self.collect(grid)
        return []

    def collect(self, grid: Grid) -> None:
        """Asks every client for its privatized records, chunk by chunk.

        A client that fails in between is left out with all of its records.

        Raises:
            ClientError: more clients than the quorum allows fail, refuse, or send values that the
                plan does not allow.
            ConfigError: fewer records arrived than the ε behind a shuffler is stated for.
        """
        nodes = self.discover(grid)
        received: dict[int, list[PrivatizeReply]] = {client: [] for client in nodes}
        waiting, chunk, absent = list(range(self.clients)), 0, set[int]()
        while waiting:
            request = PrivatizeRequest(
                self.settings.plan, chunk, self.settings.chunk_size, self.settings.run
            )
            connected = {client: nodes[client] for client in waiting if client in nodes}
            broadcast = Broadcast(Content(None, request.to_record), connected, ())
            # Clients that have uploaded everything count towards the quorum.
            needed = self.quorum.of(self.clients) - (self.clients - len(waiting) - len(absent))
            replies = grid.send_and_receive(
                Exchange("train.privatize_once", str(chunk), [broadcast], max(0, needed))
            )
            read = partial(self._checked, chunk=chunk)
            replied = self.answers(replies, f"uploading chunk {chunk}", waiting, read, needed)
            absent.update(self.absent)
            for client, reply in replied.items():
                received[client].append(reply)
            chunk += 1
            waiting = [client for client, reply in replied.items() if reply.chunks > chunk]
        self.absent = sorted(absent)
        everything = [
            reply for client in nodes if client not in absent for reply in received[client]
        ]
        self._accept(
            torch.cat([reply.values for reply in everything]),
            torch.cat([reply.labels for reply in everything]),
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Takes one optimiser step on a minibatch of privatized records."""
        if self._strata is None:
            raise RuntimeError("No records have arrived: configure_train or load_uploads first.")
        for step in range(self._loss.critic_steps):
            stream = self.latent_stream(f"critic.{step}", server_round)
            with torch.no_grad():
                points, targets = self._batch(self._strata, stream)
            self._loss.train(points, targets, stream)
        stream = self.latent_stream("train", server_round)
        points, targets = self._batch(self._strata, stream)
        loss = self._loss(points, targets, stream)
        self.trainer.step(points, loss.gradient, server_round)
        self.round = server_round
        return None, MetricRecord({"loss": loss.value, "iterations": loss.iterations})

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Returns weights, moments and average, and what the loss has learnt."""
        tensors, values = self.trainer.state()
        return tensors | self._loss.state(), values

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Restores what `state` returned; the uploads are loaded first."""
        self.trainer.load_state(tensors, values)
        self._loss.load_state(tensors)

    def uploads(self) -> dict[str, Tensor]:
        """Returns the privatized records: asked for once, kept for good."""
        return {"values": self._values, "labels": self._labels}

    def load_uploads(self, tensors: dict[str, Tensor]) -> None:
        """Restores what `uploads` returned."""
        self._accept(tensors["values"], tensors["labels"])

    def _batch(self, strata: LabelStrata, stream: Stream) -> tuple[Tensor, Tensor]:
        """Returns generated values X and records Y of a step, (S, n, D) each."""
        records, labels = strata.draw(self.settings.batch, stream)
        generator = self.trainer.generator
        z = generator.latent(labels.numel(), stream)
        points = self.settings.plan.map(generator(z, labels.flatten()))
        return points.unflatten(0, labels.shape), self._targets[records]

    def _accept(self, values: Tensor, labels: Tensor) -> None:
        self.settings.check_reports(len(labels))
        self._values, self._labels = values, labels
        self._targets = self._loss.targets(values)
        self._loss.begin(self._targets, self.latent_stream("critic", 0))
        mechanism = self.settings.plan.label_mechanism
        prior = mechanism.estimate_prior(labels) if mechanism else torch.ones(1)
        self._prior = prior.to(torch.float32)
        self._strata = LabelStrata(labels, self._prior, mechanism)

    def _checked(self, client: int, record: RecordDict, chunk: int) -> PrivatizeReply:
        dimension, classes = self.settings.plan.map.dimension, self.settings.plan.classes
        try:
            reply = PrivatizeReply.from_record(record)
        except ValueError as error:
            raise ClientError(f"Client {client} uploaded chunk {chunk} as: {error}") from error
        # Only the last chunk may be smaller: whoever announces endless chunks must fill them.
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
