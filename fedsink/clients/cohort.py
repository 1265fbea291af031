"""Many virtual clients answer one request at once: what each would have answered alone.

For simulations. The draws and the noise of every client are keyed as ever; what they share is
the reading of the request, one batch of draws, one transport problem and one batch of noise. The
per-client path (`app.client_app`) is what this is tested against, and what answers where clients
cannot share a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from flwr.app import RecordDict
from torch import Tensor

from fedsink.clients.app import failure_code
from fedsink.clients.gradient import client_totals
from fedsink.clients.node import Node, open_node
from fedsink.clients.pool import Pool
from fedsink.clients.releases import Admitted
from fedsink.clients.settings import NodeSettings
from fedsink.protocol import GradientRequest
from fedsink.protocol.exchange import BLOCK, Answers
from fedsink.protocol.gradient import unpack_requests
from fedsink.protocol.records import digest

log = logging.getLogger("fedsink.clients")

_ANSWERED = "train.gradient"

# Values computed at once: their float64 temporaries stay in cache or near it, and memory does
# not grow with the number of clients.
_BATCH = 1 << 17


@dataclass(frozen=True)
class _Message:
    """What all clients of a broadcast were asked."""

    requests: list[GradientRequest]
    digest: bytes

    @property
    def values(self) -> int:
        """How many numbers one reply holds."""
        return sum(request.rows.numel() for request in self.requests)


@dataclass(frozen=True)
class _Waiting:
    """A client whose charge is committed."""

    node: Node
    admitted: Admitted


class NodeCohort:
    """Answers for virtual clients whose messages share one content.

    Guarantees:
        - Every client's policy and ledger are asked, and its charge is committed, before
          anything is computed from its records.
        - A reply is that of the per-client path, with the same noise, up to rounding before it.
        - A client that cannot answer keeps no other from answering.

    Args:
        settings: the clients' own settings.
    """

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._pools: dict[tuple[int, ...], Pool] = {}

    def handles(self, message_type: str) -> bool:
        """Whether messages of this type are answered together."""
        return message_type == _ANSWERED

    def answers(self, content: RecordDict, clients: Sequence[int]) -> Iterator[Answers]:
        """The clients' gradients, (k, uses, n, D), in batches of consecutive clients.

        Args:
            content: a request as the server packed it.
            clients: increasing numbers.
        """
        torch.set_num_threads(self._settings.threads)
        try:
            message = _Message(unpack_requests(content), digest(_ANSWERED, content))
        except Exception as error:
            yield _failed(dict.fromkeys(clients, failure_code(error, clients[0])))
            return
        waiting, failures = self._admit(message, clients)
        if failures:
            yield _failed(failures)
        if not waiting:
            return
        try:
            pool = self._pool([one.node for one in waiting])
        except Exception as error:
            log.warning("clients are answered one by one: %s", error)
            yield _one_by_one(message, waiting)
            return
        step = BLOCK * max(1, _BATCH // (BLOCK * message.values))
        for start in range(0, len(waiting), step):
            yield self._batch(message, pool, slice(start, start + step), waiting)

    def _admit(
        self, message: _Message, clients: Sequence[int]
    ) -> tuple[list[_Waiting], dict[int, int]]:
        waiting: list[_Waiting] = []
        failures: dict[int, int] = {}
        for client in clients:
            try:
                node = open_node(self._settings, client)
                waiting.append(_Waiting(node, node.admit(message.requests, message.digest)))
            except Exception as error:
                failures[client] = failure_code(error, client)
        return waiting, failures

    def _pool(self, nodes: list[Node]) -> Pool:
        """The records of these clients; a schedule asks the same ones together again and again."""
        key = tuple(node.client for node in nodes)
        if key not in self._pools:
            # A client is in one pool: the others that it was in are of no use any more.
            mine = set(key)
            self._pools = {k: pool for k, pool in self._pools.items() if mine.isdisjoint(k)}
            self._pools[key] = Pool([node.shard for node in nodes])
        return self._pools[key]

    def _batch(
        self, message: _Message, pool: Pool, part: slice, everyone: list[_Waiting]
    ) -> Answers:
        waiting = everyone[part]
        if any(one.admitted.stored is not None for one in waiting):
            return _one_by_one(message, waiting)
        try:
            uses = [
                _release(request, use, pool, part, waiting)
                for use, request in enumerate(message.requests)
            ]
        except Exception as error:
            # Whose fault it is shows when each is asked alone. Their charges stand.
            log.warning("a batch of clients is answered one by one: %s", error)
            return _one_by_one(message, waiting)
        rounds = [str(request.round) for request in message.requests]
        computed = torch.stack(uses, dim=1)
        for one, reply in zip(waiting, computed, strict=True):
            # What is stored now is what was computed now: there was nothing before.
            one.admitted.release(dict(zip(rounds, reply, strict=True)))
        return Answers([one.node.client for one in waiting], computed)


def _release(
    request: GradientRequest, use: int, pool: Pool, part: slice, waiting: list[_Waiting]
) -> Tensor:
    """One use's noised gradients of all clients of a part of the pool, (k, n, D)."""
    streams = [one.node.streams(request, one.admitted.digests[use]) for one in waiting]
    samples = [stream("sample") for stream in streams]
    totals = client_totals([request] * len(streams), pool, part, samples)
    return request.own_plan.release_each(totals, [stream("noise") for stream in streams])


def _one_by_one(message: _Message, waiting: Sequence[_Waiting]) -> Answers:
    replies: dict[int, Tensor] = {}
    failures: dict[int, int] = {}
    for node in (one.node for one in waiting):
        try:
            answered = node.gradients(message.requests, message.digest)
            replies[node.client] = torch.stack([reply.gradient for reply in answered])
        except Exception as error:
            failures[node.client] = failure_code(error, node.client)
    if not replies:
        return _failed(failures)
    return Answers(list(replies), torch.stack(list(replies.values())), failures)


def _failed(failures: dict[int, int]) -> Answers:
    return Answers((), torch.zeros(0), failures)
