"""A Flower `Grid` without a SuperLink: unmodified apps and strategies run on it.

Where several processes answer an exchange, `divide` gives each its portions of the broadcasts. Each
portion is answered by a `PartialSum`, and `combine` adds these up for the strategy.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedsink.flower_internals import SERVER_NODE, Run, become, empty_run, set_message_id
from fedsink.protocol.exchange import Answers, Content, Exchange, Nodes, Reduction, Sum, Uploads
from fedsink.protocol.tree_sum import BLOCK, TreeSum

_FIRST_NODE = 1000


class BatchedApp(Protocol):
    """Answers for many clients whose messages share one content."""

    block: int  # consecutive clients of a content that are computed together

    def handles(self, message_type: str) -> bool: ...

    def uploads(self, message_type: str) -> bool: ...

    def upload(self, message_type: str, content: Content, clients: Sequence[int]) -> Uploads: ...

    def answers(
        self, message_type: str, contents: Sequence[Content], clients: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, Answers]]:
        """Answers to several contents of one type, each with the index of its content.

        Answers to one content come in increasing order of its clients, in whole blocks.
        """
        ...


class SimulationGrid(Grid):
    """Answers messages of a round in this process or in workers it owns.

    Node `1000 + k` is virtual client k; `run_id` is the run's number in Flower's metadata.
    `batched` tells what `partial_sums` and `uploaded` answer for all clients; None: nothing.
    """

    def __init__(self, clients: int, run_id: int = 1, *, batched: BatchedApp | None = None) -> None:
        self.clients, self.batched = clients, batched
        self._run = empty_run(run_id)
        self._answered: dict[str, Message] = {}
        self._sent = 0
        self._roster = Nodes(range(clients), _FIRST_NODE)
        become(run_id, SERVER_NODE)

    @abstractmethod
    def execute(self, messages: Sequence[Message]) -> list[Message]:
        """Delivers messages to their clients and returns the replies, in any order."""

    def partial_sums(self, exchange: Exchange) -> list[list[PartialSum]]:
        """The sums of the clients' replies: for each process one for each broadcast."""
        raise NotImplementedError

    def uploaded(self, exchange: Exchange) -> Uploads:
        """Returns the records that the clients of the exchange's one broadcast upload."""
        raise NotImplementedError

    @abstractmethod
    def keep(self, round: int) -> None:
        """Stores the clients' states after this round, to belong to the server's checkpoint."""

    def roster(self) -> Mapping[int, int]:
        """Client number → node id, known without asking the nodes."""
        return self._roster

    def close(self) -> None:
        """Ends the processes and frees the memory of the grid."""

    @property
    def run(self) -> Run:
        return self._run

    def set_run(self, run: Run) -> None:
        self._run = run

    def get_node_ids(self) -> Iterable[int]:
        return list(self._roster.values())

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(
            content, dst_node_id=dst_node_id, message_type=message_type, group_id=group_id, ttl=ttl
        )

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Executes the messages; their replies wait for `pull_messages`."""
        messages = list(messages)
        for message in messages:
            self._sent += 1
            set_message_id(message, str(self._sent))
        for reply in self.execute(messages):
            self._answered[reply.metadata.reply_to_message_id] = reply
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._answered.pop(key) for key in message_ids if key in self._answered]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Replies to the messages, or their sums where the strategy needs only these.

        Execution is synchronous, so there is nothing to time out.
        """
        if isinstance(messages, Exchange) and self.batched is not None:
            if self.batched.handles(messages.message_type):
                return combine(self.partial_sums(messages))
            if self.batched.uploads(messages.message_type):
                return self.uploaded(messages)
        return self.pull_messages(self.push_messages(messages))


def node_of(client: int) -> int:
    return _FIRST_NODE + client


def client_of(node: int) -> int:
    return node - _FIRST_NODE


def client_context(client: int, clients: int, run_id: int) -> Context:
    """The Context that Flower's own simulation gives a client."""
    return Context(
        run_id=run_id,
        node_id=node_of(client),
        node_config={"partition-id": client, "num-partitions": clients},
        state=RecordDict(),
        run_config={},
    )


@dataclass(frozen=True)
class Portion:
    """The clients of one broadcast that one process answers for."""

    place: int  # index of the broadcast in its exchange
    clients: Sequence[int]  # consecutive ones of the broadcast, in whole blocks
    shape: tuple[int, ...]  # of a reply
    lo: int = 0  # number of their first block within the broadcast
    hi: int | None = None  # of the block behind their last one; None: they are the last ones


@dataclass(frozen=True)
class PartialSum:
    """The sum of the replies to one portion."""

    sums: list[tuple[int, Tensor]]  # `TreeSum.parts` of the replies
    clients: int  # number of replies in them
    failures: dict[int, int]  # client → error code; where there are any, nothing was added up


NO_REPLIES = PartialSum([], 0, {})
"""The sum of a process without a portion of a broadcast."""


def divide(exchange: Exchange, processes: int, block: int = BLOCK) -> list[list[Portion]]:
    """The portions of each process: equal shares of all clients, in the order of the broadcasts.

    A process meets few broadcasts, and the same clients whenever broadcasts are divided alike. A
    `block` of consecutive clients of a broadcast is not divided.
    """
    everyone = len(exchange)
    portions: list[list[Portion]] = [[] for _ in range(processes)]
    before = 0  # clients of earlier broadcasts
    for place, broadcast in enumerate(exchange.broadcasts):
        clients = broadcast.clients
        # Of all clients in a row, process p has the p-th of equal stretches. A block is not cut:
        # it belongs to the process in whose stretch its middle falls.
        owners = []
        for start in range(0, len(clients), block):
            middle = start + len(clients[start : start + block]) / 2
            owners.append(int((before + middle) * processes / everyone))
        before += len(clients)
        # Sums are made along a binary tree over the blocks, so a cut at a multiple of a power of
        # two leaves few partial sums to send. The power is small against a share: at most an
        # eighth.
        sharers = sorted(set(owners))
        step = 1 << max(0, (len(owners) // (8 * len(sharers))).bit_length() - 1)
        cuts = {owner: round(owners.index(owner) / step) * step for owner in sharers}
        for (owner, lo), hi in zip(cuts.items(), [*list(cuts.values())[1:], None], strict=True):
            members = clients[lo * block : None if hi is None else hi * block]
            portions[owner].append(Portion(place, members, broadcast.shape, lo, hi))
    return portions


def combine(processes: Sequence[Sequence[PartialSum]]) -> Reduction:
    """Adds up the sums of all processes; the result is the same for any number of them.

    Processes come in the order of their clients; each has one partial sum for each broadcast.
    """
    failures: dict[int, int] = {}
    sums: list[Sum | None] = []
    for of_broadcast in zip(*processes, strict=True):
        total, clients = TreeSum(), 0
        for partial in of_broadcast:
            failures |= partial.failures
            clients += partial.clients
            for block, values in partial.sums:
                total.add(block, values)
        parts = total.parts()
        sums.append(Sum(parts[0][1], clients) if parts else None)
    return Reduction(sums, failures)
