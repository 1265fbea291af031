"""Who takes part in a round: Poisson samples of records, and public schedules of classes.

>>> ClassSchedule(10).uses(3000), JointSchedule().uses(3000)
(300, 3000)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

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

    def uses(self, rounds: int) -> int:
        """How many of the first T rounds can touch one record: T."""
        return checks.count("rounds", rounds, minimum=0)

    def rounds_within(self, uses: int) -> int:
        """The largest number of rounds that touch a record at most `uses` times."""
        return checks.count("uses", uses, minimum=0)

    def label(self, client: int, round: int) -> None:
        """The class that is used in this round: None, that is, all of them."""

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


Schedule = JointSchedule | ClassSchedule


def schedule_named(name: str, classes: int) -> Schedule:
    """The schedule of this name; raises KeyError where there is none."""
    if name == JointSchedule.name:
        return JointSchedule()
    if name == ClassSchedule.name:
        return ClassSchedule(classes)
    raise KeyError(name)
