"""Who takes part in a round: Poisson samples of records, public schedules of classes and of turns.

>>> ClassSchedule(10).uses(3000), TurnSchedule(50).uses(3000), JointSchedule().uses(3000)
(300, 60, 3000)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch

from fedsink.errors import PrivacyError
from fedsink.privacy import checks
from fedsink.privacy.randomness.noise import Stream, uniforms


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


@dataclass(frozen=True)
class JointSchedule:
    """Every round may use every record: a record is used in all T rounds."""

    name: ClassVar[str] = "joint"
    classes: ClassVar[int] = 1
    period: ClassVar[int] = 1

    @property
    def of_client(self) -> JointSchedule:
        """The schedule that a whole client sees: this one."""
        return self

    def uses(self, rounds: int) -> int:
        """How many of the first T rounds can touch one record: T."""
        return checks.count("rounds", rounds, minimum=0)

    def rounds_within(self, uses: int) -> int:
        """The largest number of rounds that touch a record at most `uses` times."""
        return checks.count("uses", uses, minimum=0)

    def label(self, client: int, round: int) -> None:
        """The class that is used in this round: None, that is, all of them."""

    def answers(self, client: int, round: int) -> bool:
        """Whether `client` is asked in `round`: always."""
        return True

    def cohort(self, client: int, clients: int) -> int:
        """m, how many of K clients are asked the same as `client` in every round: all K."""
        return clients


@dataclass(frozen=True)
class ClassSchedule:
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
    def period(self) -> int:
        """After how many rounds a client is asked the same again: C."""
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

    def answers(self, client: int, round: int) -> bool:
        """Whether `client` is asked in `round`: always."""
        return True

    def cohort(self, client: int, clients: int) -> int:
        """m, how many of K clients use the same class as `client`: those equal to it mod C.

        They are the same ones in every round, and m is ⌊K/C⌋ or ⌈K/C⌉.
        """
        return len(range(client % self.classes, clients, self.classes))


@dataclass(frozen=True)
class TurnSchedule:
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
    classes: ClassVar[int] = 1

    def __post_init__(self) -> None:
        checks.count("turns", self.turns)

    @property
    def period(self) -> int:
        """After how many rounds a client is asked again: P."""
        return self.turns

    @property
    def of_client(self) -> TurnSchedule:
        """The schedule that a whole client sees: this one."""
        return self

    def uses(self, rounds: int) -> int:
        """How many of the first T rounds can touch one record: ⌈T/P⌉."""
        return -(-checks.count("rounds", rounds, minimum=0) // self.turns)

    def rounds_within(self, uses: int) -> int:
        """The largest number of rounds that touch a record at most `uses` times: uses·P."""
        return checks.count("uses", uses, minimum=0) * self.turns

    def label(self, client: int, round: int) -> None:
        """The class that is used in this round: None, that is, all of them."""

    def answers(self, client: int, round: int) -> bool:
        """Whether `client` is asked in `round`: where round ≡ client mod P."""
        return (round - client) % self.turns == 0

    def cohort(self, client: int, clients: int) -> int:
        """m, how many of K clients answer in the rounds of `client`: those equal to it mod P."""
        return len(range(client % self.turns, clients, self.turns))


Schedule = JointSchedule | ClassSchedule | TurnSchedule
SCHEDULES: dict[str, type[JointSchedule] | type[ClassSchedule] | type[TurnSchedule]] = {
    schedule.name: schedule for schedule in (JointSchedule, ClassSchedule, TurnSchedule)
}


def schedule_to_dict(schedule: Schedule) -> dict[str, Any]:
    """The schedule as JSON-able values; `schedule_from_dict` gives the same schedule back."""
    return {"name": schedule.name, "classes": schedule.classes, **asdict(schedule)}


def schedule_from_dict(values: Mapping[str, Any]) -> Schedule:
    """The schedule written by `schedule_to_dict`.

    Raises:
        PrivacyError: If a value is out of range.
        KeyError, TypeError: If an entry is missing or unknown.
    """
    options = {**values}
    kind = SCHEDULES[options.pop("name")]
    if kind is not ClassSchedule:
        options.pop("classes")
    return kind(**options)


def check_schedule(schedule: object) -> None:
    """Raise PrivacyError for anything but a schedule."""
    if not isinstance(schedule, Schedule):
        names = ", ".join(kind.__name__ for kind in SCHEDULES.values())
        raise PrivacyError(f"schedule must be one of {names}, received {schedule!r}.")
