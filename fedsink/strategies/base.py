"""What every strategy of fedsink is to the server loop, on top of Flower's `Strategy`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from fedsink.errors import ClientError
from fedsink.models import Generator
from fedsink.privacy import Stream
from fedsink.protocol.exchange import Roster
from fedsink.protocol.failure_codes import MEANING
from fedsink.protocol.node_identity import identity_query, stated_client
from fedsink.strategies.quorum import Quorum
from fedsink.strategies.settings import StrategySettings

T = TypeVar("T")


class RoundStrategy(Strategy):
    """A strategy that owns its generator and can be stopped, saved and resumed between rounds.

    It runs under Flower's own `Strategy.start` as well as under `fedsink.server.loop`. The
    generator never leaves the server, so the `arrays` that Flower hands around stay empty.

    What Flower calls a round is one exchange of messages, and may hold several of the T rounds
    that are counted here (uses of a mechanism in central mode, training steps in local mode).

    Args:
        rounds: T, how many rounds the strategy runs.
        clients: how many clients take part.
        rounds_per_message: U, how many of them one exchange of messages holds.
        quorum: how many of the clients that are asked must answer.

    Attributes:
        Settings: of the method, where the registry finds it; it is then built from
            (settings, generator, key).
        round: how many of the T rounds are done.
        absent: clients that the last exchange was for, and that did not answer.
        missed: client → how many exchanges it did not answer.
    """

    Settings: ClassVar[type[StrategySettings]]

    def __init__(
        self,
        rounds: int,
        clients: int,
        rounds_per_message: int = 1,
        quorum: float | None = None,
    ) -> None:
        self.rounds = rounds
        self.clients = clients
        self.rounds_per_message = rounds_per_message
        self.quorum = Quorum(quorum)
        self.round = 0
        self.absent: list[int] = []
        self.missed: dict[int, int] = {}
        self._roster: Mapping[int, int] = {}
        self._nodes: dict[int, int] = {}

    @property
    def messages(self) -> int:
        """⌈T/U⌉, exchanges of messages in the whole run."""
        return -(-self.rounds // self.rounds_per_message)

    @property
    def message(self) -> int:
        """How many exchanges of messages are done."""
        return -(-self.round // self.rounds_per_message)

    def discover(self, grid: Grid) -> dict[int, int]:
        """Which client is at which node, in client order; asks each where the grid cannot tell.

        Raises:
            ClientError: a node does not answer, clients are doubled, or more of them are missing
                than the quorum allows.
        """
        if isinstance(grid, Roster):
            found = grid.roster()
        else:
            found = self._roster or self._ask_everybody(grid)
        if found is not self._roster:
            everybody = range(self.clients)
            if any(client not in everybody for client in found) or (
                len(found) < self.quorum.of(self.clients)
            ):
                raise ClientError(
                    f"Expected the clients 0 to {self.clients - 1}, found {len(found)} of them."
                )
            self._roster, self._nodes = found, dict(sorted(found.items()))
        return self._nodes

    def _ask_everybody(self, grid: Grid) -> dict[int, int]:
        found: dict[int, int] = {}
        for reply in grid.send_and_receive([identity_query(node) for node in grid.get_node_ids()]):
            check(reply, "saying which client it is")
            found[stated_client(reply.content)] = reply.metadata.src_node_id
        return found

    def answers(
        self,
        replies: Iterable[Message],
        doing: str,
        asked: Collection[int],
        read: Callable[[int, RecordDict], T],
        needed: int | None = None,
    ) -> dict[int, T]:
        """What clients answered, in client order: float sums must not depend on who was first.

        Whoever is missing is noted in `absent` and `missed`.

        Args:
            replies: to one exchange.
            doing: what the clients were asked to do, for errors.
            asked: the clients that the exchange is for, those that could not be reached included.
            read: makes of a client and a content what is used of it; raises ClientError where it
                is of no use.
            needed: how many answers are enough; None: the quorum of those asked.

        Raises:
            ClientError: fewer of them answered.
        """
        clients = {node: client for client, node in self._nodes.items()}
        contents: dict[int, T] = {}
        failures: list[ClientError] = []
        for reply in replies:
            client = clients.get(reply.metadata.src_node_id)
            try:
                check(reply, doing, client)
                if client is not None and client in asked:
                    contents[client] = read(client, reply.content)
            except ClientError as error:
                failures.append(error)
        needed = self.quorum.of(len(asked)) if needed is None else needed
        self.absent = sorted(set(asked) - set(contents))
        if len(contents) < needed:
            if failures:
                raise failures[0]
            missing = self.absent
            raise ClientError(
                f"While {doing}, {len(missing)} of {len(asked)} clients did not answer "
                f"(client {missing[0]} first); continue from the checkpoint with resume=, or raise "
                "engine.timeout."
            )
        for client in self.absent:
            self.missed[client] = self.missed.get(client, 0) + 1
        return dict(sorted(contents.items()))

    @property
    @abstractmethod
    def generator(self) -> Generator:
        """The generator to sample from: the average of the weights where one is kept."""

    @abstractmethod
    def render(self, images: Tensor) -> Tensor:
        """What the generator's output looks like to a person (identity in central mode)."""

    @abstractmethod
    def label_prior(self) -> Tensor:
        """Public class probabilities for sampling, (C,)."""

    @abstractmethod
    def epsilon_so_far(self) -> float:
        """An upper bound on the ε of everything released until now (information only)."""

    def epsilon_bound(self) -> float:
        """An upper bound on `epsilon_so_far` that takes no time, for every round."""
        return self.epsilon_so_far()

    @abstractmethod
    def latent_stream(self, purpose: str, number: int) -> Stream:
        """The server's own keyed randomness (not secret)."""

    @abstractmethod
    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON-able values from which `load_state` continues bit-identically."""

    @abstractmethod
    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Restore what `state` returned."""

    def uploads(self) -> dict[str, Tensor]:
        """What was received once and never changes (stored once, beside the checkpoint)."""
        return {}

    def load_uploads(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `uploads` returned."""

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: clients' data is no test set."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing was asked."""
        return None

    def summary(self) -> None:
        """Flower logs a summary here; fedsink's run folder holds it."""


def check(reply: Message, asked: str, client: int | None = None) -> None:
    """Raise a `ClientError` naming who failed at what, if the reply is an error."""
    if reply.has_error():
        who = f"client {client}" if client is not None else f"node {reply.metadata.src_node_id}"
        raise failure(reply.error.code, asked, who)


def failure(code: int, asked: str, who: str) -> ClientError:
    """The error that says who failed at what, as far as a code tells."""
    what = MEANING.get(code, f"answered with Flower's error {code}")
    return ClientError(
        f"While {asked}, {who} {what}; its own log says why (--debug shows it in a simulation)."
    )
