"""Clips of gradients of critics, each of which learns from its own part of a client's records.

>>> CriticClip(bound=0.5, critics=40).sensitivity
1.0
>>> RowClip(bound=0.5, rows=25).sensitivity
5.0
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from fedsink.errors import PrivacyError
from fedsink.privacy.clips.base import Clip, check_type, shrunk
from fedsink.values import privacy_checks as checks

if TYPE_CHECKING:
    from fedsink.privacy.sampling import Schedule

# With more critics the rounding of their sum could exceed the room below the bound.
MOST_CRITICS = 1 << 14
MOST_ROWS = 1 << 20


class ClipOfCritics(Clip):
    """A clip of gradients of critics: every part of the records takes part in every use."""

    needed: ClassVar[str] = "A sum over critics needs clip=critic, not {}."
    sampled: ClassVar[bool] = False

    @property
    @abstractmethod
    def critics(self) -> int:
        """M, public: no client adds up more critics."""

    @abstractmethod
    def check_size(self, critics: int, rows: int) -> None:
        """Refuses gradients of more critics at a client, or of more rows; raises PrivacyError."""

    @abstractmethod
    def total(self, gradients: torch.Tensor) -> torch.Tensor:
        """The sum of the clipped gradients of each of K clients, (K, M, n, D) → (K, n, D)."""

    def of_client(self, capacity: int | None) -> int:
        """M: the gradients of all critics of a client change."""
        return self.critics

    def reach(self, records: int) -> float:
        """A bound on the norm of all clipped gradients of a client together: M·S/2."""
        return 0.5 * self.sensitivity * self.critics

    def check_plan(self, schedule: Schedule, adjacency: str, capacity: int | None) -> None:
        """Refuses a capacity and a class schedule, which have no meaning for critics."""
        if capacity is not None:
            raise PrivacyError(
                f"clip={self.name} draws no batch of records, so capacity={capacity} has no "
                "meaning: leave it out."
            )
        if schedule.classes > 1:
            raise PrivacyError(
                f"clip={self.name} has no class schedule: a critic learns from records of every "
                "class, and remembers them in the rounds of the others. Use a joint or a turn "
                "schedule."
            )


@dataclass(frozen=True)
class CriticClip(ClipOfCritics):
    """Clips each critic's gradient g_m, an n×D matrix, to norm ≤ C; a client releases Σ_m g_m.

    The client deals its records to M critics by public slot numbers. A critic is any function of
    its own part of the records, of the transcript and of the client's coins, and so is g_m. A
    change of one part moves one summand within the ball of radius C: hence a sensitivity of 2C,
    whether a record is added, removed, replaced or relabelled, or the whole part changes. A change
    of all parts moves the sum by 2CM.

    With a rate q < 1 a client asks each critic with probability q in every round, and keeps secret
    which: g_m is zero where critic m is not asked. The coins of the round are independent of what
    g_m is a function of, because *every critic is trained in every round, asked or not*: no state
    remembers them. The state of a critic that is trained only when it is asked would remember
    them, and nothing would be amplified. For the pair of laws of a round see
    `fedsink.privacy.accounting.replacement`.

    Guarantees:
        - Each critic's clipped gradient has norm at most C, in exact arithmetic, for any gradient.
        - Two totals that differ in one critic's gradient are at most the sensitivity apart.
        - A critic whose gradient has a non-finite entry contributes zero.
        - Which operations run does not depend on the gradients' values.

    Args:
        bound: C, in units of a gradient's L2 norm; finite and > 0.
        critics: M from 1 to 2¹⁴, public: no client adds up more critics.

    Raises:
        PrivacyError: If the bound is not a finite number > 0, or M is not a whole number in range.
    """

    critics: int = MOST_CRITICS
    name: ClassVar[str] = "critic"
    replacement: ClassVar[str] = "opposite"
    account_options: ClassVar[tuple[str, ...]] = ("critics", "turns", "rows")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "critics", checks.count("critics", self.critics))
        if self.critics > MOST_CRITICS:
            raise PrivacyError(
                f"critics must be at most {MOST_CRITICS}, received {self.critics}: the rounding "
                "of a larger sum could exceed its sensitivity."
            )

    @property
    def sensitivity(self) -> float:
        """2C: what one critic's part of the records can change."""
        return 2.0 * self.bound

    def check_rate(self, rate: float) -> float:
        """The rate as a float in (0, 1]; raises PrivacyError for any other value."""
        return checks.probability("rate", rate)

    @classmethod
    def for_account(cls, options: Mapping[str, int]) -> ClipOfCritics:
        """The clip of M "critics" (default 1) with a bound of 1; given n "rows", the published one.

        As published (`RowClip`) each of the n rows is clipped by itself.
        """
        whole = cls(1.0, options.get("critics", 1))
        if "rows" not in options:
            return whole
        by_rows = RowClip(1.0, options["rows"])
        by_rows.check_size(whole.critics, by_rows.rows)
        return by_rows

    def asked_in_secret(self, rate: float) -> bool:
        """Tells whether critics are asked in a secret part of the rounds: at a rate below 1."""
        return rate < 1.0

    def check_size(self, critics: int, rows: int) -> None:
        """Refuses gradients of more critics at a client; raises PrivacyError."""
        if critics > self.critics:
            raise PrivacyError(
                f"the clip accounts for {self.critics} critics at a client, not for {critics}."
            )

    def total(self, gradients: torch.Tensor) -> torch.Tensor:
        """Σ_m clip(g_m, C) for each of K clients.

        Args:
            gradients: (K, M, n, D), float32 or float64, with M at most `critics`.

        Returns:
            (K, n, D) float64.

        Raises:
            PrivacyError: If the gradients are of another type, or of too many critics.
        """
        clients, critics, *shape = gradients.shape
        self.check_size(critics, shape[0])
        check_type(gradients)
        # Rounding moves either of two sums by less than 2⁻⁵²·M²·C ≤ 2⁻²⁴·C; shrunk leaves 2⁻²⁰·C.
        clipped = shrunk(gradients.flatten(0, 1).flatten(1), self.bound)
        return clipped.reshape(clients, critics, *shape).sum(1)


@dataclass(frozen=True)
class RowClip(ClipOfCritics):
    """Clips each row of a critic's gradient, an n×D matrix, to norm ≤ C; M = 1 critic a client.

    The published clip (Chen, Orekondy, Fritz 2020), for comparison. A row longer
    than C is scaled to C, any other is left as it is. All rows ask the same critic: a change of its
    part of the records moves each of them within a ball of radius C, and so the matrix by up to
    2C√n. The published noise of std 2Cσ' is therefore one of multiplier σ'/√n. `CriticClip` with
    the same noise moves by 2C.

    Guarantees:
        - Each row of the clipped gradient has norm at most C, in exact arithmetic.
        - Any two clipped gradients are at most the sensitivity apart.
        - A row with a non-finite entry becomes zero.
        - Which operations run does not depend on the gradient's values.

    Args:
        bound: C, in units of a row's L2 norm; finite and > 0.
        rows: n from 1 to 2²⁰, public: no gradient has more rows.

    Raises:
        PrivacyError: If the bound is not a finite number > 0, or n is not a whole number in range.
    """

    rows: int = MOST_ROWS
    name: ClassVar[str] = "row"
    published: ClassVar[bool] = True
    critics: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rows", checks.count("rows", self.rows))
        if self.rows > MOST_ROWS:
            raise PrivacyError(f"rows must be at most {MOST_ROWS}, received {self.rows}.")

    @property
    def sensitivity(self) -> float:
        """2C√n: the largest change at all n rows together by a critic's part of the records."""
        return 2.0 * self.bound * math.sqrt(self.rows)

    @property
    def claimed_sensitivity(self) -> float:
        """2C: the largest change at one row by a critic's part of the records."""
        return 2.0 * self.bound

    def check_rate(self, rate: float) -> float:
        """1.0; raises PrivacyError for any other rate."""
        if checks.probability("rate", rate) < 1.0:
            raise PrivacyError(
                f"clip={self.name} has only rate=1, received rate={rate:g}: as published a critic "
                "is trained when it is picked, and remembers it, so that a secret pick would not "
                "amplify. Use clip=critic, whose critics are trained in every round."
            )
        return 1.0

    def check_size(self, critics: int, rows: int) -> None:
        """Refuses gradients of several critics at a client or of more rows; raises PrivacyError."""
        if critics > self.critics:
            raise PrivacyError(f"clip={self.name} accounts for one critic, not for {critics}.")
        if rows > self.rows:
            raise PrivacyError(f"the clip accounts for {self.rows} rows, not for {rows}.")

    def total(self, gradients: torch.Tensor) -> torch.Tensor:
        """The clipped gradient of the one critic of each of K clients.

        Args:
            gradients: (K, 1, n, D), float32 or float64, with n at most `rows`.

        Returns:
            (K, n, D) float64.

        Raises:
            PrivacyError: If the gradients are of another type, or of too many critics or rows.
        """
        _, critics, rows, _ = gradients.shape
        self.check_size(critics, rows)
        check_type(gradients)
        return shrunk(gradients.flatten(0, -2), self.bound).reshape(gradients.shape).sum(1)
