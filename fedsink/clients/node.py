"""One virtual client on one machine: its shard, its key, its journal."""

from __future__ import annotations

from functools import cache, cached_property, lru_cache

import torch

from fedsink.clients.gradient import client_gradient
from fedsink.clients.journal import ReleaseJournal, ReleaseRefusedError
from fedsink.clients.privatizer import privatize
from fedsink.clients.settings import NodeSettings
from fedsink.clients.shard import Shard
from fedsink.data.partition import partition
from fedsink.data.sources import load
from fedsink.privacy import Stream
from fedsink.protocol import GradientReply, GradientRequest, PrivatizeReply, PrivatizeRequest


class Node:
    """Answers requests about one shard.

    Args:
        settings: the owner's settings.
        client: this client's number in the simulation, from 0.

    Raises:
        ValueError: there is no such client.
    """

    def __init__(self, settings: NodeSettings, client: int) -> None:
        if not 0 <= client < settings.clients:
            raise ValueError(f"There is no client {client}: they are 0 to {settings.clients - 1}.")
        self.settings = settings
        self.client = client
        self._key = settings.key()
        self._privatized: tuple[bytes, torch.Tensor, torch.Tensor] | None = None

    @cached_property
    def shard(self) -> Shard:
        """The private records, loaded at the first request."""
        records = load(self.settings.data, "train")
        return Shard(*records.take(_deal(self.settings)[self.client]))

    @cached_property
    def _journal(self) -> ReleaseJournal | None:
        return _open_journal(self.settings) if self.settings.journal else None

    def gradient(self, request: GradientRequest, digest: bytes) -> GradientReply:
        """Answer a gradient request.

        Raises:
            ReleaseRefusedError: the round was answered before for another request, or the
                request names a class that the schedule does not give this client.
            ValueError: the request's class list is not that of the node's data.
        """
        if request.objective.classes != 1:
            self._check_classes(request.objective.classes)
        scheduled = request.plan.schedule.label(self.client, request.round)
        if request.label != scheduled:
            raise ReleaseRefusedError(
                f"Round {request.round} is for class {scheduled} at client {self.client}."
            )
        self._claim("gradient", request.round, digest)

        def stream(purpose: str) -> Stream:
            return self._key.stream(
                purpose, client=self.client, round=request.round, request=digest
            )

        return GradientReply(client_gradient(request, self.shard, stream))

    def privatized(self, request: PrivatizeRequest, plan_digest: bytes) -> PrivatizeReply:
        """Answer with one chunk of the records privatized under the request's plan.

        Raises:
            ReleaseRefusedError: records were released before under another plan.
            ValueError: the plan's class list is not that of the node's data.
        """
        if request.plan.label_mechanism is not None:
            self._check_classes(request.plan.classes)
        self._claim("privatize", 0, plan_digest)
        if self._privatized is None or self._privatized[0] != plan_digest:

            def stream(purpose: str) -> Stream:
                return self._key.stream(purpose, client=self.client, round=0, request=plan_digest)

            self._privatized = (plan_digest, *privatize(self.shard, request.plan, stream))
        _, values, labels = self._privatized
        start = request.chunk * request.chunk_size
        chosen = slice(start, start + request.chunk_size)
        chunks = max(1, -(-len(values) // request.chunk_size))
        return PrivatizeReply(values[chosen].clone(), labels[chosen].clone(), chunks)

    def _check_classes(self, classes: int) -> None:
        # Before any record is looked at: a shorter list would fail only for clients or batches
        # that hold a class beyond its end, and so tell who does.
        public = len(self.settings.data.classes)
        if classes != public:
            raise ValueError(f"The request has {classes} classes, the data {public}.")

    def _claim(self, purpose: str, round: int, digest: bytes) -> None:
        # Reproducible noise is public anyway and is keyed by the round alone: engines differ in
        # the last bits of a request, so a journal would refuse honest reruns.
        if self._journal is not None:
            self._journal.claim(self.client, purpose, round, digest)


@cache
def open_node(settings: NodeSettings, client: int) -> Node:
    """The node of this process that plays `client`, made at its first message."""
    return Node(settings, client)


def close_nodes() -> None:
    """Forget every node of this process, and the data they hold."""
    open_node.cache_clear()
    _deal.cache_clear()
    _open_journal.cache_clear()


@lru_cache(maxsize=4)
def _deal(settings: NodeSettings) -> list[torch.Tensor]:
    records = load(settings.data, "train")
    return partition(records.labels, settings.clients, settings.partition, settings.partition_seed)


@lru_cache(maxsize=4)
def _open_journal(settings: NodeSettings) -> ReleaseJournal:
    if settings.journal is None:
        raise ValueError("These settings name no journal.")
    return ReleaseJournal(settings.journal)
