"""Holds one whole exchange of messages: who is asked for which answer, and the answers' sums.

A strategy whose round needs only sums of the clients' replies returns an `Exchange` where Flower
expects messages. A grid that does not know `Exchange` iterates over its messages. A grid that can
answer for many clients at once may return a `Reduction` instead of the replies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, overload, runtime_checkable

import numpy as np
from torch import Tensor

from fedsink.protocol.packing import Packed

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict

    from fedsink.privacy.integer_gaussian import FixedPoint


class Content:
    """Content of a message, as requests and as the record that travels.

    Both forms are made when first needed: within one process nothing is packed without being sent.

    Args:
        requests: gives the requests; None where they are still to be read from the record.
        record: gives the record, or its fields and arrays.
    """

    def __init__(
        self,
        requests: Callable[[], Sequence[Any]] | None,
        record: Callable[[], RecordDict | Packed],
    ) -> None:
        self._requests, self._record = requests, record

    @classmethod
    def received(cls, payload: RecordDict | Packed) -> Content:
        """Wraps a record that has travelled, or its fields and arrays."""
        return cls(None, lambda: payload)

    @classmethod
    def later(cls) -> Content:
        """Returns the content of a message that is only announced; reading it raises."""

        def unknown() -> Packed:
            raise RuntimeError("This message is announced, and its content is not known yet.")

        return cls(None, unknown)

    @cached_property
    def requests(self) -> Sequence[Any] | None:
        """Requests, one for each round of the message; None: only the record is known."""
        return None if self._requests is None else self._requests()

    @cached_property
    def payload(self) -> RecordDict | Packed:
        """Fields and arrays of the message, for `digest`; a record only where one was given."""
        return self._record()

    @cached_property
    def record(self) -> RecordDict:
        """The message's content as it travels."""
        return self.payload.record() if isinstance(self.payload, Packed) else self.payload


@dataclass(frozen=True)
class Nodes(Mapping[int, int]):
    """Client → node of virtual clients, however many: a range of clients, client k at first + k."""

    clients: range
    first: int

    def __getitem__(self, client: int) -> int:
        if client not in self.clients:
            raise KeyError(client)
        return self.first + client

    def __iter__(self) -> Iterator[int]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)


def connected(nodes: Mapping[int, int], clients: range) -> Mapping[int, int]:
    """Returns the nodes of those of some clients that have one."""
    if isinstance(nodes, Nodes) and nodes.clients == range(len(nodes)):
        return Nodes(clients[: len(range(clients.start, len(nodes), clients.step))], nodes.first)
    return {client: nodes[client] for client in clients if client in nodes}


@dataclass(frozen=True)
class Broadcast:
    """Sends one content to many clients."""

    content: Content  # of the message to each client
    nodes: Mapping[int, int]  # client number → node id, in increasing order of clients
    shape: tuple[int, ...]  # of the finite values that each reply holds, all rounds included
    noise_parts: int = 1  # t′, number of replies whose noise adds up to the plan's
    fixed_point: FixedPoint | None = None  # of replies that are integers; None: they are floats
    cohort: Sequence[int] = ()  # all clients that the schedule asks the same, connected or not
    round: int = 0  # the first that the content asks for; it names the sum under masks

    @property
    def clients(self) -> Sequence[int]:
        """The numbers of the clients."""
        return self.nodes.clients if isinstance(self.nodes, Nodes) else [*self.nodes]


class Exchange(Sequence["Message"]):
    """The messages of one round, in client order; made when the first is asked for.

    Args:
        message_type, group_id: those of Flower's messages.
        broadcasts: no client is in two of them.
        needed: number of answers that is enough once waiting for the others has ended; None: all.
        following: broadcasts of the next exchange, whose contents are not known yet
            (`Content.later`): clients that mask exchange their keys for it in this one.
    """

    def __init__(
        self,
        message_type: str,
        group_id: str,
        broadcasts: Sequence[Broadcast],
        needed: int | None = None,
        following: Sequence[Broadcast] = (),
    ) -> None:
        self.message_type = message_type
        self.group_id = group_id
        self.broadcasts = broadcasts
        self.needed = needed
        self.following = following

    def __len__(self) -> int:
        return sum(len(broadcast.nodes) for broadcast in self.broadcasts)

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...

    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        return self._messages[index]

    @cached_property
    def _messages(self) -> list[Message]:
        from flwr.app import Message

        # Kept: Flower's grid gives each message its id in one pass and sends it in another.
        return [
            Message(
                self.broadcasts[place].content.record,
                dst_node_id=node,
                message_type=self.message_type,
                group_id=self.group_id,
            )
            for _, node, place in sorted(
                (client, node, place)
                for place, broadcast in enumerate(self.broadcasts)
                for client, node in broadcast.nodes.items()
            )
        ]


class MessageList(list["Message"]):
    """Messages, at most one to each node, whose replies are all wanted one by one."""

    def __init__(self, messages: Iterable[Message], needed: int) -> None:
        super().__init__(messages)
        self.needed = needed  # number of answers that is enough once the others are not waited for


@dataclass(frozen=True)
class Answers:
    """Replies of several clients to one broadcast."""

    clients: Sequence[int] | np.ndarray  # numbers of those that answered, increasing
    # (len(clients), ...) float32, or int64 where noise is shared; (1, ...) where these clients were
    # answered for by one sum.
    replies: Tensor
    failures: Mapping[int, int] = field(default_factory=dict)  # client → error code


@dataclass(frozen=True)
class Sum:
    """Sum of the replies to one broadcast."""

    # `tree_sum.TreeSum` of the replies in blocks of `BLOCK`, float64; int64 where it is a sum of
    # integers that is still to be decoded.
    total: Tensor
    clients: int  # number of replies in the sum


@dataclass(frozen=True)
class Reduction:
    """Sums that a grid returns instead of the replies."""

    sums: Sequence[Sum | None]  # one per broadcast, in their order; None where nobody answered
    failures: Mapping[int, int]  # client → error code
    absent: Sequence[int] = ()  # whose replies are not in the sums of cohorts that do without them
    void: Sequence[str] = ()  # why a cohort has no sum, for each that has none

    @property
    def is_void(self) -> bool:
        """True where no cohort has a sum, because too few clients were left in each."""
        return bool(self.void) and all(part is None for part in self.sums)

    def __iter__(self) -> Iterator[Message]:
        raise TypeError("These replies were added up: read their sums.")


@dataclass(frozen=True)
class Uploads:
    """Records of many clients that a grid returns instead of the replies, client by client."""

    tensors: Sequence[Tensor]  # those of a reply, of all clients; none where a client failed
    failures: Mapping[int, int]  # client → error code

    def __iter__(self) -> Iterator[Message]:
        raise TypeError("These uploads are no messages: read their tensors.")


@runtime_checkable
class Keeper(Protocol):
    """A grid whose clients keep states that belong to the server's checkpoint."""

    def keep(self, round: int) -> None:
        """Stores the clients' states after this round, for a run that continues from here."""
        ...


@runtime_checkable
class Roster(Protocol):
    """A grid that knows which client lives at which node without asking each of them."""

    def roster(self) -> Mapping[int, int]:
        """Returns client number → node id; the same object again as long as nothing has changed."""
        ...
