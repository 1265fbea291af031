"""Virtual clients that share one process: under `engine=local` all of them, else an actor's."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsink.clients.app import client_app
from fedsink.clients.node_cohort import NodeCohort
from fedsink.clients.node_settings import NodeSettings
from fedsink.protocol.exchange import Answers, Content
from fedsink.protocol.failure_codes import UNUSABLE
from fedsink.protocol.tree_sum import BLOCK, TreeSum
from fedsink.simulation.grid import client_context, client_of
from fedsink.simulation.identity import become, set_message_id
from fedsink.simulation.partial import Part, Partial


class BatchedApp(Protocol):
    """Answers for many clients whose messages share one content."""

    def handles(self, message_type: str) -> bool:
        """Whether it answers messages of this type."""
        ...

    def answers(
        self, message_type: str, contents: Sequence[Content], clients: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, Answers]]:
        """The answers to several contents of one type, each with which of them it is for.

        Those to one content come in increasing order of its clients, in whole blocks of `BLOCK`.
        """
        ...


@dataclass(frozen=True)
class Hosted:
    """What a process answers with: client by client, and for many at once where it can."""

    app: ClientApp
    batched: BatchedApp | None = None


def fedsink_apps(settings: NodeSettings) -> Hosted:
    """Fedsink's own clients."""
    return Hosted(client_app(settings), NodeCohort(settings))


# (place in the round, node, index into the shared contents, message type, group)
Job = tuple[int, int, int, str, str]


class Cohort:
    """The clients that are asked here, each with its own context.

    Args:
        hosted: what answers for them.
        clients: how many clients the simulation has.
        run_id: the run's number in Flower's metadata.
        contexts: those that exist already, by client; others are made when they are needed.
    """

    def __init__(
        self,
        hosted: Hosted,
        clients: int,
        run_id: int,
        contexts: dict[int, Context] | None = None,
    ) -> None:
        keep_freed_memory()
        self._hosted = hosted
        self._clients = clients
        self._run_id = run_id
        self._contexts = {} if contexts is None else contexts

    def answer(self, message: Message) -> Message:
        """Answer one message to a client of this cohort."""
        client = client_of(message.metadata.dst_node_id)
        if client not in self._contexts:
            self._contexts[client] = client_context(client, self._clients, self._run_id)
        return self._hosted.app(message, self._contexts[client])

    def answer_jobs(
        self, contents: list[RecordDict], jobs: list[Job]
    ) -> list[tuple[int, RecordDict | Error]]:
        """Answer messages that were sent here as contents and envelopes."""
        answers: list[tuple[int, RecordDict | Error]] = []
        for place, node, index, message_type, group in jobs:
            become(self._run_id, node)
            message = Message(
                contents[index], dst_node_id=node, message_type=message_type, group_id=group
            )
            set_message_id(message, str(place))
            reply = self.answer(message)
            answers.append((place, reply.error if reply.has_error() else reply.content))
        return answers

    def add_up(
        self, message_type: str, contents: Sequence[Content], parts: Sequence[Part]
    ) -> list[Partial]:
        """Answer broadcasts, and add up the replies to each.

        Raises:
            ValueError: this cohort answers client by client.
        """
        batched = self._hosted.batched
        if batched is None:
            raise ValueError("This cohort answers client by client.")
        totals = [_Total(part) for part in parts]
        asked = [contents[part.place] for part in parts]
        clients = [part.clients for part in parts]
        for number, batch in batched.answers(message_type, asked, clients):
            totals[number].add(batch)
        return [total.partial() for total in totals]


class _Total:
    """Adds up the answers to one part of an exchange."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._sum = TreeSum(part.lo, part.hi)
        self._counted = 0
        self._failures: dict[int, int] = {}

    def add(self, batch: Answers) -> None:
        self._failures |= batch.failures
        if not batch.clients:
            return
        if tuple(batch.replies.shape[1:]) != self._part.shape:
            self._failures |= dict.fromkeys(batch.clients, UNUSABLE)
        elif self._failures:  # there will be no sum
            self._failures |= _not_finite(batch)
        else:
            self._add(batch)

    def _add(self, batch: Answers) -> None:
        for replies in batch.replies.split(BLOCK):
            if not self._sum.add_block(self._part.lo + self._counted // BLOCK, replies):
                self._failures |= _not_finite(batch)
                return
            self._counted += len(replies)

    def partial(self) -> Partial:
        sums = [] if self._failures else self._sum.parts()
        return Partial(sums, self._counted, self._failures)


def _not_finite(batch: Answers) -> dict[int, int]:
    """The failures of clients that answered with a value that is not finite."""
    finite = batch.replies.flatten(1).isfinite().all(-1)
    replied = zip(batch.clients, finite, strict=True)
    return {client: UNUSABLE for client, fine in replied if not fine}


def keep_freed_memory() -> None:
    """Let this process keep up to 256 MiB that it has freed, where the C library is glibc.

    A round frees and allocates the same megabytes again and again. By default they go back to the
    system each time, and getting them again costs as much as adding up the replies.
    """
    if hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(_M_TRIM_THRESHOLD, 256 << 20)
        library.mallopt(_M_MMAP_THRESHOLD, 32 << 20)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
