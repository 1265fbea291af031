"""Answers of a node to one type of message, from the reading of the message to the reply."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from fedsink.clients.owner.ledger.charge import Charge, Round
from fedsink.clients.owner.policy import Policy
from fedsink.clients.owner.states import State
from fedsink.clients.records.shard import Shard
from fedsink.data.spec import DataSpec
from fedsink.data.views import view_from_dict
from fedsink.errors import ConfigError
from fedsink.privacy.randomness.keys import Key, ReproducibleKey, SecretKey
from fedsink.privacy.randomness.noise import Stream, Streams
from fedsink.protocol.packing import Packed, digest
from fedsink.secagg.parameters import Parameters
from fedsink.secagg.refusals import SumError
from fedsink.values import read_json

if TYPE_CHECKING:
    from flwr.app import RecordDict

    from fedsink.clients.records.pool import Pool
    from fedsink.privacy.plan import CentralPlan


class Task(NamedTuple):
    """Inputs of one client's answer, once its charge is committed.

    Attributes:
        digests: one for each round; the round's randomness is drawn under its digest.
        client: the client's number.
        shard: the client's records.
        key: the key of the client's randomness; see `stream`.
        state: finds the state that an answer keeps under this message's reservation, by the kind
            of the answer and further names (`fedsink.clients.owner.states`); as private as the
            records.
    """

    digests: Sequence[bytes]
    client: int
    shard: Shard
    key: Key
    state: Callable[..., State]

    def stream(self, purpose: str, round: int, index: int = 0) -> Stream:
        """Returns the randomness of one round for one purpose."""
        request = self.digests[index]
        return self.key.stream(purpose, client=self.client, round=round, request=request)

    def streams(self, round: int, index: int = 0) -> Callable[[str], Stream]:
        """Returns a function from a purpose to the randomness of one round."""
        return lambda purpose: self.stream(purpose, round, index)


@dataclass(frozen=True)
class Asked:
    """Virtual clients that one message asks, once it is admitted.

    Attributes:
        answer: to the message.
        clients: their numbers, increasing.
        places: their numbers in the pool of records.
        digests: as of a `Task`.
        key: of all clients' randomness.
        noise_of: in a sum of their answers, number of clients whose noise it holds: of all that
            are asked alike in the first part of them, and none in the others.
        state: finds a client's state, as of a `Task`.
    """

    answer: Any
    clients: np.ndarray
    places: Tensor
    digests: Sequence[bytes]
    key: ReproducibleKey | SecretKey
    noise_of: int
    state: Callable[..., State]

    def streams(self, purpose: str, index: int = 0) -> Streams:
        """Returns each client's randomness of one round for one purpose."""
        round, request = self.answer.rounds[index][0], self.digests[index]
        return self.key.streams(purpose, self.clients, round=round, request=request)

    def tasks(self, pool: Pool) -> list[Task]:
        """Returns the task of each client."""
        return [
            Task(self.digests, client, pool.shard(place), self.key, partial(self.state, client))
            for client, place in zip(self.clients.tolist(), self.places.tolist(), strict=True)
        ]


class Neighbours(NamedTuple):
    """Two neighbouring shards, and the messages of a run whose replies tell them apart best.

    Attributes:
        words: what they differ in.
        requests: a `Packable` for each message of the run, in order.
        absent: one shard; where records come and go, the one without the canary.
        present: its neighbour. In an audit of one run, its records are independent canaries.
    """

    words: str
    requests: Sequence[Any]
    absent: Shard
    present: Shard


class Answer(ABC):
    """The answer to one message of the type ``train.NAME``.

    `Node` reads it, then asks `check_policy`, `check_turn` and `check_data`, and stops at the first
    that refuses; the ledger admits the plan of the `charge`; the records are loaded; the ledger
    commits the `rounds`; `compute` makes the reply, which is stored and leaves as
    `record`. Where replies are stored, a message that comes again gets its own, without `compute`.

    An installed package adds an answer by the entry point NAME of the group ``fedsink.answers``. It
    is imported only where a policy allows that name.

    An answer that learns from message to message reads and puts its state in
    `compute`: behind the ledger's commit and before the reply is stored. `Task.state` finds it by
    the reservation: lineage, account, client, run, whole plan and version of the data. After a
    crash between its state t and the stored reply, the same message computes again from state
    t − 1, which therefore stays until the next message: with the same streams, if the node's key
    can draw them again. If that state is
    missing, the answer calls `State.lost`. A `BatchedAnswer` computes all
    clients of a cohort at once.

    Attributes:
        name: the message type without ``train.``.
        limits: whole numbers of the policy's ``[allow]`` table that bound a message, with their
            defaults; None: an owner who allows the answer must state it.
        adjacency: what its charge protects. None: an answer of the central mode, whose plan
            states the adjacency; an owner who allows it must state the limits of such plans.
        in_parts: several messages, of one `digest`, ask for parts of one release, of which a
            process keeps the last in memory.
        run: public name of the run that asks.
        rounds: the number of each round that the message asks for, and its class.
        parts: the names of the reply's tensors.
        most_records: number of records that the plan accounts for; None: any number.
        of_users: the records must tell users apart.
        operator: the signer of the message, by the policy's name; None: signatures are not checked.
        noise_parts: number of clients that the noise is spread over.
        protected: the reply is noised; False: answered only in a simulation of public data.
    """

    name: ClassVar[str]
    limits: ClassVar[Mapping[str, int | None]] = {}
    adjacency: ClassVar[str | None] = None
    in_parts: ClassVar[bool] = False
    run: str
    rounds: Sequence[Round]
    parts: Sequence[str]
    most_records: int | None = None
    protected: bool = True
    of_users: bool = False
    operator: str | None = None
    noise_parts: int = 1

    @abstractmethod
    def __init__(self, requests: Sequence[Any]) -> None:
        """The answer to one request for each round."""

    @classmethod
    def words(cls) -> tuple[str, ...]:
        """Returns the policy's words for the answer; for an installed answer, its name."""
        return (cls.name,)

    @classmethod
    @abstractmethod
    def read(cls, record: RecordDict, policy: Policy | None) -> Self:
        """Returns the answer to a message; raises ValueError where it is malformed.

        Asks the policy before it looks up a name that a package may have installed.
        """

    def digest(self, record: RecordDict | Packed) -> bytes:
        """Returns the SHA-256 of the whole message."""
        return digest(f"train.{self.name}", record)

    @abstractmethod
    def check_policy(self, policy: Policy) -> None:
        """Raises PolicyRefusedError for a request that the owner does not allow."""

    def check_turn(self, client: int, clients: int) -> None:  # noqa: B027
        """Raises ReleaseRefusedError where the plan's schedule does not ask this client."""

    def alike(self, client: int, clients: int) -> range:
        """Returns the clients of a simulation that are asked like this one in every round.

        They have one account and, where noise is drawn for their sum, one draw.
        """
        return range(clients)

    def check_turns(self, asked: np.ndarray, clients: int) -> None:
        """Does `check_turn` for each of some clients of a simulation."""
        if len(asked) > 1:
            alike = self.alike(int(asked[0]), clients)
            if bool((((asked - alike.start) % alike.step == 0) & (asked < alike.stop)).all()):
                asked = asked[:1]
        for client in asked.tolist():
            self.check_turn(client, clients)

    def check_sum(self, parameters: Parameters, client: int, clients: int) -> None:
        """Refuses a sum of replies; raises SumError.

        Args:
            parameters: the public numbers of the sum.
            client: the number of this client.
            clients: K, number of clients.
        """
        raise SumError(f"Replies to train.{self.name} are not added up under masks.")

    @abstractmethod
    def check_data(self, data: DataSpec) -> None:
        """Raises ValueError for a request that no node with such data can answer."""

    @abstractmethod
    def charge(self, *, trusted: bool) -> Charge:
        """Returns the plan's charge to the budget.

        Args:
            trusted: charge a part of the noise as the whole noise of the sum it is part of.
        """

    @abstractmethod
    def compute(self, task: Task) -> Sequence[Tensor]:
        """Returns the tensors of the reply, in the order of `parts`."""

    @abstractmethod
    def record(self, reply: Mapping[str, Tensor]) -> RecordDict:
        """Returns the reply as it travels."""

    @classmethod
    def canaries(cls, plan: Any, records: int = 1) -> Sequence[Neighbours]:
        """Neighbours that a plan lets differ most, for `fedsink audit`.

        Args:
            plan: the plan of the requests.
            records: number of canaries; above 1: for an audit of one run, each of them moves the
                replies in a direction of its own.

        Raises:
            ConfigError: the answer has none for this plan.
        """
        raise ConfigError(
            f"train.{cls.name} has no canaries, and is not audited: override `Answer.canaries`."
        )

    @classmethod
    def refuse_one_run(cls, records: int) -> None:
        """Raises ConfigError for more than one record, where canaries of one run are not known."""
        if records > 1:
            raise ConfigError(f"train.{cls.name} has no canaries of one run: leave canaries out.")

    def features(self, reply: Sequence[Tensor]) -> Tensor:
        """Returns one vector that holds all tensors of a reply; an audit compares it."""
        return torch.cat([values.flatten().double() for values in reply])


class BatchedAnswer(Answer):
    """An answer that is computed for many virtual clients at once, in simulations.

    The tensors of a reply have one shape, and together `values` numbers.

    Attributes:
        values: numbers in a reply.
        computes_sums: True if `compute_each` also adds up the clients of one content.
        plan: the plan of an answer that computes sums.
    """

    values: int
    computes_sums: ClassVar[bool] = False
    plan: CentralPlan

    @abstractmethod
    def fits(self, other: Self) -> bool:
        """Tells whether this answer and the other may be computed together."""

    @classmethod
    @abstractmethod
    def compute_each(cls, asked: Sequence[Asked], pool: Pool, *, summed: bool) -> Tensor:
        """Returns the result of `compute` for each of K clients, (K, parts, ...).

        Args:
            asked: clients whose answers fit together.
            pool: the records of these clients, and of others.
            summed: only where `computes_sums`: instead the sum over the clients of each of `asked`,
                in law (len(asked), parts, ...). The clients' totals are added before they are
                rounded, and the noise of `noise_of` clients is drawn once.
        """


def check_classes(classes: int, data: DataSpec) -> None:
    """Refuses a class list that is not the data's; 1: labels play no part. Raises ValueError.

    Checked before any record is read: a shorter list would fail only for clients or batches that
    hold a class beyond its end, and so reveal them.
    """
    public = len(data.classes)
    if classes not in (1, public):
        raise ValueError(f"The request has {classes} classes, the data {public}.")


def check_view(view: Mapping[str, Any], columns: int, data: DataSpec) -> None:
    """Refuses a view of other records than the data's, or points not in it; raises ValueError.

    Guarantees:
        A view that is not of the node's data is refused before it is built, which takes time and
        memory in proportion to its shape.
    """
    if view.get("shape") not in (data.shape, list(data.shape)):
        raise ValueError("The request's view is for records of another shape than the data's.")
    dimension = _dimension(json.dumps(view, sort_keys=True))
    if columns != dimension:
        raise ValueError(
            f"The rows have {columns} coordinates, the records in the request's view {dimension}."
        )


@lru_cache(maxsize=16)
def _dimension(view: str) -> int:
    return view_from_dict(read_json(view)).dimension
