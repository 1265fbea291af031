"""Virtual clients that share one process: all of them (`engine=local`), or those of a Ray actor.

`LocalGrid` is the grid of `engine=local`; a Ray actor holds a `Cohort`. A round's way, where the
replies are added up here:

    server.loop                the strategy's `configure_train` makes an `Exchange` of broadcasts
    NodeCohort.answers         checks, charges and keys what each broadcast asks of its clients
    BatchedAnswer.compute_each samples, clips and adds noise for every client of some blocks, or
                               for the sum of each block, where its noise is drawn at once
    Cohort.add_up              adds up the replies of each block
    server.loop                the strategy's `aggregate_train` takes the sums
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsink.clients.app import client_app
from fedsink.clients.node import keep_states
from fedsink.clients.node_cohort import NodeCohort
from fedsink.clients.node_settings import NodeSettings
from fedsink.flower_internals import become, set_message_id
from fedsink.protocol.exchange import Answers, Content, Exchange, Uploads
from fedsink.protocol.failure_codes import UNUSABLE
from fedsink.protocol.tree_sum import BLOCK, TreeSum
from fedsink.simulation.grid import (
    BatchedApp,
    PartialSum,
    Portion,
    SimulationGrid,
    client_context,
    client_of,
    divide,
)


@dataclass(frozen=True)
class Hosted:
    """The apps of a process: one answers client by client, one for many at once where it can."""

    app: ClientApp
    batched: BatchedApp | None = None


def fedsink_apps(settings: NodeSettings) -> Hosted:
    return Hosted(client_app(settings), NodeCohort(settings))


# (place in the round, node, index into the shared contents, message type, group)
Job = tuple[int, int, int, str, str]


class Cohort:
    """The clients that are asked here, of so many of a simulation, each with its own context."""

    def __init__(self, hosted: Hosted, clients: int, run_id: int) -> None:
        keep_freed_memory()
        self.batched = hosted.batched
        self._app = hosted.app
        self._clients = clients
        self._run_id = run_id
        self._contexts: dict[int, Context] = {}

    def answer(self, message: Message) -> Message:
        client = client_of(message.metadata.dst_node_id)
        if client not in self._contexts:
            self._contexts[client] = client_context(client, self._clients, self._run_id)
        return self._app(message, self._contexts[client])

    def answer_jobs(
        self, contents: list[RecordDict], jobs: list[Job]
    ) -> list[tuple[int, RecordDict | Error]]:
        """Answers messages that were sent here as contents and envelopes."""
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
        self, message_type: str, contents: Sequence[Content], portions: Sequence[Portion]
    ) -> list[PartialSum]:
        """Answers portions of broadcasts, and adds up the replies to each."""
        if self.batched is None:
            raise ValueError("This cohort answers client by client.")
        totals = [_Total(portion, self.batched.block) for portion in portions]
        requested = [contents[portion.place] for portion in portions]
        clients = [portion.clients for portion in portions]
        for number, answers in self.batched.answers(message_type, requested, clients):
            totals[number].add(answers)
            del answers  # the next replies take its memory, which the cache still holds
        return [total.partial_sum() for total in totals]

    def upload(
        self, message_type: str, content: Content, clients: Sequence[Sequence[int]]
    ) -> list[Uploads]:
        """Uploads what each of some groups of clients holds."""
        if self.batched is None:
            raise ValueError("This cohort answers client by client.")
        return [self.batched.upload(message_type, content, some) for some in clients]

    def close(self) -> None:
        """Frees the clients and the records that were laid out for them."""
        self._contexts.clear()
        self.batched = None


class _Total:
    """Adds up the answers to one portion of a broadcast."""

    def __init__(self, portion: Portion, block: int) -> None:
        self._portion = portion
        self._block = block
        self._sum = TreeSum(portion.lo, portion.hi)
        self._counted = 0
        self._failures: dict[int, int] = {}

    def add(self, answers: Answers) -> None:
        replies, size = answers.replies, self._block
        self._failures |= answers.failures
        if not len(answers.clients):
            return
        if tuple(replies.shape[1:]) != self._portion.shape:
            self._failures |= dict.fromkeys(answers.clients, UNUSABLE)
        elif self._failures:  # there will be no sum
            self._failures |= _not_finite(answers)
        else:
            summed = len(replies) != len(answers.clients)  # one sum for all of them
            # `split` of one block costs a seventh of adding it.
            for block in (replies,) if len(replies) <= size else replies.split(size):
                if not self._sum.add_block(self._portion.lo + self._counted // size, block):
                    self._failures |= _not_finite(answers)
                    return
                self._counted += len(answers.clients) if summed else len(block)

    def partial_sum(self) -> PartialSum:
        sums = [] if self._failures else self._sum.parts()
        return PartialSum(sums, self._counted, self._failures)


def _not_finite(answers: Answers) -> dict[int, int]:
    """The failures of clients that answered with a value that is not finite."""
    finite = answers.replies.flatten(1).isfinite().all(-1)
    replied = zip(answers.clients, finite, strict=len(finite) > 1)  # one of a sum: its first client
    return {client: UNUSABLE for client, fine in replied if not fine}


class LocalGrid(SimulationGrid):
    """The grid of `engine=local`: virtual clients in this process.

    Clients of one cohort share the content object of their messages and must not change it.
    `batched` answers for all of them at once where a strategy needs only sums.
    """

    def __init__(
        self, app: ClientApp, clients: int, run_id: int = 1, *, batched: BatchedApp | None = None
    ) -> None:
        super().__init__(clients, run_id, batched=batched)
        self._cohort = Cohort(Hosted(app, batched), clients, run_id)

    def execute(self, messages: Sequence[Message]) -> list[Message]:
        return [self._cohort.answer(message) for message in messages]

    def uploaded(self, exchange: Exchange) -> Uploads:
        [broadcast] = exchange.broadcasts
        content, clients = broadcast.content, broadcast.clients
        return self._cohort.upload(exchange.message_type, content, [clients])[0]

    def partial_sums(self, exchange: Exchange) -> list[list[PartialSum]]:
        contents = [broadcast.content for broadcast in exchange.broadcasts]
        [portions] = divide(exchange, 1, BLOCK if self.batched is None else self.batched.block)
        return [self._cohort.add_up(exchange.message_type, contents, portions)]

    def keep(self, round: int) -> None:
        keep_states(round)

    def close(self) -> None:
        self._cohort.close()
        self.batched = None


def keep_freed_memory() -> None:
    """Lets this process keep up to 256 MiB that it has freed, where the C library is glibc.

    A round frees and allocates the same megabytes again and again. By default the library returns
    them to the system each time, and getting them again costs as much as adding up the replies.
    """
    trim_threshold, mmap_threshold = -1, -3  # of glibc's malloc.h
    if hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(trim_threshold, 256 << 20)
        library.mallopt(mmap_threshold, 32 << 20)
