"""Samplers and schedules: the records and the clients that each round uses.

A `PoissonSampler` draws a secret batch of a client's records; a `Schedule` says by public numbers
which clients, and which classes of records, a round may use. Both enter a `PrivacyPlan`: rate q of
the sampler, and number of rounds that can use one record (`Schedule.uses`).

>>> ClassSchedule(10).uses(3000), TurnSchedule(50).uses(3000), JointSchedule().uses(3000)
(300, 60, 3000)
>>> PickSchedule(50).uses(3000)  # of the client that is picked most
80
>>> PoissonSampler(0.2).draw(30, Stream(b"key", "batch", 7)).tolist()
[4, 10, 11]
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from fedsink.privacy import domain
from fedsink.privacy.randomness.noise import Numbers, Several, Stream, overridden, uniforms
from fedsink.values import privacy_checks as checks


@dataclass(frozen=True)
class PoissonSampler:
    """Includes each record independently with probability q (the rate).

    The sample's size is random and private; an empty sample is normal where q·n is small.

    Guarantees:
        - Each record is included independently with probability q.
        - The inclusion of a record does not depend on the number of records after it.
        - A capacity keeps a uniformly random part of a larger sample, and all of a smaller one.

    Args:
        rate: q in (0, 1].

    Raises:
        PrivacyError: If the rate is outside (0, 1].
    """

    rate: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", checks.probability("rate", self.rate))

    def draw(self, n: int, stream: Stream) -> torch.Tensor:
        """Returns the sorted int64 indices of the sampled records out of n ≥ 0."""
        checks.count("n", n, minimum=0)
        return torch.nonzero(stream.uniform(n) < self.rate).flatten()

    def draw_each(self, sizes: Numbers, streams: Several) -> torch.Tensor:
        """Marks of what `draw` samples at each owner by its own stream, in order, (Σ sizes,)."""
        if overridden(streams):
            drawn = [s.uniform(int(size)) for s, size in zip(streams, sizes, strict=True)]
            return torch.cat([torch.empty(0, dtype=torch.float64), *drawn]) < self.rate
        return uniforms(streams, sizes) < self.rate

    def draw_at_most(
        self, n: int, capacity: int, stream: Stream
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the sample of `draw` in `capacity` places; of a larger one a random part.

        The places hold the records with the smallest uniforms. Given the sample, its uniforms are
        independent and alike, so the records that an overflow leaves out depend on no record.

        Returns:
            Indices (capacity,) int64, from n on where n < capacity, and marks of the places that a
            sampled record takes, (capacity,) bool. No shape depends on the sample.
        """
        checks.count("n", n, minimum=0)
        checks.count("capacity", capacity)
        uniforms = torch.cat((stream.uniform(n), torch.ones(capacity, dtype=torch.float64)))
        smallest, places = torch.topk(uniforms, capacity, largest=False)
        return places, smallest < self.rate


class Schedule(ABC):
    """The clients, and those of their records, that each round may use, by public numbers.

    Rounds ask P = `cohorts` parts, most schedules in turn, so that one part is asked in at most
    ⌈T/P⌉ of the first T rounds. A part is a class of labels at every client, or a group of clients.
    """

    name: ClassVar[str]  # as in a configuration and in a message
    classes: int = 1  # C where the rounds take turns at the classes of the labels
    published: ClassVar[bool] = False  # only for comparison with published work, in simulations

    @property
    @abstractmethod
    def cohorts(self) -> int:
        """P, number of cohorts of clients, if there are at least as many clients."""

    @property
    def of_client(self) -> Schedule:
        """The schedule of a whole client's rounds: this one."""
        return self

    def uses(self, rounds: int) -> int:
        """Returns the number of the first T rounds that can touch one record: ⌈T/P⌉."""
        return -(-checks.count("rounds", rounds, minimum=0) // self.cohorts)

    def rounds_within(self, uses: int) -> int:
        """Returns the largest number of rounds that touch a record at most `uses` times: uses·P."""
        return checks.count("uses", uses, minimum=0) * self.cohorts

    def label(self, client: int, round: int) -> int | None:
        """Returns the class that `client` uses in this round, None for all of them."""
        return None

    def answers(self, client: int, round: int) -> bool:
        """True if `client` is asked in `round`."""
        return True

    def turn(self, round: int, clients: int) -> range:
        """Returns the clients that are asked in `round`."""
        return range(clients)

    def answered(self, client: int, round: int) -> int:
        """Returns the number of rounds before this one in which `client` is asked."""
        return round - 1

    def members(self, client: int, clients: int) -> range:
        """Returns the cohort of `client`: the clients that get its request, equal to it mod P.

        It is the same in every round.
        """
        return range(client % self.cohorts, clients, self.cohorts)

    def cohort(self, client: int, clients: int) -> int:
        """Returns m, the number of clients in the cohort of `client`: ⌊K/P⌋ or ⌈K/P⌉."""
        return len(self.members(client, clients))

    def to_dict(self) -> dict[str, Any]:
        """Returns the schedule as JSON-able values, which `schedule_from_dict` reads."""
        return {"name": self.name, "classes": self.classes, **vars(self)}


@dataclass(frozen=True)
class JointSchedule(Schedule):
    """Every round may use every record: P = 1, and a record is used in all T rounds."""

    name: ClassVar[str] = "joint"
    cohorts: ClassVar[int] = 1


@dataclass(frozen=True)
class ClassSchedule(Schedule):
    """In round t client k uses only its records of class (k + t) mod C, with P = C public classes.

    A labelled record is then touched in at most ⌈T/C⌉ of the first T rounds: parallel
    composition by label, valid under zero-out / add-remove of one *labelled* record at one
    client, and only if the client replies in every round, also for a class it lacks.

    Guarantees:
        - No client visits one class more than ⌈T/C⌉ times in its first T rounds.

    Args:
        classes: C, public and fixed in the configuration; never read from private data.

    Raises:
        PrivacyError: If the number of classes is not an integer ≥ 1.
    """

    classes: int
    name: ClassVar[str] = "class"

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", checks.count("classes", self.classes))

    @property
    def cohorts(self) -> int:
        return self.classes

    @property
    def of_client(self) -> JointSchedule:
        """A client takes part in all rounds."""
        return JointSchedule()

    def label(self, client: int, round: int) -> int:
        return (client + round) % self.classes


@dataclass(frozen=True)
class TurnSchedule(Schedule):
    """Clients answer in turn: client k in the rounds t ≡ k mod P, with all of its records.

    A client, and so each of its records, is touched in at most ⌈T/P⌉ of the first T rounds. The
    turns are public: nothing is amplified. No client is asked more often than another, as clients
    that are picked at random are.

    Guarantees:
        - No client answers more than ⌈T/P⌉ times in its first T rounds.

    Args:
        turns: P, public and fixed in the configuration.

    Raises:
        PrivacyError: If the number of turns is not an integer ≥ 1.
    """

    turns: int
    name: ClassVar[str] = "turn"

    def __post_init__(self) -> None:
        object.__setattr__(self, "turns", checks.count("turns", self.turns))

    @property
    def cohorts(self) -> int:
        return self.turns

    def answers(self, client: int, round: int) -> bool:
        return (round - client) % self.turns == 0

    def turn(self, round: int, clients: int) -> range:
        return range(round % self.turns, clients, self.turns)

    def answered(self, client: int, round: int) -> int:
        return len(range((client - 1) % self.turns + 1, round, self.turns))


@dataclass(frozen=True)
class PickSchedule(Schedule):
    """In each round one of K clients is picked uniformly at random, by a public seed.

    The published schedule of GS-WGAN (Chen, Orekondy, Fritz 2020), for comparison.
    The picks are public: nothing is amplified, and ε is that of the client which is picked most.
    They are a function of K, the seed and the round, so that its number of uses is known before
    the first round. With K turns it would be ⌈T/K⌉, as for every other client.

    Guarantees:
        - No client answers more often than `uses` in the first T rounds, and one does as often.
        - The client that a round picks does not depend on the number of rounds.

    Args:
        clients: K, public.
        seed: the seed of the picks, public.

    Raises:
        PrivacyError: If K is not an integer ≥ 1 in the public domain (`fedsink.privacy.domain`), or
            the seed not an integer ≥ 0.
    """

    clients: int
    seed: int = 0
    name: ClassVar[str] = "pick"
    published: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", domain.CLIENTS.check_count(self.clients))
        object.__setattr__(self, "seed", checks.count("seed", self.seed, minimum=0))

    @property
    def cohorts(self) -> int:
        """K: every client is a cohort by itself."""
        return self.clients

    def uses(self, rounds: int) -> int:
        """Returns the number of the first T rounds that ask the client picked most; T ≤ 10⁷."""
        return int(self._until(rounds).most[rounds - 1]) if rounds else 0

    def rounds_within(self, uses: int) -> int:
        """Returns the largest number of rounds ≤ 10⁷ that touch a record at most `uses` times."""
        most = int(domain.ROUNDS.high)
        rounds = min(most, checks.count("uses", uses, minimum=0) + 1)
        while self.uses(rounds) <= uses:
            if rounds == most:
                return most
            rounds = min(most, 2 * rounds)
        return int(np.searchsorted(self._until(rounds).most, uses, side="right"))

    def answers(self, client: int, round: int) -> bool:
        return bool(self._until(round).clients[round - 1] == client)

    def turn(self, round: int, clients: int) -> range:
        picked = int(self._until(round).clients[round - 1])
        return range(picked, picked + 1)

    def answered(self, client: int, round: int) -> int:
        return int((self._until(round).clients[: round - 1] == client).sum())

    def members(self, client: int, clients: int) -> range:
        """Returns only `client`: no other one answers in its rounds."""
        return range(client, client + 1)

    def _until(self, rounds: int) -> _Picks:
        """Returns the picks of these rounds and of some more, so that few lengths are drawn."""
        rounds = domain.ROUNDS.check_count(rounds)
        return _picks(self.clients, self.seed, 1 << max(10, (rounds - 1).bit_length()))


class _Picks(NamedTuple):
    clients: np.ndarray  # picked in each round
    most: np.ndarray  # uses of the client picked most, up to and including each round


def _sized(text: bytes) -> bytes:
    return len(text).to_bytes(8, "big") + text


@lru_cache(maxsize=4)
def _picks(clients: int, seed: int, rounds: int) -> _Picks:
    # ε is stated for these picks, so they stay what they are when other random numbers change.
    context, pieces = b"b" + _sized(b"fedsink picks") + b"i" + _sized(str(seed).encode()), 1 << 17
    digests = (
        hashlib.shake_256(context + b"c" + bytes(8) + (start // pieces).to_bytes(8, "big")).digest(
            8 * min(pieces, rounds - start)
        )
        for start in range(0, rounds, pieces)
    )
    uniform = ((np.frombuffer(b"".join(digests), "<u8") >> np.uint64(12)) + 0.5) * 2.0**-52
    picked = (uniform * clients).astype(np.int64)
    # A stable sort puts each client's rounds side by side, in order: the distance of a round from
    # the first of them counts the client's picks until then.
    order = np.argsort(picked, kind="stable")
    sorted_picks = picked[order]
    uses = np.empty(rounds, np.int64)
    uses[order] = np.arange(1, rounds + 1) - np.searchsorted(sorted_picks, sorted_picks)
    return _Picks(picked, np.maximum.accumulate(uses))


SCHEDULES: dict[str, type[Schedule]] = {
    schedule.name: schedule
    for schedule in (JointSchedule, ClassSchedule, TurnSchedule, PickSchedule)
}


def schedule_from_dict(values: Mapping[str, Any]) -> Schedule:
    """Returns the schedule written by `Schedule.to_dict`.

    Raises PrivacyError for a value out of range, KeyError or TypeError for an entry that is missing
    or unknown.
    """
    options = {**values}
    kind = SCHEDULES[options.pop("name")]
    if kind is not ClassSchedule:
        options.pop("classes")
    return kind(**options)
