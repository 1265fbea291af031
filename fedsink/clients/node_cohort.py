"""Answers one request for many virtual clients at once, each as if by itself.

For simulations. Every client's draws and noise have their usual keys, unless clients are pooled:
then their sum gets the noise of all of them in one draw. The clients share the reading of the
request, one batch of draws, one transport problem and one batch of noise. Tests
compare the answers with the per-client path (`app.client_app`), which also answers where clients
cannot share a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedsink.clients.answers.base import BatchedAnswer
from fedsink.clients.answers.registry import find_answer
from fedsink.clients.node import Node, open_node, policy_of
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.gate import Admitted
from fedsink.clients.owner.policy import Policy
from fedsink.clients.records.pool import Pool
from fedsink.errors import FedsinkError, ReleaseRefusedError
from fedsink.protocol.exchange import Answers, Content
from fedsink.protocol.failure_codes import failure_code
from fedsink.protocol.tree_sum import BLOCK, POOLED_BLOCK

log = logging.getLogger("fedsink.clients")

# Values computed at once: their float64 temporaries stay in cache or near it, and memory does
# not grow with the number of clients.
_BATCH = 1 << 17


@dataclass(frozen=True)
class _Cohort:
    """Clients that got one content, and whose charges are committed."""

    number: int  # index of their content
    answer: BatchedAnswer  # to this content
    digest: bytes  # of the message; empty where no noise depends on it
    nodes: Sequence[Node]  # the clients
    admissions: Sequence[Admitted]  # of each client

    def part(self, clients: slice) -> _Cohort:
        """Returns some of the clients."""
        return replace(self, nodes=self.nodes[clients], admissions=self.admissions[clients])

    def followed_by(self, other: _Cohort) -> _Cohort:
        """Returns the cohort with another cohort's clients appended."""
        nodes = [*self.nodes, *other.nodes]
        return replace(self, nodes=nodes, admissions=[*self.admissions, *other.admissions])


class NodeCohort:
    """Answers for virtual clients whose messages share one content.

    Guarantees:
        - Every client's policy is asked, and its charge committed where there is a ledger, before
          anything that may leave is computed from its records.
        - A reply equals that of the per-client path, with the same noise, up to rounding before
          the noise; the sum of pooled clients has the noise's law.
        - A client that cannot answer does not stop others from answering; where clients are
          pooled, a content that one of them is not admitted to has no sum here.
    """

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._pools: dict[tuple[int, ...], Pool] = {}
        self.block = POOLED_BLOCK if settings.pooled else BLOCK

    def handles(self, message_type: str) -> bool:
        """Tells whether messages of this type are answered together."""
        try:
            return issubclass(self._kind(message_type), BatchedAnswer)
        except FedsinkError:  # each client will say why
            return False

    def answers(
        self, message_type: str, contents: Sequence[Content], clients: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, Answers]]:
        """Yields the clients' replies, (k, parts, ...), each with the number of its content.

        Replies to one content come in whole blocks of consecutive clients.
        """
        torch.set_num_threads(self._settings.threads)
        kind: type[BatchedAnswer] = self._kind(message_type)
        groups: list[list[_Cohort]] = []
        for number, (content, whose) in enumerate(zip(contents, clients, strict=True)):
            admitted, failures = self._admit(kind, number, content, whose)
            if failures and self._settings.pooled:  # the noise of the sum would be missing
                failures, admitted = dict.fromkeys(whose, next(iter(failures.values()))), None
            if failures:
                yield number, _failed(failures)
            if admitted is None:
                continue
            if groups and groups[-1][0].answer.fits(admitted.answer):
                groups[-1].append(admitted)
            else:
                groups.append([admitted])
        for group in groups:
            yield from self._answered(group)

    def admit(self, message_type: str, content: Content, clients: Sequence[int]) -> list[bytes]:
        """Charges a content's uses, and computes nothing; returns the digests of all admitted uses.

        With the digests a process without a ledger may answer, see `PassGate`. A refused use
        has no digest; the log says why.
        """
        try:
            kind = self._kind(message_type)
        except FedsinkError:  # each client will say why
            return []
        admitted, _ = self._admit(kind, 0, content, clients)
        if admitted is None:
            return []
        return [digest for admission in admitted.admissions for digest in admission.digests]

    @cached_property
    def _policy(self) -> Policy | None:
        return policy_of(self._settings)

    def _kind(self, message_type: str) -> Any:
        return find_answer(message_type, self._policy)

    def _admit(
        self, kind: type[BatchedAnswer], number: int, content: Content, clients: Sequence[int]
    ) -> tuple[_Cohort | None, dict[int, int]]:
        try:
            if content.requests is None:
                answer = kind.read(content.record, self._policy)
            else:
                answer = kind(content.requests)
            # Without a key that binds noise to the message, the message is not hashed.
            message = b"" if self._settings.seed is not None else answer.digest(content.payload)
        except Exception as error:
            return None, dict.fromkeys(clients, failure_code(error, clients[0]))
        admissions: dict[Node, Admitted] = {}
        failures: dict[int, int] = {}
        for client in clients:
            try:
                node = open_node(self._settings, client)
                # One client's comparison of the message with the data serves all.
                checked = bool(admissions)
                admissions[node] = node.admit(answer, message, checked=checked)
            except Exception as error:
                failures[client] = failure_code(error, client)
        if not admissions:
            return None, failures
        nodes = list(admissions)
        return _Cohort(number, answer, message, nodes, list(admissions.values())), failures

    def _answered(self, group: list[_Cohort]) -> Iterator[tuple[int, Answers]]:
        """The answers of all clients of contents that fit together."""
        try:
            pool = self._pool([node for admitted in group for node in admitted.nodes])
        except Exception as error:
            log.warning("clients are answered one by one: %s", error)
            for admitted in group:
                yield admitted.number, _one_by_one(admitted)
            return
        if self._settings.pooled:
            yield from self._pooled(group, pool)
            return
        start = 0
        for batch in _batches(group):
            stop = start + sum(len(admitted.nodes) for admitted in batch)
            yield from _computed(batch, pool, slice(start, stop))
            start = stop

    def _pooled(self, group: list[_Cohort], pool: Pool) -> Iterator[tuple[int, Answers]]:
        """The answers of all clients of contents that fit together, one sum for each block."""
        place = 0
        for admitted in group:
            for start in range(0, len(admitted.nodes), POOLED_BLOCK):
                block = admitted.part(slice(start, start + POOLED_BLOCK))
                stop = place + len(block.nodes)
                yield admitted.number, self._sum(block, pool, slice(place, stop))
                place = stop

    def _sum(self, block: _Cohort, pool: Pool, clients: slice) -> Answers:
        """One sum for a block of clients; that of a cohort's first block holds its noise."""
        numbers, answer = [node.client for node in block.nodes], block.answer
        first, everyone = numbers[0], self._settings.clients
        try:
            if not answer.computes_sums:
                raise ReleaseRefusedError("This answer is no sum of records with shared noise.")
            schedule = answer.plan.schedule
            noise_of = schedule.cohort(first, everyone) if first < schedule.cohorts else 0
            tasks = [
                node.task(answer, admission)
                for node, admission in zip(block.nodes, block.admissions, strict=True)
            ]
            total = answer.compute_sum(tasks, pool, clients, noise_of)
        except Exception as error:
            return _failed({client: failure_code(error, client) for client in numbers})
        return Answers(numbers, total.unsqueeze(0))

    def _pool(self, nodes: list[Node]) -> Pool:
        """The records of these clients; a schedule asks the same ones together again and again."""
        key = tuple(node.client for node in nodes)
        if key not in self._pools:
            # A client is in one pool: its earlier pools are dropped.
            members = set(key)
            self._pools = {k: pool for k, pool in self._pools.items() if members.isdisjoint(k)}
            self._pools[key] = Pool([node.shard for node in nodes])
        return self._pools[key]


def _computed(batch: list[_Cohort], pool: Pool, clients: slice) -> Iterator[tuple[int, Answers]]:
    """The answers of all clients of a batch, computed at once unless one of them is stored."""
    if any(a.stored is not None for admitted in batch for a in admitted.admissions):
        for admitted in batch:
            yield admitted.number, _one_by_one(admitted)
        return
    try:
        answers = [admitted.answer for admitted in batch for _ in admitted.nodes]
        tasks = [
            node.task(admitted.answer, admission)
            for admitted in batch
            for node, admission in zip(admitted.nodes, admitted.admissions, strict=True)
        ]
        computed = answers[0].compute_each(answers, tasks, pool, clients).cpu()
    except Exception as error:
        # Computed one by one, the clients show which one fails. Their charges stand.
        log.warning("a batch of clients is answered one by one: %s", error)
        for admitted in batch:
            yield admitted.number, _one_by_one(admitted)
        return
    start = 0
    for admitted in batch:
        replies = computed[start : start + len(admitted.nodes)]
        start += len(replies)
        names = admitted.answer.parts
        for admission, reply in zip(admitted.admissions, replies, strict=True):
            # Nothing was stored before, so the stored reply is the one computed now.
            if admission.keep is not None:
                admission.keep(dict(zip(names, reply, strict=True)))
        yield admitted.number, Answers([node.client for node in admitted.nodes], replies)


def _batches(group: list[_Cohort]) -> Iterator[list[_Cohort]]:
    """Cuts a group into batches of whole blocks, each computed at once."""
    most = max(BLOCK, _BATCH // group[0].answer.values)
    batch: list[_Cohort] = []
    room = most
    for admitted in group:
        for start in range(0, len(admitted.nodes), BLOCK):
            block = admitted.part(slice(start, start + BLOCK))
            if len(block.nodes) > room:
                yield batch
                batch, room = [], most
            if batch and batch[-1].number == block.number:
                batch[-1] = batch[-1].followed_by(block)
            else:
                batch.append(block)
            room -= len(block.nodes)
    yield batch


def _one_by_one(admitted: _Cohort) -> Answers:
    replies: dict[int, Tensor] = {}
    failures: dict[int, int] = {}
    for node in admitted.nodes:
        try:
            reply = node.reply(admitted.answer, admitted.digest)
            replies[node.client] = torch.stack([reply[name] for name in admitted.answer.parts])
        except Exception as error:
            failures[node.client] = failure_code(error, node.client)
    if not replies:
        return _failed(failures)
    return Answers(list(replies), torch.stack(list(replies.values())), failures)


def _failed(failures: dict[int, int]) -> Answers:
    return Answers((), torch.zeros(0), failures)
