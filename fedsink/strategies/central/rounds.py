"""What every method of the central mode does alike: it adds up replies, and knows their ε."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from fedsink.errors import ClientError
from fedsink.models import Generator
from fedsink.privacy import Stream
from fedsink.protocol.dp_sinkhorn import unpack_replies
from fedsink.protocol.exchange import Broadcast, Reduction, Sum
from fedsink.protocol.tree_sum import BLOCK, TreeSum
from fedsink.strategies.base import RoundStrategy, failure
from fedsink.strategies.central.settings import CentralSettings
from fedsink.strategies.trainer import Trainer

Key = TypeVar("Key")
"""What tells apart the broadcasts of one exchange."""


class CentralRounds(RoundStrategy):
    """A run of the central mode: what it reports and samples from, whoever plays its rounds.

    Args:
        settings: public parameters.
        trainer: of the generator.
        key: keys the pictures' latents (not secret).
        together: rounds in one exchange of messages.
    """

    def __init__(
        self, settings: CentralSettings, trainer: Trainer, key: bytes, together: int = 1
    ) -> None:
        super().__init__(settings.plan.rounds, settings.clients, together, settings.quorum)
        self.settings, self.trainer = settings, trainer
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
        classes = self.trainer.generator.classes
        return torch.full((classes,), 1.0 / classes)

    def epsilon_so_far(self) -> float:
        """ε of the rounds run so far, under the run's accountant."""
        return self.settings.plan.epsilon_after(self.round, self.settings.accountant)

    def epsilon_bound(self) -> float:
        """The same, or an upper bound on it by Rényi DP while rounds are left."""
        return self.settings.plan.epsilon_bound_after(self.round, self.settings.accountant)

    def latent_stream(self, purpose: str, number: int) -> Stream:
        """The server's latents of one round."""
        return Stream(self._key, purpose, number)

    def _sums(
        self,
        asked: Mapping[Key, Broadcast],
        replies: Iterable[Message] | Reduction,
        doing: str,
        everybody: Sequence[int],
    ) -> dict[Key, Sum]:
        """The sums of the replies to each broadcast that somebody answered.

        Args:
            asked: who was asked what; nobody is in two of them.
            replies: of those who were asked, or what a grid added them up to.
            doing: what they were asked to do, for errors.
            everybody: all clients whose round it is, also those that could not be reached.

        Raises:
            ClientError: fewer answered than the quorum, or with something else.
        """
        if isinstance(replies, Reduction):
            return _added_up(asked, replies, doing)
        shapes = {client: b.shape for b in asked.values() for client in b.nodes}

        def read(client: int, record: RecordDict) -> Tensor:
            return self._checked(client, record, doing, shapes[client])

        received = self.answers(replies, doing, everybody, read)
        sums = {key: _sum(broadcast, received) for key, broadcast in asked.items()}
        return {key: part for key, part in sums.items() if part.clients}

    def _of_mean(self, least: int) -> dict[str, float]:
        """The metric `mean_noise_std` of a round that somebody missed: σS/√m.

        Args:
            least: m, the fewest answers that make up a mean.
        """
        return {"mean_noise_std": self.settings.noise_std(0) / least**0.5} if self.absent else {}

    def _checked(
        self, client: int, record: RecordDict, doing: str, expected: tuple[int, ...]
    ) -> Tensor:
        """The gradients of one client, if they are finite and at the rows that it was sent."""
        try:
            replies = unpack_replies(record)
        except ValueError as error:
            raise ClientError(f"While {doing}, client {client} answered: {error}") from error
        if len(replies) != expected[0]:
            raise ClientError(
                f"While {doing}, client {client} answered with {len(replies)} gradients; "
                f"expected {expected[0]}."
            )
        for reply in replies:
            shape = tuple(reply.gradient.shape)
            if shape != expected[1:] or not bool(reply.gradient.isfinite().all()):
                raise ClientError(
                    f"While {doing}, client {client} answered with a gradient of shape {shape}; "
                    f"expected finite values of shape {expected[1:]}."
                )
        return torch.stack([reply.gradient for reply in replies])


def _sum(broadcast: Broadcast, received: Mapping[int, Tensor]) -> Sum:
    total = TreeSum()
    clients = [client for client in broadcast.nodes if client in received]
    for block in range(-(-len(clients) // BLOCK)):
        gradients = [received[client] for client in clients[block * BLOCK : (block + 1) * BLOCK]]
        total.add_block(block, torch.stack(gradients))
    return Sum(total.total() if clients else torch.zeros(0), len(clients))


def _added_up(asked: Mapping[Key, Broadcast], reduction: Reduction, doing: str) -> dict[Key, Sum]:
    for client, code in sorted(reduction.failures.items()):
        raise failure(code, doing, f"client {client}")
    sums = {}
    for (key, broadcast), part in zip(asked.items(), reduction.sums, strict=True):
        if part is None or part.clients != len(broadcast.nodes):
            raise ClientError(f"While {doing}, not every client's answer was added up.")
        sums[key] = part
    return sums
