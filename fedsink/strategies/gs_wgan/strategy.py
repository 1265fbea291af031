"""Central mode: GS-WGAN (Chen, Orekondy, Fritz 2020) over federated clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from torch import Tensor

from fedsink.data.views import view_from_dict
from fedsink.errors import ClientError
from fedsink.models import Generator
from fedsink.privacy import Stream
from fedsink.protocol.exchange import Broadcast, Content, Exchange
from fedsink.protocol.gs_wgan import CriticRequest
from fedsink.strategies.central.rounds import CentralRounds
from fedsink.strategies.central.settings import signal_to_noise
from fedsink.strategies.gs_wgan.settings import GSWGANSettings
from fedsink.strategies.trainer import Trainer


class GSWGAN(CentralRounds):
    """Generate X, collect the sums of the clients' critics' gradients at X, step the generator.

    In every round each client that is asked trains all of its M critics on fresh generated rows,
    and answers with Σ_m clip(∂D_m/∂X, C) and noise, over those of them that are asked: each with
    the plan's rate, which is 1 unless it is stated. The generator ascends their mean.

    Args:
        settings: public parameters.
        generator: trained in place.
        key: keys latents and the critics' initial weights (not secret).
    """

    Settings = GSWGANSettings
    settings: GSWGANSettings

    def __init__(self, settings: GSWGANSettings, generator: Generator, key: bytes) -> None:
        trainer = Trainer(generator, settings.optimizer, settings.plan.rounds)
        super().__init__(settings, trainer, key)
        self.view = view_from_dict(settings.view)
        seed = int(Stream(key, "critics").uniform(1).item() * 2**52)
        self.critics = replace(settings.critics, seed=seed)
        self._points: Tensor | None = None
        self._asked: dict[int, Broadcast] = {}
        self._everybody: list[int] = []  # whose turn the round is

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Generate this round's rows and ask the clients whose turn it is for gradients at them."""
        if server_round > self.rounds:
            raise ClientError(
                f"The plan has {self.rounds} rounds, and round {server_round} was to be played: "
                "nobody accounted for it."
            )
        schedule = self.settings.plan.schedule
        everybody = [k for k in range(self.clients) if schedule.answers(k, server_round)]
        self._everybody = everybody
        found = self.discover(grid)
        nodes = {client: found[client] for client in everybody if client in found}
        needed = self.quorum.of(len(everybody))
        if len(nodes) < needed:
            raise ClientError(
                f"Round {server_round} is the turn of {len(everybody)} clients, and {len(nodes)} "
                "of them are connected: start the others, and continue with resume=."
            )
        self._points, row_labels = self._rows("train", server_round, self.settings.rows)
        with torch.no_grad():
            fakes, fake_labels = self._rows("fakes", server_round, self.settings.fakes)
        request = CriticRequest(
            round=server_round,
            plan=self.settings.plan,
            critics=self.critics,
            view=self.settings.view,
            rows=self._points.detach().cpu(),
            row_labels=row_labels,
            fakes=fakes.cpu(),
            fake_labels=fake_labels,
            run=self.settings.run,
            share=self.settings.sharers(next(iter(nodes))),
        )
        request.check()
        content = Content(lambda: [request], request.to_record)
        broadcast = Broadcast(content, nodes, (1, *request.rows.shape))
        self._asked = {server_round: broadcast}
        return Exchange("train.gs_wgan", str(server_round), [broadcast], needed)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the replies over the critics that were asked, and take one optimiser step."""
        if self._points is None or server_round not in self._asked:
            raise ClientError(f"Replies for round {server_round} came before its request.")
        doing = f"asking critics in round {server_round}"
        sums = self._sums(self._asked, replies, doing, self._everybody)
        answered = sums[server_round]
        variance = self.settings.noise_std(next(iter(self._asked[server_round].nodes))) ** 2
        snr = signal_to_noise(
            float(answered.total.square().sum()),
            answered.clients * variance * answered.total.numel(),
        )
        asked = self.settings.plan.rate * self.critics.training.critics  # of a client, on average
        critics = answered.clients * asked
        gradient = -answered.total[0] / critics  # critics score records high: up is their way
        self.trainer.step(self._points, gradient, server_round)
        self.round = server_round
        snr |= self._of_mean(answered.clients)
        return None, MetricRecord({"loss": float(gradient.norm()), **snr})

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Weights, moments and average."""
        return self.trainer.state()

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.trainer.load_state(tensors, values)

    def _rows(self, purpose: str, round: int, count: int) -> tuple[Tensor, Tensor]:
        """Generated rows (count, D) with their graph, and labels, balanced over the rounds."""
        generator = self.trainer.generator
        labels = torch.arange((round - 1) * count, round * count) % generator.classes
        z = generator.latent(count, self.latent_stream(purpose, round))
        return self.view(generator(z, labels)), labels
