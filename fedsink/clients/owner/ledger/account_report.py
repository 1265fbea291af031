"""Reports of a ledger to its owner: what is charged and left, and all runs.

`report` gives it as objects, `export` as JSON for an auditor.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from fedsink.clients.owner.ledger.database import Database
from fedsink.clients.owner.ledger.ledger import today
from fedsink.values import read_json

FORMAT = "fedsink ledger 2"


@dataclass(frozen=True)
class RunReport:
    """Reports one run and its plan."""

    run: str  # its public name; "" where an older ledger charged several runs as one
    epsilon: float | None  # None in an account without a ceiling
    delta: float
    operator: str | None  # the policy's name of who asked
    method: str | None  # name of the answer
    day: str | None
    rounds: int  # number of rounds that are paid; `claimed` of them have an answer
    claimed: int
    plan: dict[str, Any]
    event: dict[str, Any]


@dataclass(frozen=True)
class AccountReport:
    """Reports one account, a (lineage, adjacency), with its ceiling; None: it has none."""

    lineage: str
    adjacency: str
    epsilon: float | None
    delta: float | None
    spent_epsilon: float | None
    spent_delta: float | None
    runs: tuple[RunReport, ...]


def report(database: Database) -> list[AccountReport]:
    """Returns every account, in the order in which they were opened, as of one moment."""
    with database.snapshot():
        accounts = database.rows(
            "SELECT id, lineage, adjacency, epsilon, delta FROM accounts ORDER BY id"
        )
        rows = database.rows(
            "SELECT account, name, epsilon, delta, operator, method, day, rounds,"
            " (SELECT COUNT(*) FROM claims WHERE run = id), plan, event FROM runs ORDER BY id"
        )
    found = []
    for id, lineage, adjacency, epsilon, delta in accounts:
        runs = tuple(
            RunReport(*row[1:-2], *map(read_json, row[-2:])) for row in rows if row[0] == id
        )
        spent: tuple[float | None, float | None] = (None, None)
        if epsilon is not None:
            spent = (math.fsum(r.epsilon or 0.0 for r in runs), math.fsum(r.delta for r in runs))
        found.append(AccountReport(lineage, adjacency, epsilon, delta, *spent, runs))
    return found


def export(database: Database) -> dict[str, Any]:
    """Returns accounts, runs, plans and events as JSON-able values.

    Guarantees:
        - No fingerprint and no digest is in it.
    """
    return {"format": FORMAT, "accounts": [asdict(account) for account in report(database)]}


def refusals(database: Database) -> dict[str, int]:
    """Returns the number of refusals of each kind today, UTC."""
    return dict(
        database.rows("SELECT reason, times FROM refusals WHERE day=? ORDER BY reason", today())
    )
