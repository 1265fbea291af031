"""What a ledger hands out: a reserved plan, and places in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedsink.privacy.ledger.budget import Budget

EVERY_LABEL = -1  # how the file writes a use of all classes; NULL would be no key


Place = tuple[int, int | None]
"""A round and its class (None: all)."""


class Use(NamedTuple):
    """One mechanism use: its number in the plan, its class (None: all), what is answered."""

    round: int
    label: int | None
    digest: bytes


class Claim(NamedTuple):
    """Whether a use was claimed now, and whether its reply has been noted as released."""

    new: bool
    released: bool


@dataclass(frozen=True)
class Reservation:
    """A plan that an account has admitted; made by `Ledger.reserve` alone.

    Attributes:
        id, run, account: row numbers in the ledger.
        lineage: the owner's name of the data.
        name: the run's public name.
        rounds: T; rounds are numbered 1, ..., T.
        uses: in how many of them one labelled record may take part.
        budget: the account's ceiling.
    """

    id: int
    run: int
    account: int
    lineage: str
    name: str
    rounds: int
    uses: int
    budget: Budget | None
