"""Central mode: DP-Sinkhorn (Cao et al. 2021, Algorithm 1) over federated clients."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedsink.data.views import view_from_dict
from fedsink.errors import ClientError
from fedsink.models import Generator
from fedsink.privacy import Stream
from fedsink.protocol.exchange import BLOCK, Broadcast, Exchange, Reduction, Sum
from fedsink.protocol.gradient import pack_requests, unpack_replies
from fedsink.protocol.tree_sum import TreeSum
from fedsink.strategies.base import RoundStrategy, failure
from fedsink.strategies.block import Block, Group, Labels
from fedsink.strategies.dp_sinkhorn.settings import DPSinkhornSettings
from fedsink.strategies.self_term import Label, SelfPart, self_term
from fedsink.strategies.trainer import Trainer


class DPSinkhorn(RoundStrategy):
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

    def __init__(self, settings: DPSinkhornSettings, generator: Generator, key: bytes) -> None:
        super().__init__(settings.plan.rounds, settings.clients, settings.uses_per_message)
        self.settings = settings
        self.trainer = Trainer(generator, settings.optimizer, self.messages)
        self.view = view_from_dict(settings.view)
        self.self_term = self_term(settings.self_term, settings.objective, settings.plan.clip)
        self.classes = settings.objective.classes
        self._per_class = settings.plan.clip.name == "record" or settings.plan.schedule.classes > 1
        self._key = key
        self._points: Tensor | None = None
        self._blocks: list[Block] = []
        self._asked: dict[Labels, Broadcast] = {}

    @property
    def generator(self) -> Generator:
        """The averaged generator."""
        return self.trainer.averaged

    def render(self, images: Tensor) -> Tensor:
        """Images as they are."""
        return images

    def label_prior(self) -> Tensor:
        """Uniform: class frequencies are private."""
        return torch.full((self.classes,), 1.0 / self.classes)

    def epsilon_so_far(self) -> float:
        """ε of the rounds run so far, under the run's accountant."""
        return self.settings.plan.epsilon_after(self.round, self.settings.accountant)

    def latent_stream(self, purpose: str, number: int) -> Stream:
        """The server's latents of one round."""
        return Stream(self._key, purpose, number)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Generate this message's rows and ask every client for its gradients at them."""
        nodes = self.discover(grid)
        if self.round == 0:
            self._fill_history()
        self._points, self._blocks = self._generate(self._rounds(server_round), list(nodes))
        # Clients that are asked about the same classes share one content.
        sharing: dict[Labels, dict[int, int]] = {}
        for client, node in nodes.items():
            labels = tuple(block.asked[client] for block in self._blocks)
            sharing.setdefault(labels, {})[client] = node
        self._asked = {labels: self._broadcast(labels, who) for labels, who in sharing.items()}
        return Exchange("train.gradient", str(server_round), list(self._asked.values()))

    def _broadcast(self, labels: Labels, nodes: dict[int, int]) -> Broadcast:
        asked = list(zip(self._blocks, labels, strict=True))
        # Who is asked the same is one cohort: its replies are added up, and so is its noise.
        share = self.settings.sharers(next(iter(nodes)))
        requests = [block.request(label, self.settings, share) for block, label in asked]
        shape = (len(requests), *self._blocks[0].shape(labels[0]))
        return Broadcast(pack_requests(requests), nodes, shape)

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
        sums = self._sums(replies, asked)
        scale = self.settings.nominal_batch if self.settings.plan.clip.name == "record" else 1.0
        means = [block.means(sums, place) for place, block in enumerate(blocks)]
        gradient = torch.cat([b.gradient(m, scale) for b, m in zip(blocks, means, strict=True)])
        metrics = self._signal_to_noise(means, len(blocks[0].asked))
        self.trainer.step(self._points, gradient / len(blocks), server_round)
        for block in blocks:
            for group in block.groups:
                self.self_term.remember(block.seen(group), group.label)
        self.round = last
        loss = float((gradient.square().sum() / len(blocks)).sqrt())
        return None, MetricRecord({"loss": loss, **metrics})

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Weights, moments, average and history."""
        tensors, values = self.trainer.state()
        tensors |= {f"history.{k}": v for k, v in self.self_term.state().items()}
        return tensors, values

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.trainer.load_state(tensors, values)
        prefix = "history."
        self.self_term.load_state(
            {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
        )

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

    def _labels(self, group: Label) -> Tensor:
        """Labels of one group's rows, the same in every round."""
        rows = self.settings.rows
        if group is not None:
            return torch.full((rows,), group)
        return torch.arange(self.classes).repeat_interleave(rows)

    def _group_labels(self, asked: set[Label]) -> list[Label]:
        if not self._per_class:
            return [None]
        if asked == {None}:
            return list(range(self.classes))
        labels: list[Label] = [*sorted(label for label in asked if label is not None)]
        return labels

    def _latents(
        self, purpose: str, number: int, groups: list[Label]
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Latents and labels of fresh rows of these groups, and each group's own labels."""
        own = [self._labels(group) for group in groups]
        labels = torch.cat([torch.cat([g, g[: self.self_term.extra_rows(len(g))]]) for g in own])
        stream = self.latent_stream(purpose, number)
        return self.trainer.generator.latent(len(labels), stream), labels, own

    def _generate(self, rounds: Iterable[int], clients: list[int]) -> tuple[Tensor, list[Block]]:
        """All rows of one message with their graph, and a block of them for each round."""
        schedule = self.settings.plan.schedule
        asked = [{client: schedule.label(client, t) for client in clients} for t in rounds]
        groups = [self._group_labels(set(of_round.values())) for of_round in asked]
        drawn = [self._latents("train", t, g) for t, g in zip(rounds, groups, strict=True)]
        z, labels = (torch.cat(parts) for parts in list(zip(*drawn, strict=True))[:2])
        points = self.view(self.trainer.generator(z, labels))
        # Requests and self term work on the CPU, wherever the generator lives.
        rows = points.detach().cpu().unflatten(0, (sum(map(len, groups)), -1))
        of_rounds = rows.split([len(of_round) for of_round in groups])
        row_labels = torch.stack([labels for _, _, own in drawn for labels in own])
        every = [label for of_round in groups for label in of_round]
        found = iter(zip(every, row_labels, self.self_term(rows, every, row_labels), strict=True))
        blocks = [
            Block(t, of_round, _groups(part, islice(found, len(part))), part.flatten(0, 1))
            for t, of_round, part in zip(rounds, asked, of_rounds, strict=True)
        ]
        return points, blocks

    def _fill_history(self) -> None:
        """Before the first round, history is what the untrained generator makes."""
        groups: list[Label] = list(range(self.classes)) if self._per_class else [None]
        for number in range(self.self_term.memory):
            z, labels, own = self._latents("history", number, groups)
            with torch.no_grad():
                points = self.view(self.trainer.generator(z, labels))
            for rows, group in zip(points.split([len(g) for g in own]), groups, strict=True):
                self.self_term.remember(rows.cpu(), group)

    def _sums(self, replies: Iterable[Message] | Reduction, asked: str) -> dict[Labels, Sum]:
        """The sums of the replies to each broadcast, whether or not the grid made them.

        Raises:
            ClientError: a client failed, or answered with something else.
        """
        if isinstance(replies, Reduction):
            return self._added_up(replies, asked)
        received = self.replies_by_client(replies, asked, self._blocks[0].asked)
        sums = {}
        for labels, broadcast in self._asked.items():
            total = TreeSum()
            for place, client in enumerate(broadcast.nodes):
                gradients = self._checked(client, received[client], asked, broadcast.shape)
                total.add(place // BLOCK, gradients)
            sums[labels] = Sum(total.total(), len(broadcast.nodes))
        return sums

    def _added_up(self, reduction: Reduction, asked: str) -> dict[Labels, Sum]:
        for client, code in sorted(reduction.failures.items()):
            raise failure(code, asked, f"client {client}")
        sums = {}
        for (labels, broadcast), one in zip(self._asked.items(), reduction.sums, strict=True):
            if one is None or one.clients != len(broadcast.nodes):
                raise ClientError(f"While {asked}, not every client's answer was added up.")
            sums[labels] = one
        return sums

    def _checked(
        self, client: int, record: RecordDict, asked: str, expected: tuple[int, ...]
    ) -> Tensor:
        """The gradients of one client, if they are finite and at the rows that it was sent."""
        try:
            replies = unpack_replies(record)
        except ValueError as error:
            raise ClientError(f"While {asked}, client {client} answered: {error}") from error
        if len(replies) != expected[0]:
            raise ClientError(
                f"While {asked}, client {client} answered with {len(replies)} gradients; "
                f"expected {expected[0]}."
            )
        for reply in replies:
            shape = tuple(reply.gradient.shape)
            if shape != expected[1:] or not bool(reply.gradient.isfinite().all()):
                raise ClientError(
                    f"While {asked}, client {client} answered with a gradient of shape {shape}; "
                    f"expected finite values of shape {expected[1:]}."
                )
        return torch.stack([reply.gradient for reply in replies])

    def _signal_to_noise(self, means: list[dict[int, Tensor]], clients: int) -> dict[str, float]:
        """‖signal‖/‖noise‖ of the averaged gradient, from the release alone; {} without noise."""
        if self.settings.plan.noise_std == 0.0:
            return {}
        energy, noise = 0.0, 0.0
        for block, of_block in zip(self._blocks, means, strict=True):
            energy += sum(float(mean.square().sum()) for mean in of_block.values())
            entries = sum(mean.numel() for mean in of_block.values())
            per_group = clients / max(1, len(set(block.asked.values())))
            noise += entries * self.settings.mean_noise_variance / per_group
        return {"signal_to_noise": max(0.0, energy / noise - 1.0) ** 0.5}


def _groups(rows: Tensor, parts: Iterable[tuple[Label, Tensor, SelfPart]]) -> list[Group]:
    """The groups of one round, in the order of its rows (G, n + n′, D)."""
    size = rows.shape[1]
    return [
        Group(label, slice(number * size, (number + 1) * size), row_labels, part)
        for number, (label, row_labels, part) in enumerate(parts)
    ]
