"""The server's lines of DP-Sinkhorn (Cao et al. 2021, Algorithm 1), over federated clients.

The algorithm in the paper's order, and the place that computes each step:

| step | | computed by |
|---|---|---|
| 1 | draw latents z and labels, generate X = G_θ(z, labels) | `DPSinkhorn._generate` |
| 2 | self term −Ŵ(X[0:n], X[n′:n+n′]) (Definition 4.3) | `SelfTerm.__call__` |
| 3 | sample records Y; ∂/∂X of 2Ŵ(X[0:n], Y) and self term; clip to Δ; noise 2Δσ | a client |
| 4 | mean over clients; the self term's gradient at rows that no client sees | `RoundRows` |
| 5 | backpropagate the gradient at X into θ (line 9), one step of the optimiser | `Trainer.step` |

`configure_train` is steps 1 and 2, and asks the clients for step 3
(`fedsink/clients/dp_sinkhorn.py`); `aggregate_train` is steps 4 and 5. Only step 3 sees private
records: the steps after it are post-processing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from torch import Tensor

from fedsink.data.views import view_from_dict
from fedsink.errors import ClientError
from fedsink.models import Generator
from fedsink.privacy.clips import ClipOfRecords
from fedsink.privacy.integer_gaussian import FixedPoint
from fedsink.protocol.dp_sinkhorn import GradientRequest, checked, packed_requests
from fedsink.protocol.exchange import Broadcast, Content, Exchange
from fedsink.strategies.central_strategy import CentralRounds
from fedsink.strategies.dp_sinkhorn.rows import Label, Labels, RoundRows, SelfParts
from fedsink.strategies.dp_sinkhorn.self_term import self_term
from fedsink.strategies.dp_sinkhorn.settings import DPSinkhornSettings
from fedsink.strategies.trainer import Trainer


class DPSinkhorn(CentralRounds):
    """Generates X, collects the clients' noised gradients at X, steps the generator.

    In round t client k is asked about the class (k + t) mod C (class schedule), or about all
    classes at once (joint). Replies about the same rows are averaged over clients.

    One exchange of messages holds U rounds of the plan (`uses_per_message`): message r asks for
    the rounds U(r−1)+1, …, min(Ur, T). Each of them has fresh rows for the class that its schedule
    names. With U > 1 the privacy and the number of noised gradients are unchanged, but training
    is not: all rows of a message come from one generator, the self term's history is that of the
    messages before, and one optimiser step follows the mean of the U gradients. So there are
    ⌈T/U⌉ steps instead of T, each with about 1/√U of the noise, and the optimiser's warm-up,
    schedule and average count those. Meant for deployments, where a message costs seconds.

    Args:
        settings: public parameters.
        generator: trained in place.
        key: keys the server's latents (not secret).
    """

    Settings = DPSinkhornSettings
    message_type: ClassVar[str] = "train.dp_sinkhorn"

    settings: DPSinkhornSettings

    def __init__(self, settings: DPSinkhornSettings, generator: Generator, key: bytes) -> None:
        trainer = Trainer(generator, settings.optimizer, settings.exchanges)
        super().__init__(settings, trainer, key, settings.uses_per_message)
        self.view, self.layout = view_from_dict(settings.view), settings.layout
        self._like = torch.zeros(0, self.view.dimension)
        clip = ClipOfRecords.expect(settings.plan.clip)
        self.self_term = self_term(
            settings.self_term, settings.objective, clip, self.layout, self._like
        )
        self._points: Tensor | None = None  # X, with its graph
        self._rounds: list[RoundRows] = []  # of the message under way
        self._broadcasts: dict[Labels, Broadcast] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Generates this message's rows and asks every client for its gradients at them."""
        nodes = self.discover(grid)
        if self.round == 0:
            self.self_term.fill(self._untrained)

        # Steps 1 and 2: X, and the self term of the generated points.
        self._points, self._rounds = self._generate(self._rounds_of(server_round))

        # Step 3, asked for. Clients asked about the same classes are one cohort: they share one
        # content, their replies are added up, and so is the noise in them.
        cohorts: dict[Labels, dict[int, int]] = {}
        for client, node in nodes.items():
            labels = tuple(self.layout.label(client, rows.round) for rows in self._rounds)
            cohorts.setdefault(labels, {})[client] = node
        self._broadcasts = {
            labels: self._broadcast(labels, members) for labels, members in cohorts.items()
        }
        needed = self.quorum.of(self.clients)
        broadcasts, following = list(self._broadcasts.values()), self.announced(server_round + 1)
        return Exchange(self.message_type, str(server_round), broadcasts, needed, following)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Averages the replies per round and class, adds the self term, takes one step."""
        if self._points is None:
            raise ClientError(f"Replies for round {server_round} came before its request.")
        first, last = self._rounds[0].round, self._rounds[-1].round
        where = f"rounds {first} to {last}" if last > first else f"round {first}"
        sums = self._sums(
            self._broadcasts, replies, f"computing gradients in {where}", range(self.clients)
        )

        # Step 4: the gradient at every row of X.
        means, gradients, answers = [], [], []
        for use, rows in enumerate(self._rounds):
            mean, counts = rows.means(sums, use)
            means.append(mean)
            gradients.append(rows.gradient(mean, counts, self.settings.gradient_scale))
            answers += [count for count in counts if count]
        gradient, uses = torch.cat(gradients), len(self._rounds)

        # Step 5: down into the weights.
        self.trainer.step(self._points, gradient / uses, server_round)
        for rows in self._rounds:
            self.self_term.remember(rows.seen, rows.kinds)
        self.round = last

        energy = float(torch.stack(means).square().sum())
        return None, MetricRecord(
            {
                "loss": float((gradient.square().sum() / uses).sqrt()),
                **self.settings.signal_to_noise(energy, answers),
                **self._mean_noise(min(answers)),
            }
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Returns weights, moments, average and history."""
        tensors, values = super().state()
        return tensors | self.self_term.state(), values

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        super().load_state(tensors, values)
        self.self_term.load_state(tensors)

    def _rounds_of(self, message: int) -> range:
        """Returns the plan's rounds that one message asks for."""
        per_message = self.rounds_per_message
        rounds = range(per_message * (message - 1) + 1, min(per_message * message, self.rounds) + 1)
        if not rounds:
            raise ClientError(
                f"The plan has {self.rounds} rounds in {self.messages} messages, and message "
                f"{message} was asked for, which is not accounted for."
            )
        return rounds

    def _generate(self, rounds: Sequence[int]) -> tuple[Tensor, list[RoundRows]]:
        """Returns X of one message with its graph, and its rows and self parts by round."""
        # Step 1. All rounds pass the generator together, so that one step follows all of them.
        layout = self.layout
        kinds = torch.cat([layout.group_kinds(round) for round in rounds])
        by_round = kinds.unflatten(0, (len(rounds), layout.groups))
        latents = [self._latents("train", *drawn) for drawn in zip(rounds, by_round, strict=True)]
        labels = layout.row_labels(kinds)
        points = self._forward(torch.cat(latents), labels.flatten())

        # Step 2. Requests and self term work on the CPU, wherever the generator lives.
        rows = points.detach().cpu().unflatten(0, labels.shape)
        parts = self.self_term(rows, kinds, labels)

        generated = []
        for place, round in enumerate(rounds):
            groups = slice(place * layout.groups, (place + 1) * layout.groups)
            of_round = SelfParts(*(part[groups] for part in parts))
            generated.append(RoundRows(round, layout, kinds[groups], rows[groups], of_round))
        return points, generated

    def _latents(self, purpose: str, number: int, kinds: Tensor) -> Tensor:
        """Returns z of all rows of fresh groups of these kinds, (R, latent_dim)."""
        rows = self.layout.row_labels(kinds).numel()
        return self.trainer.generator.latent(rows, self.latent_stream(purpose, number))

    def _forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Returns rows in the coordinates of the view, (R, D)."""
        points: Tensor = self.view(self.trainer.generator(z, labels))
        return points

    @torch.no_grad()
    def _untrained(self, kinds: Tensor, number: int) -> Tensor:
        """Returns rows before the first round, of groups of these kinds, (G, n + n′, D)."""
        labels = self.layout.row_labels(kinds)
        z = self._latents("history", number, kinds)
        return self._forward(z, labels.flatten()).unflatten(0, labels.shape)

    def _broadcast(self, labels: Labels, members: dict[int, int]) -> Broadcast:
        """Returns the requests about `labels` for a cohort, client → node."""
        client = next(iter(members))
        noise, cohort = self.settings.noise_of(client), self.settings.cohort(client)
        requests = [
            self._request(rows, label, *noise)
            for rows, label in zip(self._rounds, labels, strict=True)
        ]
        content = Content(lambda: checked(requests), lambda: packed_requests(requests))
        shape = (len(requests), *self._rounds[0].shape)
        return Broadcast(content, members, shape, *noise, cohort, self._rounds[0].round)

    def _request(
        self, rows: RoundRows, label: Label, share: int, fixed_point: FixedPoint | None
    ) -> GradientRequest:
        """Returns the request about `label` to a client that adds 1/`share` of the noise."""
        settings, layout, groups = self.settings, self.layout, rows.groups_of(label)
        return GradientRequest(
            round=rows.round,
            label=label,
            plan=settings.plan,
            objective=settings.objective,
            view=settings.view,
            rows=rows.seen[groups].flatten(0, 1),
            row_labels=layout.row_labels(rows.kinds[groups])[:, : layout.group_rows].flatten(),
            potentials=rows.parts.potentials[groups].flatten(),
            self_gradient=rows.parts.inside[groups].flatten(0, 1),
            run=settings.run,
            share=share,
            fixed_point=fixed_point,
        )
