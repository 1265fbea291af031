"""What a ledger hands out: a reserved plan, and places in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedsink.clients.ledger.budget import Budget

EVERY_LABEL = -1  # how the file writes a use of all classes; NULL would be no key


Place = tuple[int, int | None]
"""A round and its class (None: all)."""


class Asked(NamedTuple):
    """Who asks for a plan, and how many new runs a day the owner admits.

    Attributes:
        operator: the owner's name of who has signed the request; None: it is not signed.
        method: the name of the answer.
        runs_per_day: None: any number.
    """

    operator: str | None = None
    method: str | None = None
    runs_per_day: int | None = None


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
        rounds: how many of the plan's first rounds are charged by now, all T where there are no
            instalments; they are numbered from 1.
        uses: in how many of them one labelled record may take part.
        budget: the account's ceiling.
        step: rounds of an instalment, fixed with the first; None: the plan is charged in full.
    """

    id: int
    run: int
    account: int
    lineage: str
    name: str
    rounds: int
    uses: int
    budget: Budget | None
    step: int | None = None
