"""A Flower `Grid` without a SuperLink: unmodified apps and strategies run on it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid

from fedsink.flower_internals import SERVER_NODE, Run, become, empty_run, set_message_id
from fedsink.protocol.exchange import Exchange
from fedsink.simulation.partial_sums import PartialSum, combine

_FIRST_NODE = 1000


class SimulationGrid(Grid):
    """Answers messages of a round in this process or in workers it owns.

    Node `1000 + k` is virtual client k.

    Args:
        clients: number of virtual clients.
        run_id: the run's number in Flower's metadata.
    """

    def __init__(self, clients: int, run_id: int = 1) -> None:
        self.clients = clients
        self._run = empty_run(run_id)
        self._answered: dict[str, Message] = {}
        self._sent = 0
        self._roster = {client: node_of(client) for client in range(clients)}
        become(run_id, SERVER_NODE)

    @abstractmethod
    def execute(self, messages: Sequence[Message]) -> list[Message]:
        """Delivers messages to their clients and returns the replies, in any order."""

    def adds_up(self, message_type: str) -> bool:
        """`partial_sums` answers messages of this type."""
        return False

    def partial_sums(self, exchange: Exchange) -> list[list[PartialSum]]:
        """The sums of the clients' replies: for each process one for each broadcast."""
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
        """Run information."""
        return self._run

    def set_run(self, run: Run) -> None:
        """Sets the run."""
        self._run = run

    def get_node_ids(self) -> Iterable[int]:
        """Returns one node id per virtual client."""
        return [node_of(client) for client in range(self.clients)]

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Creates a message to one node."""
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
        """Replies to these messages that have not been pulled yet."""
        return [self._answered.pop(key) for key in message_ids if key in self._answered]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Replies to the messages, or their sums where the strategy needs only these.

        Execution is synchronous, so there is nothing to time out.
        """
        if isinstance(messages, Exchange) and self.adds_up(messages.message_type):
            return combine(self.partial_sums(messages))
        return self.pull_messages(self.push_messages(messages))


def node_of(client: int) -> int:
    """The node id of a virtual client."""
    return _FIRST_NODE + client


def client_of(node: int) -> int:
    """The virtual client behind a node id."""
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
