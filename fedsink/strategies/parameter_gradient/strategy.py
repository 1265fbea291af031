"""Central mode, ablation: noise on the gradient of the weights instead of the images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedsink.errors import ClientError
from fedsink.models import Generator
from fedsink.models.weights import flat_weights
from fedsink.privacy import BatchClip
from fedsink.privacy.unprotected import UNREACHED
from fedsink.protocol.exchange import Broadcast, Content, Exchange
from fedsink.protocol.parameter_gradient import ParameterReply, ParameterRequest, architecture_of
from fedsink.strategies.central.settings import signal_to_noise
from fedsink.strategies.dp_sinkhorn.layout import Label
from fedsink.strategies.dp_sinkhorn.rows import Block, Labels
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhorn
from fedsink.strategies.parameter_gradient.settings import ParameterGradientSettings
from fedsink.strategies.self_term import HistoryField, self_term
from fedsink.transport.clipped_sums import clipped_pullback


class ParameterGradient(DPSinkhorn):
    """Send the generator, collect the clients' noised gradients of its weights, step it.

    The ablation "parameter-gradient perturbation" of Cao et al. 2021 (Table 2): rows, loss,
    schedule, accounting and optimiser are those of `DPSinkhorn`; the mechanism is applied one
    step of the chain rule later, to JᵀG in P coordinates instead of G in n·D.

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
        self._requests: dict[Labels, ParameterRequest] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Generate this round's rows and ask every client for its gradient of the weights."""
        self._requests = {}
        super().configure_train(server_round, arrays, config, grid)
        needed = self.quorum.of(self.clients)
        return Exchange(
            "train.parameter_gradient", str(server_round), list(self._asked.values()), needed
        )

    def _broadcast(self, labels: Labels, nodes: dict[int, int]) -> Broadcast:
        ((block,), (label,)) = self._blocks, labels
        request = self._request(block, label, self.settings.sharers(next(iter(nodes))))
        self._requests[labels] = request
        content = Content(lambda: [request], request.to_record)
        return Broadcast(content, nodes, (1, len(request.weights)))

    def _request(self, block: Block, label: Label, share: int) -> ParameterRequest:
        layout, generator = self.layout, self.trainer.generator
        z, labels = self.generated.latents("train", block.round, block.kinds)
        places = torch.arange(len(labels)).unflatten(0, block.rows.shape[:2])
        groups, n = layout.groups_of(block.position(label)), layout.group_rows
        seen, rest = places[groups, :n].flatten(), places[groups, n:].flatten()
        gradients = block.parts.outside[groups, n:].flatten(0, 1)
        if generator.uses_batch_statistics:  # every row of the batch shapes these
            others = torch.cat([places[: groups.start], places[groups.stop :]]).flatten()
            rest = torch.cat([rest, others])
            zeros = gradients.new_zeros(len(others), self.view.dimension)
            gradients = torch.cat([gradients, zeros])
        return ParameterRequest(
            self._about(block, label, share),
            self._architecture,
            flat_weights(generator).detach().cpu(),
            z.cpu()[torch.cat([seen, rest])],
            labels[rest],
            gradients.to(torch.float32),
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the replies per class, add the self term, take one optimiser step."""
        if not self._requests:
            raise ClientError(f"Replies for round {server_round} came before its request.")
        (block,) = self._blocks
        doing = f"computing gradients in round {block.round}"
        sums = self._sums(self._asked, replies, doing, range(self.clients))
        per_record = self.settings.plan.clip.per_record
        scale = self.settings.nominal_batch if per_record else 1.0
        gradient = torch.zeros(len(next(iter(self._requests.values())).weights)).double()
        energy = noise = 0.0
        for labels, partial in sums.items():
            mean = partial.total[0] / partial.clients
            energy += float(mean.square().sum())
            noise += len(mean) * self.settings.mean_noise_variance / partial.clients
            gradient += mean / scale
            if per_record:
                gradient += self._own_field(self._requests[labels], labels, block)
        self.trainer.step(flat_weights(self.trainer.generator), gradient, server_round)
        self.self_term.remember(block.seen, block.kinds)
        self.round = block.round
        metrics = {"loss": float(gradient.norm())}
        metrics |= self._of_mean(min(partial.clients for partial in sums.values()))
        return None, MetricRecord({**metrics, **signal_to_noise(energy, noise)})

    def _own_field(
        self, request: ParameterRequest, labels: Sequence[Label], block: Block
    ) -> Tensor:
        """−(1/|S|) Σ_s clip(Jᵀg_s, Δ) over each group's remembered rows s, (P,) float64."""
        if not isinstance(self.self_term, HistoryField):
            raise TypeError("clip=record has a self term of remembered rows.")
        asked = request.gradient
        kinds = block.kinds[self.layout.groups_of(block.position(labels[0]))]
        past = self.self_term.past(kinds)
        pull = request.pullback()
        total = clipped_pullback(
            asked.rows,
            past.flatten(0, 1),
            asked.potentials,
            asked.objective.lam,
            asked.plan.clip.bound,
            lambda gradient: pull(request.padded(gradient)),
            asked.row_labels.unsqueeze(-1) == kinds.repeat_interleave(past.shape[1]),
        )
        return -total / past.shape[1]

    def _checked(
        self, client: int, record: RecordDict, asked: str, expected: tuple[int, ...]
    ) -> Tensor:
        """The gradient of one client, (1, P), if it is finite and of the weights it was sent."""
        try:
            gradient = ParameterReply.from_record(record).gradient
        except ValueError as error:
            raise ClientError(f"While {asked}, client {client} answered: {error}") from error
        if tuple(gradient.shape) != expected[1:] or not bool(gradient.isfinite().all()):
            raise ClientError(
                f"While {asked}, client {client} answered with a gradient of shape "
                f"{tuple(gradient.shape)}; expected finite values of shape {expected[1:]}."
            )
        return gradient.unsqueeze(0)
