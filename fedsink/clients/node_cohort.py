"""Answers for many virtual clients at once: arrays in place of nodes.

For simulations whose noise can be drawn again and whose owners have no policy; any other client is
a `Node`. One pool holds the records of all clients, and one look at a message admits, checks and
charges it for all that it asks alike. Every client's coins and noise have its own key, unless the
clients are summed: then the sum gets the noise of all of them in one draw. Tests compare the
answers with those of nodes.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fedsink.clients.answers.base import Asked, BatchedAnswer
from fedsink.clients.answers.privatize_once import PrivatizeOnceAnswer
from fedsink.clients.answers.registry import find_answer
from fedsink.clients.node import PASSES, open_ledger, open_node
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.gate import LedgerGate, reservation_name, round_digests, seeded
from fedsink.clients.owner.states import State
from fedsink.clients.records.pool import Pool
from fedsink.clients.records.shard import Shard, deal
from fedsink.data.sources import load
from fedsink.environment import device_named
from fedsink.errors import DataError, FedsinkError, ReleaseRefusedError
from fedsink.privacy.randomness.keys import EntropyKey, ReproducibleKey, SecretKey
from fedsink.protocol.exchange import Answers, Content, Uploads
from fedsink.protocol.failure_codes import failure_code
from fedsink.protocol.tree_sum import BLOCK, FEW, summed_block

log = logging.getLogger("fedsink.clients")

# Values computed at once: their float64 temporaries stay in cache or near it, and memory does
# not grow with the number of clients.
_BATCH = 1 << 17


@dataclass(frozen=True)
class _Admitted:
    """Clients that got one content, which is admitted and charged."""

    number: int  # index of their content
    answer: Any  # to this content
    clients: np.ndarray  # their numbers, increasing
    digests: Sequence[bytes]  # of each round
    state: Callable[..., State]


class NodeCohort:
    """Answers for virtual clients whose messages share one content.

    Guarantees:
        - A message is checked, and its charge committed where there is a ledger, before anything
          that may leave is computed from its clients' records.
        - A reply equals that of a node with the same noise, up to rounding before the noise; the
          sum of summed clients has the noise's law.
        - Where a client cannot answer, its content has no sum here.
    """

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._pools: dict[bytes, Pool] = {}
        self._gates: dict[str, LedgerGate] = {}
        self.block = summed_block(settings.clients) if settings.pooled else BLOCK

    def handles(self, message_type: str) -> bool:
        """Tells whether messages of this type are answered together."""
        if self._stores:
            return False
        try:
            return issubclass(find_answer(message_type, None), BatchedAnswer)
        except FedsinkError:  # each client will say why
            return False

    def answers(
        self, message_type: str, contents: Sequence[Content], clients: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, Answers]]:
        """Yields the clients' replies, (k, parts, ...), each with the number of its content.

        Replies to one content come in whole blocks of consecutive clients.
        """
        torch.set_num_threads(self._settings.threads)
        groups: list[list[_Admitted]] = []
        for number, (content, whose) in enumerate(zip(contents, clients, strict=True)):
            admitted, failures = self._admit(message_type, number, content, whose)
            if admitted is None:
                yield number, _failed(failures)
            elif groups and groups[-1][0].answer.fits(admitted.answer):
                groups[-1].append(admitted)
            else:
                groups.append([admitted])
        for group in groups:
            for batch in self._batches(group):
                yield from self._computed(group, batch)

    def uploads(self, message_type: str) -> bool:
        """Tells whether clients upload their records together: where they are many."""
        upload = f"train.{PrivatizeOnceAnswer.name}"
        return message_type == upload and self._settings.clients > FEW and not self._stores

    def upload(self, message_type: str, content: Content, clients: Sequence[int]) -> Uploads:
        """Returns what these clients upload, client by client."""
        admitted, failures = self._admit(message_type, 0, content, clients)
        if admitted is None:
            return Uploads([], failures)
        parts, block = [], summed_block(self._settings.clients)
        try:
            for start in range(0, len(admitted.clients), block):
                pool, asked = self._asked([admitted], [(admitted, slice(start, start + block))])
                parts.append(asked[0].answer.upload(asked[0], pool))
        except Exception as error:
            first = int(admitted.clients[0])
            return Uploads([], {first: failure_code(error, first)})
        return Uploads([torch.cat(p).cpu() for p in zip(*parts, strict=True)], {})

    def admit(self, message_type: str, content: Content, clients: Sequence[int]) -> list[bytes]:
        """Charges a content's rounds, and computes nothing; returns the digests of all of them.

        With the digests a process without a ledger may answer, see `PassGate`. A message that is
        refused has no digest; the log says why.
        """
        admitted, _ = self._admit(message_type, 0, content, clients)
        return [] if admitted is None else [*admitted.digests]

    def _admit(
        self, message_type: str, number: int, content: Content, whose: Sequence[int]
    ) -> tuple[_Admitted | None, dict[int, int]]:
        settings = self._settings
        if isinstance(whose, range):
            clients = np.arange(whose.start, whose.stop, whose.step)
        else:
            clients = np.asarray(whose, dtype=np.int64)
        refused = clients[:1]
        try:
            kind: Any = find_answer(message_type, None)
            if content.requests is None:
                answer = kind.read(content.record, None)
            else:
                answer = kind(content.requests)
            # Without a key that binds noise to the message, the message is not hashed.
            message = b"" if settings.seed is not None else answer.digest(content.payload)
            if len(unknown := clients[(clients < 0) | (clients >= settings.clients)]):
                refused = unknown
                raise ValueError(f"Clients are 0 to {settings.clients - 1}.")
            answer.check_turns(clients, settings.clients)
            answer.check_data(settings.data)
            if not answer.protected and not settings.unprotected:
                raise ReleaseRefusedError(
                    "A message cannot switch clip and noise off: these clients answer none without."
                )
            alike = answer.alike(int(clients[0]), settings.clients)
            name = f"clients {alike.start} to {alike[-1]} by {alike.step}"
            charge = answer.charge(trusted=False) if answer.protected else None
            content_of = self._content(name, users=answer.of_users)
            rounds = len(answer.rounds)
            if settings.seed is not None:
                digests = seeded(rounds).digests
            elif charge is None:
                digests = round_digests(message, rounds)
            else:
                gate = PASSES if settings.lent is not None else self._gate(name)
                digests = gate.admit(answer, charge, message, lambda: content_of).digests
            if (most := answer.most_records) is not None:
                sizes = deal(settings).sizes.numpy()[clients]
                if len(over := clients[sizes > most]):
                    refused = over
                    raise DataError("This client holds more records than the plan accounts for.")
        except Exception as error:
            return None, {int(client): failure_code(error, int(client)) for client in refused}

        def state(client: int, *names: str) -> State:
            reserved = reservation_name(answer.run, charge, content_of)
            return open_node(settings, client).states.of(reserved, answer.name, *names)

        return _Admitted(number, answer, clients, digests, state), {}

    @property
    def _stores(self) -> bool:
        """True if each client stores its replies."""
        return self._settings.policy is not None or self._settings.noise == "secure"

    @cached_property
    def _key(self) -> ReproducibleKey | SecretKey:
        key = self._settings.key()
        assert not isinstance(key, EntropyKey)  # `handles` has refused it
        return key

    def _gate(self, name: str) -> LedgerGate:
        """Returns the gate of the account of clients that are asked alike."""
        if name not in self._gates:
            ledger = open_ledger(self._settings)
            lineage = f"{self._settings.ledger and self._settings.ledger.stem}/{name}"
            self._gates[name] = LedgerGate(ledger, lineage, None, None)
        return self._gates[name]

    def _content(self, name: str, *, users: bool) -> bytes:
        """Returns the fingerprint of the records of clients with this name."""
        if users and load(self._settings.data).users is None:
            raise DataError("The plan protects users, and these records do not tell them apart.")
        return hashlib.sha256(f"{name}|".encode() + self._fingerprint).digest()

    @cached_property
    def _fingerprint(self) -> bytes:
        if self._settings.seed is not None:
            return b""  # neither noise nor charge is bound to it
        dealt = deal(self._settings)
        state = hashlib.sha256(load(self._settings.data).digest().encode())
        for part in (dealt.order, dealt.sizes):
            state.update(part.numpy().data)
        return state.digest()

    def _batches(self, group: list[_Admitted]) -> Iterator[list[tuple[_Admitted, slice]]]:
        """Cuts a group into batches of whole blocks, each computed at once."""
        most = max(BLOCK, _BATCH // group[0].answer.values)
        batch: list[tuple[_Admitted, slice]] = []
        room = most
        for admitted in group:
            for start in range(0, len(admitted.clients), self.block):
                block = slice(start, min(start + self.block, len(admitted.clients)))
                size = 1 if self._settings.pooled else block.stop - start
                if size > room:
                    yield batch
                    batch, room = [], most
                if batch and batch[-1][0] is admitted and not self._settings.pooled:
                    batch[-1] = admitted, slice(batch[-1][1].start, block.stop)
                else:
                    batch.append((admitted, block))
                room -= size
        yield batch

    def _computed(
        self, group: list[_Admitted], batch: list[tuple[_Admitted, slice]]
    ) -> Iterator[tuple[int, Answers]]:
        """Yields the answers to a batch; where one cannot be computed, none is."""
        summed = self._settings.pooled
        try:
            pool, asked = self._asked(group, batch)
            answer = asked[0].answer
            if summed and not answer.computes_sums:
                raise ReleaseRefusedError(f"train.{answer.name} makes no sums: noise.draw=clients.")
            computed = answer.compute_each(asked, pool, summed=summed).cpu()
        except Exception as error:
            for admitted, block in batch:
                client = int(admitted.clients[block][0])
                yield admitted.number, _failed({client: failure_code(error, client)})
            return
        start = 0
        for (admitted, _), some in zip(batch, asked, strict=True):
            stop = start + (1 if summed else len(some.clients))
            yield admitted.number, Answers(some.clients, computed[start:stop])
            start = stop

    def _asked(
        self, group: list[_Admitted], batch: list[tuple[_Admitted, slice]]
    ) -> tuple[Pool, list[Asked]]:
        """Returns the records of a group's clients, and a batch of them with their keys."""
        pool, everyone = self._pool(group)
        asked = []
        for admitted, block in batch:
            clients = admitted.clients[block]
            alike = admitted.answer.alike(int(clients[0]), self._settings.clients)
            places = clients if everyone is None else np.searchsorted(everyone, clients)
            noise_of = len(alike) if clients[0] == alike.start else 0
            place = torch.from_numpy(places)
            digests, state = admitted.digests, admitted.state
            asked.append(
                Asked(admitted.answer, clients, place, digests, self._key, noise_of, state)
            )
        return pool, asked

    def _pool(self, group: list[_Admitted]) -> tuple[Pool, np.ndarray | None]:
        """Returns the records of these clients, and the clients in their order; None: everybody."""
        clients, key = None, b""
        if sum(len(admitted.clients) for admitted in group) < self._settings.clients:
            clients = np.sort(np.concatenate([admitted.clients for admitted in group]))
            key = clients.tobytes()
        if key not in self._pools:
            data, dealt = load(self._settings.data), deal(self._settings)
            whose = torch.arange(len(dealt)) if clients is None else torch.from_numpy(clients)
            mine = torch.zeros(len(dealt), dtype=torch.bool)
            mine[whose] = True
            held = dealt.order[mine.repeat_interleave(dealt.sizes)]
            if data.values.dtype != torch.uint8:  # bytes are valid as they are
                Shard.checked(data.values, data.labels, len(self._settings.data.classes))
            device = device_named(self._settings.device, "A client's device")
            # A schedule asks the same clients again and again; a client is in one pool.
            kept = {k: p for k, p in self._pools.items() if k and not _meet(k, mine)}
            self._pools = {**kept, key: Pool.of(data, held, dealt.sizes[whose], device)}
        return self._pools[key], clients


def _meet(key: bytes, mine: torch.Tensor) -> bool:
    return bool(mine[torch.from_numpy(np.frombuffer(key, dtype=np.int64).copy())].any())


def _failed(failures: dict[int, int]) -> Answers:
    return Answers((), torch.zeros(0), failures)
