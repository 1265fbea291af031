"""Central mode: DP-Sinkhorn (Cao et al. 2021, Algorithm 1) over federated clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from torch import Tensor

from fedsink.data.views import view_from_dict
from fedsink.errors import ClientError
from fedsink.models import Generator
from fedsink.privacy.clips import ClipOfRecords
from fedsink.protocol.dp_sinkhorn import GradientRequest, checked, packed_requests
from fedsink.protocol.exchange import Broadcast, Content, Exchange
from fedsink.strategies.central.rounds import CentralRounds
from fedsink.strategies.dp_sinkhorn.layout import Label
from fedsink.strategies.dp_sinkhorn.rows import Block, Labels, Rows
from fedsink.strategies.dp_sinkhorn.settings import DPSinkhornSettings
from fedsink.strategies.self_term import SelfParts, self_term
from fedsink.strategies.trainer import Trainer


class DPSinkhorn(CentralRounds):
    """Generate X, collect the clients' noised gradients at X, step the generator.

    In round t client k is asked about the class (k + t) mod C (class schedule), or about all
    classes at once (joint). Replies about the same rows are averaged over clients.

    One exchange of messages holds U rounds of the plan (`uses_per_message`): message r asks for
    the rounds U(r−1)+1, …, min(Ur, T), each with rows of its own for the class its schedule
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
    settings: DPSinkhornSettings

    def __init__(self, settings: DPSinkhornSettings, generator: Generator, key: bytes) -> None:
        messages = -(-settings.plan.rounds // settings.uses_per_message)
        trainer = Trainer(generator, settings.optimizer, messages)
        super().__init__(settings, trainer, key, settings.uses_per_message)
        self.view, self.layout = view_from_dict(settings.view), settings.layout
        self.generated = Rows(generator, self.view, self.layout, key)
        clip = ClipOfRecords.expect(settings.plan.clip)
        self.self_term = self_term(
            settings.self_term, settings.objective, clip, self.layout, self._like
        )
        self._points: Tensor | None = None
        self._blocks: list[Block] = []
        self._asked: dict[Labels, Broadcast] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Generate this message's rows and ask every client for its gradients at them."""
        nodes = self.discover(grid)
        if self.round == 0:
            self.self_term.fill(self.generated.untrained)
        self._points, self._blocks = self._generate(self._rounds(server_round))
        asked = list(zip(*(self.layout.asked(block.round) for block in self._blocks), strict=True))
        # Clients that are asked about the same classes share one content.
        sharing: dict[Labels, dict[int, int]] = {}
        for client, node in nodes.items():
            sharing.setdefault(asked[client], {})[client] = node
        self._asked = {labels: self._broadcast(labels, who) for labels, who in sharing.items()}
        needed = self.quorum.of(self.clients)
        return Exchange("train.dp_sinkhorn", str(server_round), list(self._asked.values()), needed)

    def _broadcast(self, labels: Labels, nodes: dict[int, int]) -> Broadcast:
        asked = list(zip(self._blocks, labels, strict=True))
        # Who is asked the same is one cohort: its replies are added up, and so is its noise.
        share = self.settings.sharers(next(iter(nodes)))
        requests = [self._about(block, label, share) for block, label in asked]
        shape = (len(requests), *self._blocks[0].shape)
        content = Content(lambda: checked(requests), lambda: packed_requests(requests))
        return Broadcast(content, nodes, shape)

    def _about(self, block: Block, label: Label, share: int) -> GradientRequest:
        """What a client is asked about `label`, with the noise spread over `share` clients."""
        settings, layout = self.settings, self.layout
        groups = layout.groups_of(block.position(label))
        return GradientRequest(
            block.round,
            label,
            settings.plan,
            settings.objective,
            settings.view,
            block.seen[groups].flatten(0, 1),
            layout.row_labels(block.kinds[groups])[:, : layout.group_rows].flatten(),
            block.parts.potentials[groups].flatten(),
            block.parts.inside[groups].flatten(0, 1),
            settings.run,
            share,
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the replies per round and class, add the self term, take one optimiser step."""
        if self._points is None:
            raise ClientError(f"Replies for round {server_round} came before its request.")
        blocks = self._blocks
        first, last = blocks[0].round, blocks[-1].round
        where = f"rounds {first} to {last}" if last > first else f"round {first}"
        asked = f"computing gradients in {where}"
        sums = self._sums(self._asked, replies, asked, range(self.clients))
        means, answers = zip(
            *(block.means(sums, place) for place, block in enumerate(blocks)), strict=True
        )
        scale = self.settings.gradient_scale
        gradient = torch.cat(
            [
                block.gradient(mean, counts, scale)
                for block, mean, counts in zip(blocks, means, answers, strict=True)
            ]
        )
        energy = float(torch.stack(means).square().sum())
        counts = [count for of_block in answers for count in of_block if count]
        metrics = self.settings.signal_to_noise(
            energy, len(blocks), counts if self.absent else None
        ) | self._of_mean(min(counts))
        self.trainer.step(self._points, gradient / len(blocks), server_round)
        for block in blocks:
            self.self_term.remember(block.seen, block.kinds)
        self.round = last
        loss = float((gradient.square().sum() / len(blocks)).sqrt())
        return None, MetricRecord({"loss": loss, **metrics})

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Weights, moments, average and history."""
        tensors, values = self.trainer.state()
        return tensors | self.self_term.state(), values

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.trainer.load_state(tensors, values)
        self.self_term.load_state(tensors)

    def _rounds(self, message: int) -> range:
        """The plan's rounds that one message asks for."""
        per_message = self.rounds_per_message
        rounds = range(per_message * (message - 1) + 1, min(per_message * message, self.rounds) + 1)
        if not rounds:
            raise ClientError(
                f"The plan has {self.rounds} rounds in {self.messages} messages, and message "
                f"{message} was to be sent: nobody accounted for it."
            )
        return rounds

    @property
    def _like(self) -> Tensor:
        """A tensor of the rows' type, device and dimension."""
        return torch.zeros(0, self.view.dimension)

    def _generate(self, rounds: Sequence[int]) -> tuple[Tensor, list[Block]]:
        """All rows of one message with their graph, and a block of them for each round."""
        layout = self.layout
        kinds = [layout.group_labels(t) for t in rounds]
        drawn = [self.generated.latents("train", t, k) for t, k in zip(rounds, kinds, strict=True)]
        z, labels = (torch.cat(parts) for parts in zip(*drawn, strict=True))
        points = self.generated(z, labels)
        # Requests and self term work on the CPU, wherever the generator lives.
        rows = points.detach().cpu().unflatten(0, (len(rounds) * layout.groups, -1))
        parts = self.self_term(rows, torch.cat(kinds), labels.unflatten(0, rows.shape[:2]))
        of_rounds = zip(*(v.split(layout.groups) for v in (rows, *parts)), strict=True)
        blocks = [
            Block(t, layout, own_kinds, own_rows, SelfParts(*own_parts))
            for t, own_kinds, (own_rows, *own_parts) in zip(rounds, kinds, of_rounds, strict=True)
        ]
        return points, blocks
