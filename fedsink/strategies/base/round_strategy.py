"""A method as the rest of fedsink knows it: its `StrategySettings` and its `RoundStrategy`.

>>> [Quorum(value).of(25) for value in (None, 0.75, 0.56, 1.0, 4, 40)]
[25, 19, 14, 25, 4, 25]
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, Self, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from fedsink import __version__
from fedsink.configuration import Configuration
from fedsink.errors import ClientError, ConfigError
from fedsink.models import Generator
from fedsink.privacy import Stream
from fedsink.protocol.exchange import Nodes, Roster
from fedsink.protocol.failure_codes import MEANING
from fedsink.protocol.signing import identity_query, stated_client
from fedsink.values import is_number


@dataclass(frozen=True)
class Quorum:
    """The number of clients that must answer."""

    value: float | None = None  # a whole number ≥ 1, a fraction in (0, 1] of those asked, None: all
    spare: int = 0  # clients that may be missing where the value is None

    def __post_init__(self) -> None:
        value = self.value
        if value is None:
            return
        if not is_number(value) or not (isinstance(value, int) or 0.0 < value <= 1.0) or value <= 0:
            raise ConfigError(
                "strategy.quorum is null (all), a whole number of at least 1 or a fraction in "
                f"(0, 1], not {value!r}."
            )

    def of(self, clients: int) -> int:
        """Returns the number of answers that are enough where so many clients are asked."""
        if self.value is None:
            return max(1, clients - self.spare)
        if isinstance(self.value, int):
            return min(self.value, clients)
        return max(1, math.ceil(self.value * clients - 1e-9))  # 0.56 · 25 is 14.000000000000002


def check_quorum(value: float | None, clients: int) -> None:
    """Refuses a value that is no quorum, or a quorum of more clients than there are."""
    if isinstance(Quorum(value).value, int) and value is not None and value > clients:
        raise ConfigError(f"strategy.quorum={value} is more than clients={clients}.")


class PublicPlan(Protocol):
    """A description of what is done to records, in public numbers."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as JSON values."""


class StrategySettings(ABC):
    """Everything public about a run of one method.

    A method derives a frozen dataclass from this class, and names it in the `Settings` of its
    `RoundStrategy`. Its options are conf/strategy/NAME.yaml. No other code asks which method runs:
    a member of this class answers wherever methods differ.

    Attributes:
        name: as in `strategy.name`.
        mode: the privacy model, "central" or "ldp".
        title: shown beside the progress.
        remembers: whether clients keep a state from message to message.
        computes_sums: whether a simulation may draw the noise of a sum of replies once.
        leaves: what a client's reply holds, in words.
        plan: what is done to records.
        clients: K.
        quorum: number of the clients asked that must answer, as in `Quorum`.
        uses_per_message: U, number of rounds of the plan that one reply answers for.
    """

    name: ClassVar[str]
    mode: ClassVar[str]
    title: ClassVar[str]
    remembers: ClassVar[bool] = False
    computes_sums: ClassVar[bool] = False
    leaves: ClassVar[str] = "what its method sends"

    plan: PublicPlan
    clients: int
    quorum: float | None = None
    uses_per_message: int = 1

    @classmethod
    @abstractmethod
    def from_config(cls, config: Configuration, run: str) -> Self:
        """Reads the settings from a configuration; `__post_init__` checks their values.

        Args:
            config: its `strategy` has the method's own options.
            run: public name of the run, stated in every request.

        Raises:
            FedsinkError: a value is unknown, out of range, or belongs to the other mode.
        """

    @abstractmethod
    def statement(self, noise: str) -> dict[str, Any]:
        """Returns the promise of privacy.json.

        Args:
            noise: kind of the clients' noise key, or "node" where each owner decides.
        """

    def privacy_entries(self, noise: str) -> dict[str, Any]:
        """Returns the content of privacy.json, with the plan that its numbers follow from."""
        plan = {"mode": self.mode, **self.plan.to_dict()}
        return {**self.statement(noise), "method": self.name, "fedsink": __version__, "plan": plan}

    def notice(self, privacy: Mapping[str, Any]) -> str | None:
        """Returns a line for the person who starts the run, given what `privacy` returned."""
        return None

    @property
    def enough(self) -> Quorum:
        """Number of the clients asked that must answer."""
        return Quorum(self.quorum)

    @property
    def masked_run(self) -> str | None:
        """Name of the run whose replies are added up under masks; None: no masks."""
        return None

    def reply(self, count: int, weights: int) -> RecordDict | None:
        """Returns a client's reply made of zeros, whose size is that of every reply.

        Args:
            count: rounds of the plan that it answers for (central), or records that it holds (ldp).
            weights: number of weights of the generator.

        Returns:
            None where the method does not say.
        """
        return None

    @property
    def many_clients(self) -> float:
        """So many answers a round are worth sharing among processes (`engine=auto`)."""
        return math.inf

    def rounds_asked(self, client: int, rounds: int) -> int:
        """Returns the number of rounds that a client is asked for in the first `rounds` rounds."""
        return rounds

    def check_sizes(self, sizes: Sequence[int]) -> None:  # noqa: B027 (most accept all)
        """Refuses a partition under which a client would have to refuse every request.

        Args:
            sizes: number of records of each simulated client.

        Raises:
            ConfigError: naming the client's number of records.
        """

    def identity(self) -> dict[str, Any]:
        """Returns the values that a checkpoint and a run that continues from it have in common."""
        return {**asdict(self), "plan": self.plan.to_dict()}  # type: ignore[call-overload]


T = TypeVar("T")


class RoundStrategy(Strategy):
    """A strategy that owns its generator and can be stopped, saved and resumed between rounds.

    It runs under Flower's own `Strategy.start` as well as under `fedsink.server.loop`. The
    generator never leaves the server, so the `arrays` that Flower hands around stay empty.

    A round of Flower is one exchange of messages. It may hold several of the T rounds that
    are counted here (rounds of the plan in the central mode, training steps in the ldp mode), or
    none of them, where clients upload what the first of them needs.

    Args:
        rounds: T.
        clients: K.
        rounds_per_message: U, rounds in one exchange of messages.
        quorum: number of the clients asked that must answer; None: all.

    Attributes:
        Settings: the class of its settings; a strategy is built from (settings, generator, key).
        round: number of rounds done.
        absent: clients that did not answer in the last exchange.
        missed: client → number of exchanges that it did not answer.
        void: number of exchanges without any sum of replies.
    """

    Settings: ClassVar[type[StrategySettings]]
    _key: bytes

    def __init__(
        self,
        rounds: int,
        clients: int,
        rounds_per_message: int = 1,
        quorum: Quorum | None = None,
    ) -> None:
        self.rounds = rounds
        self.clients = clients
        self.rounds_per_message = rounds_per_message
        self.quorum = quorum or Quorum()
        self.round = 0
        self.absent: list[int] = []
        self.missed: dict[int, int] = {}
        self.void = 0
        self._roster: Mapping[int, int] = {}
        self._nodes: Mapping[int, int] = {}

    @property
    def messages(self) -> int:
        """⌈T/U⌉, exchanges of messages in the whole run."""
        return -(-self.rounds // self.rounds_per_message)

    @property
    def message(self) -> int:
        """Number of exchanges of messages done."""
        return -(-self.round // self.rounds_per_message)

    def discover(self, grid: Grid) -> Mapping[int, int]:
        """Returns client → node, in client order; asks every node if the grid has no roster.

        Raises:
            ClientError: a node does not answer, two nodes state one client, or more clients are
                missing than the quorum allows.
            ProtocolVersionError, ValueError: a node's answer does not say which client it is.
        """
        if isinstance(grid, Roster):
            found = grid.roster()
        else:
            found = self._roster or self._ask_every_node(grid)
        if found is not self._roster:
            everybody = range(self.clients)
            if any(client not in everybody for client in found) or (
                len(found) < self.quorum.of(self.clients)
            ):
                raise ClientError(
                    f"Expected the clients 0 to {self.clients - 1}, found {len(found)} of them."
                )
            self._roster = found
            self._nodes = found if isinstance(found, Nodes) else dict(sorted(found.items()))
        return self._nodes

    def _ask_every_node(self, grid: Grid) -> dict[int, int]:
        found: dict[int, int] = {}
        for reply in grid.send_and_receive([identity_query(node) for node in grid.get_node_ids()]):
            check(reply, "saying which client it is")
            client, node = stated_client(reply.content), reply.metadata.src_node_id
            if client in found:
                raise ClientError(f"The nodes {found[client]} and {node} both are client {client}.")
            found[client] = node
        return found

    def answers(
        self,
        replies: Iterable[Message],
        task: str,
        expected: Collection[int],
        read: Callable[[int, RecordDict], T],
        needed: int | None = None,
    ) -> dict[int, T]:
        """Returns client → answer, and notes missing clients in `absent` and `missed`.

        The order is that of the clients: float sums must not depend on which reply came first.

        Args:
            replies: the replies to one exchange.
            task: the clients' task in words, for errors.
            expected: the clients that the exchange is for, including those out of reach.
            read: turns a client and its content into the answer; raises ClientError where the
                content is of no use.
            needed: number of answers that are enough; None: the quorum of `expected`.

        Raises:
            ClientError: fewer clients answered.
        """
        clients = {node: client for client, node in self._nodes.items()}
        contents: dict[int, T] = {}
        failures: list[ClientError] = []
        for reply in replies:
            client = clients.get(reply.metadata.src_node_id)
            try:
                check(reply, task, client)
                if client is not None and client in expected:
                    contents[client] = read(client, reply.content)
            except ClientError as error:
                failures.append(error)
        needed = self.quorum.of(len(expected)) if needed is None else needed
        self.absent = sorted(set(expected) - set(contents))
        if len(contents) < needed:
            if failures:
                raise failures[0]
            raise ClientError(
                f"While {task}, {len(self.absent)} of {len(expected)} clients did not answer "
                f"(client {self.absent[0]} first); continue from the checkpoint with resume=, or "
                "raise engine.timeout."
            )
        self.note_absent(self.absent)
        return dict(sorted(contents.items()))

    def skip(self, number: int) -> MetricRecord:
        """Counts the rounds of a message that has no sum of replies, and takes no step.

        The clients have charged it, so that its rounds are not asked for again.

        Args:
            number: the number of the message, from 1.
        """
        self.note_absent(self.asked)
        self.void += 1
        self.round = min(self.rounds_per_message * number, self.rounds)
        return MetricRecord()

    @property
    def uploading(self) -> bool:
        """True before round 1, while an exchange only takes in what clients upload."""
        return False

    @property
    def asked(self) -> Sequence[int]:
        """The clients that the present exchange is for, including those out of reach."""
        return range(self.clients)

    def note_absent(self, clients: Sequence[int]) -> None:
        """Counts clients whose answers are not part of this exchange."""
        self.absent = sorted(clients)
        for client in self.absent:
            self.missed[client] = self.missed.get(client, 0) + 1

    @property
    @abstractmethod
    def generator(self) -> Generator:
        """The generator to sample from: the average of the weights where one is kept."""

    @abstractmethod
    def label_prior(self) -> Tensor:
        """Returns public class probabilities for sampling, (C,)."""

    total_epsilon: float | None = None
    """ε of a run and its private start together, in place of the two that follow."""

    @abstractmethod
    def epsilon_so_far(self) -> float:
        """Returns an upper bound on the ε of everything released until now (information only)."""

    def epsilon_bound(self) -> float:
        """Returns an upper bound on `epsilon_so_far` that is cheap enough for every round."""
        return self.epsilon_so_far()

    def latent_stream(self, purpose: str, number: int) -> Stream:
        """Returns keyed randomness of the server (not secret) for one round or step."""
        return Stream(self._key, purpose, number)

    @abstractmethod
    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Returns tensors and JSON-able values from which a run continues as if never stopped."""

    @abstractmethod
    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Restores what `state` returned."""

    def uploads(self) -> dict[str, Tensor]:
        """Returns the uploads that never change (stored once, beside the checkpoint)."""
        return {}

    def load_uploads(self, tensors: dict[str, Tensor]) -> None:
        """Restores what `uploads` returned."""

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Asks for nothing: clients' data is no test set."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Returns None: nothing was asked."""
        return None

    def summary(self) -> None:
        """Does nothing where Flower logs a summary: fedsink's run folder holds it."""


def check(reply: Message, task: str, client: int | None = None) -> None:
    """Raises a `ClientError` that names client and task, if the reply is an error."""
    if reply.has_error():
        who = f"client {client}" if client is not None else f"node {reply.metadata.src_node_id}"
        raise failure(reply.error.code, task, who)


def failure(code: int, task: str, who: str) -> ClientError:
    """Returns the error that names client and task, as far as a code tells."""
    what = MEANING.get(code, f"answered with Flower's error {code}")
    return ClientError(
        f"While {task}, {who} {what}; its own log says why (of a simulation --debug shows it, "
        "and Python's logger fedsink.clients)."
    )
