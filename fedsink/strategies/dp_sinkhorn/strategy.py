"""Central mode: DP-Sinkhorn (Cao et al. 2021, Algorithm 1) over federated clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedsink.data.views import view_from_dict
from fedsink.errors import ClientError
from fedsink.models import Generator
from fedsink.privacy import Stream
from fedsink.privacy.mechanisms.clipping import sampled_clip
from fedsink.protocol.exchange import Broadcast, Content, Exchange, Reduction, Sum
from fedsink.protocol.gradient import GradientRequest, checked, pack_requests, unpack_replies
from fedsink.protocol.tree_sum import BLOCK, TreeSum
from fedsink.strategies.base import RoundStrategy, failure
from fedsink.strategies.dp_sinkhorn.layout import Label
from fedsink.strategies.dp_sinkhorn.rows import Block, Labels, Rows
from fedsink.strategies.dp_sinkhorn.settings import DPSinkhornSettings
from fedsink.strategies.self_term import SelfParts, self_term
from fedsink.strategies.trainer import Trainer


class CentralRounds(RoundStrategy):
    """What a run of DP-Sinkhorn reports and samples from, whoever plays its rounds.

    Args:
        settings: public parameters.
        trainer: of the generator.
        key: keys the pictures' latents (not secret).
        together: rounds in one exchange of messages.
    """

    def __init__(
        self, settings: DPSinkhornSettings, trainer: Trainer, key: bytes, together: int
    ) -> None:
        super().__init__(settings.plan.rounds, settings.clients, together)
        self.settings, self.trainer, self.classes = settings, trainer, settings.objective.classes
        self._key = key

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

    def epsilon_bound(self) -> float:
        """The same, or an upper bound on it by Rényi DP while rounds are left."""
        return self.settings.plan.epsilon_bound_after(self.round, self.settings.accountant)

    def latent_stream(self, purpose: str, number: int) -> Stream:
        """The server's latents of one round."""
        return Stream(self._key, purpose, number)


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

    def __init__(self, settings: DPSinkhornSettings, generator: Generator, key: bytes) -> None:
        messages = -(-settings.plan.rounds // settings.uses_per_message)
        trainer = Trainer(generator, settings.optimizer, messages)
        super().__init__(settings, trainer, key, settings.uses_per_message)
        self.view, self.layout = view_from_dict(settings.view), settings.layout
        self.generated = Rows(generator, self.view, self.layout, key)
        clip = sampled_clip(settings.plan.clip)
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
        return Exchange("train.gradient", str(server_round), list(self._asked.values()))

    def _broadcast(self, labels: Labels, nodes: dict[int, int]) -> Broadcast:
        asked = list(zip(self._blocks, labels, strict=True))
        # Who is asked the same is one cohort: its replies are added up, and so is its noise.
        share = self.settings.sharers(next(iter(nodes)))
        requests = [self._about(block, label, share) for block, label in asked]
        shape = (len(requests), *self._blocks[0].shape)
        content = Content(lambda: checked(requests), lambda: pack_requests(requests))
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
        sums = self._sums(replies, asked)
        means = torch.stack([block.means(sums, place) for place, block in enumerate(blocks)])
        scale = self.settings.gradient_scale
        gradient = torch.cat(
            [
                self.layout.gradient(mean, block.parts.outside, scale)
                for mean, block in zip(means, blocks, strict=True)
            ]
        )
        metrics = self.settings.signal_to_noise(float(means.square().sum()), len(blocks))
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

    def _sums(self, replies: Iterable[Message] | Reduction, asked: str) -> dict[Labels, Sum]:
        """The sums of the replies to each broadcast, whether or not the grid made them.

        Raises:
            ClientError: a client failed, or answered with something else.
        """
        if isinstance(replies, Reduction):
            return self._added_up(replies, asked)
        received = self.replies_by_client(replies, asked, range(self.clients))
        sums = {}
        for labels, broadcast in self._asked.items():
            total, clients = TreeSum(), list(broadcast.nodes)
            for block in range(-(-len(clients) // BLOCK)):
                gradients = [
                    self._checked(client, received[client], asked, broadcast.shape)
                    for client in clients[block * BLOCK : (block + 1) * BLOCK]
                ]
                total.add_block(block, torch.stack(gradients))
            sums[labels] = Sum(total.total(), len(clients))
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
