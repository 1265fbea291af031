"""Who takes part in a round: Poisson samples of records, public schedules of classes and clients.

>>> ClassSchedule(10).uses(3000), TurnSchedule(50).uses(3000), JointSchedule().uses(3000)
(300, 60, 3000)
>>> PickSchedule(50).uses(3000)  # of the client that is picked most
80
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from fedsink.errors import PrivacyError
from fedsink.privacy import domain
from fedsink.privacy.randomness.noise import Stream, uniforms
from fedsink.values import privacy_checks as checks

MOST_PICKS = 10_000_000  # the public domain's rounds: `fedsink.privacy.domain`


@dataclass(frozen=True)
class PoissonSampler:
    """Include each record independently with probability q (the rate).

    The sample's size is random and private; an empty sample is normal where q·n is small.

    Guarantees:
        - Each record is included independently with probability q.
        - Whether one record is included does not depend on the number of records after it.
        - A capacity keeps a uniformly random part of a larger sample, and all of another one.

    Args:
        rate: q in (0, 1].

    Raises:
        PrivacyError: If the rate is outside (0, 1].
    """

    rate: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", checks.probability("rate", self.rate))

    def draw(self, n: int, stream: Stream) -> torch.Tensor:
        """Sorted int64 indices of the sampled records out of n ≥ 0."""
        checks.count("n", n, minimum=0)
        return torch.nonzero(stream.uniform(n) < self.rate).flatten()

    def draw_each(self, sizes: Sequence[int], streams: Sequence[Stream]) -> torch.Tensor:
        """Which records of several owners `draw` would sample, each with its own stream.

        Returns:
            (Σ sizes,) bool, one owner's records after the other's.
        """
        if any(type(stream) is not Stream for stream in streams):  # with draws of their own kind
            drawn = [s.uniform(size) for s, size in zip(streams, sizes, strict=True)]
            return torch.cat([torch.empty(0, dtype=torch.float64), *drawn]) < self.rate
        return uniforms(streams, sizes) < self.rate

    def draw_at_most(
        self, n: int, capacity: int, stream: Stream
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sample of `draw` in `capacity` places; of a larger one a uniformly random part.

        The places hold the records with the smallest uniforms. Given the sample, those are
        independent and alike, so whom an overflow leaves out is independent of the records.

        Returns:
            Indices (capacity,) int64, from n on where n < capacity, and which places are taken by
            a sampled record, (capacity,) bool. No shape depends on the sample.
        """
        checks.count("n", n, minimum=0)
        checks.count("capacity", capacity)
        uniforms = torch.cat((stream.uniform(n), torch.ones(capacity, dtype=torch.float64)))
        smallest, places = torch.topk(uniforms, capacity, largest=False)
        return places, smallest < self.rate


class Schedule(ABC):
    """Which clients and which of their records each round may use, by public numbers.

    Attributes:
        name: as in a configuration and in a message.
        classes: C where the rounds take turns at the classes of the labels, else 1.
        published: there to compare with published work, in simulations.
    """

    name: ClassVar[str]
    classes: int = 1
    published: ClassVar[bool] = False

    @property
    @abstractmethod
    def cohorts(self) -> int:
        """Into how many cohorts the clients fall, if there are so many."""

    @property
    def of_client(self) -> Schedule:
        """The schedule that a whole client sees: this one."""
        return self

    @abstractmethod
    def uses(self, rounds: int) -> int:
        """How many of the first T rounds can touch one record."""

    @abstractmethod
    def rounds_within(self, uses: int) -> int:
        """The largest number of rounds that touch a record at most `uses` times."""

    def label(self, client: int, round: int) -> int | None:
        """The class that `client` uses in this round; None: all of them."""
        return None

    def answers(self, client: int, round: int) -> bool:
        """Tells whether `client` is asked in `round`."""
        return True

    def answered(self, client: int, round: int) -> int:
        """In how many rounds before this one `client` is asked."""
        return round - 1

    @abstractmethod
    def cohort(self, client: int, clients: int) -> int:
        """m, how many of K clients are asked the same as `client` in every round."""

    def to_dict(self) -> dict[str, Any]:
        """The schedule as JSON-able values; `schedule_from_dict` gives the same schedule back."""
        return {"name": self.name, "classes": self.classes, **vars(self)}


@dataclass(frozen=True)
class JointSchedule(Schedule):
    """Every round may use every record: a record is used in all T rounds."""

    name: ClassVar[str] = "joint"
    cohorts: ClassVar[int] = 1

    def uses(self, rounds: int) -> int:
        """How many of the first T rounds can touch one record: T."""
        return checks.count("rounds", rounds, minimum=0)

    def rounds_within(self, uses: int) -> int:
        """The largest number of rounds that touch a record at most `uses` times."""
        return checks.count("uses", uses, minimum=0)

    def cohort(self, client: int, clients: int) -> int:
        """m, how many of K clients are asked the same as `client` in every round: all K."""
        return clients


@dataclass(frozen=True)
class ClassSchedule(Schedule):
    """In round t client k uses only its records of class (k + t) mod C, with C public classes.

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
        checks.count("classes", self.classes)

    @property
    def cohorts(self) -> int:
        """Into how many cohorts the clients fall, if there are so many: C."""
        return self.classes

    @property
    def of_client(self) -> JointSchedule:
        """The schedule that a whole client sees: it takes part in every round."""
        return JointSchedule()

    def uses(self, rounds: int) -> int:
        """How many of the first T rounds can touch one record: ⌈T/C⌉."""
        return -(-checks.count("rounds", rounds, minimum=0) // self.classes)

    def rounds_within(self, uses: int) -> int:
        """The largest number of rounds that touch a record at most `uses` times: uses·C."""
        return checks.count("uses", uses, minimum=0) * self.classes

    def label(self, client: int, round: int) -> int:
        """The class that `client` uses in `round`: (client + round) mod C."""
        return (client + round) % self.classes

    def cohort(self, client: int, clients: int) -> int:
        """m, how many of K clients use the same class as `client`: those equal to it mod C.

        They are the same ones in every round, and m is ⌊K/C⌋ or ⌈K/C⌉.
        """
        return len(range(client % self.classes, clients, self.classes))


@dataclass(frozen=True)
class TurnSchedule(Schedule):
    """Clients answer in turn: client k in the rounds t ≡ k mod P, with all of its records.

    A client, and so each of its records, is touched in at most ⌈T/P⌉ of the first T rounds. The
    turns are public: nothing is amplified, and nobody is asked more often than anybody else, as
    clients that are picked at random would be.

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
        checks.count("turns", self.turns)

    @property
    def cohorts(self) -> int:
        """Into how many cohorts the clients fall, if there are so many: P."""
        return self.turns

    def uses(self, rounds: int) -> int:
        """How many of the first T rounds can touch one record: ⌈T/P⌉."""
        return -(-checks.count("rounds", rounds, minimum=0) // self.turns)

    def rounds_within(self, uses: int) -> int:
        """The largest number of rounds that touch a record at most `uses` times: uses·P."""
        return checks.count("uses", uses, minimum=0) * self.turns

    def answers(self, client: int, round: int) -> bool:
        """Whether `client` is asked in `round`: where round ≡ client mod P."""
        return (round - client) % self.turns == 0

    def answered(self, client: int, round: int) -> int:
        """In how many rounds before this one `client` is asked."""
        return len(range((client - 1) % self.turns + 1, round, self.turns))

    def cohort(self, client: int, clients: int) -> int:
        """m, how many of K clients answer in the rounds of `client`: those equal to it mod P."""
        return len(range(client % self.turns, clients, self.turns))


class _Picks(NamedTuple):
    """Whom a `PickSchedule` picks in the first rounds, and how often it has picked somebody most.

    Attributes:
        clients: of each round.
        most: uses of the client picked most, up to and including each round.
    """

    clients: np.ndarray
    most: np.ndarray


@lru_cache(maxsize=4)
def _picks(clients: int, seed: int, rounds: int) -> _Picks:
    uniform = Stream(b"fedsink picks", seed).uniform(rounds).numpy()
    picked = (uniform * clients).astype(np.int64)
    order = np.argsort(picked, kind="stable")
    sorted_picks = picked[order]
    uses = np.empty(rounds, np.int64)
    uses[order] = np.arange(1, rounds + 1) - np.searchsorted(sorted_picks, sorted_picks)
    return _Picks(picked, np.maximum.accumulate(uses))


@dataclass(frozen=True)
class PickSchedule(Schedule):
    """In each round one of K clients is picked uniformly at random, by a public seed.

    This is the published schedule of GS-WGAN (Chen, Orekondy, Fritz 2020), there to compare with.
    The picks are public: nothing is amplified, and ε is that of the client which is picked most.
    They are a function of K, the seed and the round, so that its number of uses is known before
    the first round. With K turns it would be ⌈T/K⌉, no more than for any other client.

    Guarantees:
        - No client answers more often than `uses` in the first T rounds, and one does as often.
        - Whom a round picks does not depend on how many rounds there are.

    Args:
        clients: K, public.
        seed: of the picks, public.

    Raises:
        PrivacyError: If K is not an integer ≥ 1 in the public domain (`fedsink.privacy.domain`), or
            the seed not an integer ≥ 0.
    """

    clients: int
    seed: int = 0
    name: ClassVar[str] = "pick"
    published: ClassVar[bool] = True

    def __post_init__(self) -> None:
        domain.CLIENTS.check_count(self.clients)
        checks.count("seed", self.seed, minimum=0)

    @property
    def cohorts(self) -> int:
        """Into how many cohorts the clients fall: each is one of its own."""
        return self.clients

    def uses(self, rounds: int) -> int:
        """How many of the first T rounds can touch one record: those of the most picked client.

        Raises:
            PrivacyError: T is negative or outside the public domain.
        """
        return int(self._until(rounds).most[rounds - 1]) if rounds else 0

    def rounds_within(self, uses: int) -> int:
        """The largest number of rounds that touch a record at most `uses` times.

        Raises:
            PrivacyError: it is outside the public domain.
        """
        rounds = checks.count("uses", uses, minimum=0) + 1
        while self.uses(rounds) <= uses:
            rounds *= 2
        return int(np.searchsorted(self._until(rounds).most, uses, side="right"))

    def answers(self, client: int, round: int) -> bool:
        """Whether `client` is asked in `round`: where it is picked."""
        return bool(self._until(round).clients[round - 1] == client)

    def answered(self, client: int, round: int) -> int:
        """In how many rounds before this one `client` is asked."""
        return int((self._until(round).clients[: round - 1] == client).sum())

    def cohort(self, client: int, clients: int) -> int:
        """m, how many of K clients answer in the rounds of `client`: itself."""
        return 1

    def _until(self, rounds: int) -> _Picks:
        """The picks of these rounds and of some more, so that few lengths are drawn."""
        if checks.count("rounds", rounds) > MOST_PICKS:
            raise PrivacyError(f"rounds must be at most {MOST_PICKS:.4g}, received {rounds}.")
        return _picks(self.clients, self.seed, 1 << max(10, (rounds - 1).bit_length()))


SCHEDULES: dict[str, type[Schedule]] = {
    schedule.name: schedule
    for schedule in (JointSchedule, ClassSchedule, TurnSchedule, PickSchedule)
}


def schedule_from_dict(values: Mapping[str, Any]) -> Schedule:
    """The schedule written by `Schedule.to_dict`.

    Raises:
        PrivacyError: If a value is out of range.
        KeyError, TypeError: If an entry is missing or unknown.
    """
    options = {**values}
    kind = SCHEDULES[options.pop("name")]
    if kind is not ClassSchedule:
        options.pop("classes")
    return kind(**options)
