"""The server's lines of GS-WGAN (Chen, Orekondy, Fritz 2020, Algorithms 1 and 2).

Algorithm 2 is the federated one: every client keeps a critic of its records. Algorithm 1 is a
curator with many critics; here it is one client that holds them all. In the paper's order:

| step | | computed by |
|---|---|---|
| 1 | draw latents z and labels, generate X = G_θ(z, labels) and fakes for the critics | `_rows` |
| 2 | each critic: n_dis steps of WGAN-GP on its records and the fakes | a client |
| 3 | each critic: ∂D/∂X, clipped to C; add noise of std 2Cσ to the sum over critics | a client |
| 4 | mean over the critics that were asked, and its sign for the generator | `aggregate_train` |
| 5 | backpropagate the gradient at X into θ, one step of the optimiser | `Trainer.step` |

Two departures from the paper keep the guarantee exact. A reply is clipped as a whole, not row by
row: all rows of a reply come from one critic, so that one record changes all of them at once
(`strategy.published` clips as published). And a client replies once, after its n_dis steps, where
Algorithm 2 as printed replies after each of them and accounts for one.

The client's half is `fedsink/clients/gs_wgan.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

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
from fedsink.strategies.central_strategy import CentralRounds, signal_to_noise
from fedsink.strategies.gs_wgan.settings import GSWGANSettings
from fedsink.strategies.trainer import Trainer


class GSWGAN(CentralRounds):
    """Generates X, collects the sums of the clients' critics' gradients at X, steps the generator.

    In every round each client that is asked trains all of its M critics on fresh generated rows,
    and answers with Σ_m clip(∂D_m/∂X, C) and noise. The sum is over the critics that are asked,
    each with the plan's rate, which is 1 unless it is stated. The generator ascends their mean.

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
        # One public state for all critics: a client that lost theirs begins again from it.
        seed = int(Stream(key, "critics").uniform(1).item() * 2**52)
        self.critics = replace(settings.critics, seed=seed)
        self._points: Tensor | None = None  # X, with its graph
        self._broadcasts: dict[int, Broadcast] = {}  # by the number of the round
        self._turn: list[int] = []  # clients that the round is for

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Generates this round's rows and asks the clients whose turn it is about them."""
        if server_round > self.rounds:
            raise ClientError(
                f"The plan has {self.rounds} rounds, and round {server_round} was asked for, "
                "which is not accounted for."
            )
        settings = self.settings
        nodes, needed = self._members(server_round, grid)
        first = next(iter(nodes))
        share, fixed_point = noise = settings.noise_of(first)

        # Step 1. The labels are public: a client takes fakes of its records' labels by itself.
        self._points, row_labels = self._rows("train", server_round, settings.rows)
        with torch.no_grad():
            fakes, fake_labels = self._rows("fakes", server_round, settings.fakes)

        # Steps 2 and 3, asked for.
        request = CriticRequest(
            round=server_round,
            plan=settings.plan,
            critics=self.critics,
            view=settings.view,
            rows=self._points.detach().cpu(),
            row_labels=row_labels,
            fakes=fakes.cpu(),
            fake_labels=fake_labels,
            run=settings.run,
            share=share,
            fixed_point=fixed_point,
        )
        request.check()
        content = Content(lambda: [request], request.to_record)
        shape = (1, *request.rows.shape)
        cohort = settings.cohort(first)
        broadcast = Broadcast(content, nodes, shape, *noise, cohort, server_round)
        self._broadcasts = {server_round: broadcast}
        following = self.announced(server_round + 1)
        return Exchange("train.gs_wgan", str(server_round), [broadcast], needed, following)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Averages the replies over the critics that were asked, and takes one optimiser step."""
        if self._points is None or server_round not in self._broadcasts:
            raise ClientError(f"Replies for round {server_round} came before its request.")
        task = f"asking critics in round {server_round}"
        answered = self._sums(self._broadcasts, replies, task, self._turn)[server_round]

        # Step 4. The number of critics is public, so the mean is too. Critics score records high:
        # the generator ascends, and the optimiser descends.
        asked_per_client = self.settings.plan.rate * self.critics.training.critics
        critics = answered.clients * asked_per_client
        gradient = -answered.total[0] / critics

        # Step 5: down into the weights.
        self.trainer.step(self._points, gradient, server_round)
        self.round = server_round

        first = next(iter(self._broadcasts[server_round].nodes))
        noise = answered.clients * self.settings.noise_std(first) ** 2 * answered.total.numel()
        return None, MetricRecord(
            {
                "loss": float(gradient.norm()),
                **signal_to_noise(float(answered.total.square().sum()), noise),
                **self._mean_noise(answered.clients),
            }
        )

    @property
    def asked(self) -> Sequence[int]:
        """The clients whose turn it is."""
        return self._turn

    def _members(self, round: int, grid: Grid) -> tuple[dict[int, int], int]:
        """Returns client → node of the connected clients whose turn it is, and the quorum."""
        schedule = self.settings.plan.schedule
        self._turn = [k for k in range(self.clients) if schedule.answers(k, round)]
        found = self.discover(grid)
        nodes = {client: found[client] for client in self._turn if client in found}
        needed = self.quorum.of(len(self._turn))
        if len(nodes) < needed:
            raise ClientError(
                f"Round {round} is the turn of {len(self._turn)} clients, and {len(nodes)} of them "
                "are connected: start the others, and continue with resume=."
            )
        return nodes, needed

    def _rows(self, purpose: str, round: int, count: int) -> tuple[Tensor, Tensor]:
        """Returns generated rows (count, D) with their graph, and their labels.

        The labels are public, never those of records, and balanced over the rounds.
        """
        generator = self.trainer.generator
        labels = torch.arange((round - 1) * count, round * count) % generator.classes
        z = generator.latent(count, self.latent_stream(purpose, round))
        return self.view(generator(z, labels)), labels
