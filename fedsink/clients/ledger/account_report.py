"""Reports of a ledger to its owner: reserved and remaining budget, and all runs.

`report` gives it as objects, `export` as JSON for an auditor.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from fedsink.clients.ledger.admission import date_of, largest, spent_rho, today
from fedsink.clients.ledger.budget import Budget
from fedsink.clients.ledger.charge import event_from_json
from fedsink.clients.ledger.database import CEILINGS, Database
from fedsink.errors import PrivacyError
from fedsink.privacy.accounting.events import epsilon as epsilon_of
from fedsink.privacy.adjacency import ADD_REMOVE
from fedsink.values import privacy_checks as checks
from fedsink.values import read_json

FORMAT = "fedsink ledger 1"


@dataclass(frozen=True)
class RunReport:
    """Reports one plan of one run.

    Attributes:
        run: its public name.
        epsilon, delta: its charge, in full or for its instalments so far; None under the filter
            and for an account without a ceiling.
        operator, method, day: the policy's name of the operator who asked; the answer's name; the
            date, where the owner limits runs per day. None where it was not noted.
        rounds, claimed: number of rounds of the plan, and of those charged as answered.
        uses: the most uses of any class so far.
        epsilon_so_far: an upper bound on ε after those uses. Information: the guarantee is the
            plan's ε, also after an early stop. None where no bound is at hand.
        share: t′, number of clients whose replies together hold the plan's noise; 1: each does.
        of_sum: the charge is that of the sum.
    """

    run: str
    epsilon: float | None
    delta: float
    rounds: int
    claimed: int
    uses: int
    epsilon_so_far: float | None
    operator: str | None
    method: str | None
    day: str | None
    share: int = 1
    of_sum: bool = False


@dataclass(frozen=True)
class AccountReport:
    """Reports one account, a (lineage, adjacency), with its ceiling.

    Attributes:
        lineage, adjacency: name of the data, and kind of neighbours.
        admission: ``"reserve"``, ``"rdp-filter"`` or ``"one-plan"`` (no ceiling).
        order: the filter's α.
        epsilon, delta: the ceiling.
        spent_epsilon, spent_delta: the spent part of the ceiling.
        runs: all runs of the account, in the order of their reservation.
    """

    lineage: str
    adjacency: str
    admission: str
    order: float | None
    epsilon: float | None
    delta: float | None
    spent_epsilon: float | None
    spent_delta: float | None
    runs: tuple[RunReport, ...]


def report(database: Database) -> list[AccountReport]:
    """Returns every account, in the order in which they were opened."""
    found = []
    for id, lineage, adjacency, rule, alpha, epsilon, delta in database.rows(
        "SELECT id, lineage, adjacency, admission, alpha, epsilon, delta FROM accounts"
        f" JOIN {CEILINGS} ON account = id ORDER BY id"
    ):
        rows = database.rows(
            "SELECT charged.id, name, use, rounds, uses, charged.epsilon,"
            " charged.delta, operator, method, day, plan FROM charged"
            " JOIN runs ON run = runs.id WHERE account=?"
            " ORDER BY charged.id",
            id,
        )
        runs = tuple(_run(database, adjacency, *row) for row in rows)
        spent: tuple[float | None, float | None] = (None, None)
        if rule == "reserve":
            spent = (math.fsum(r.epsilon or 0.0 for r in runs), math.fsum(r.delta for r in runs))
        elif rule == "rdp-filter":
            budget = Budget(epsilon, delta, rule, alpha)
            rho = spent_rho(database.connection, id)
            spent = (budget.epsilon_of(rho), delta if rho > 0 else 0.0)
        found.append(AccountReport(lineage, adjacency, rule, alpha, epsilon, delta, *spent, runs))
    return found


def export(database: Database) -> dict[str, Any]:
    """Returns accounts, runs, plans and events as JSON-able values.

    Guarantees:
        - No fingerprint and no digest is in it.
    """
    with database.snapshot():
        accounts = [_exported(database, account) for account in report(database)]
    return {"format": FORMAT, "accounts": accounts}


def _exported(database: Database, account: AccountReport) -> dict[str, Any]:
    rows = database.rows(
        "SELECT plan, event, use FROM reservations JOIN runs ON run = runs.id"
        " JOIN accounts ON account = accounts.id WHERE lineage=? AND adjacency=?"
        " ORDER BY reservations.id",
        account.lineage,
        account.adjacency,
    )
    runs = [
        asdict(run) | {"plan": read_json(plan), "event": read_json(event),
                       "use": read_json(use or "null")}
        for run, (plan, event, use) in zip(account.runs, rows, strict=True)
    ]  # fmt: skip
    return asdict(account) | {"runs": runs}


def _run(
    database: Database, adjacency: str, id: int, name: str, use: str | None, rounds: int,
    most: int, epsilon: float | None, delta: float, operator: str | None, method: str | None,
    day: int | None, plan: str,
) -> RunReport:  # fmt: skip
    [(claimed,)] = database.rows("SELECT COUNT(*) FROM claims WHERE reservation=?", id)
    uses = int(largest(database.rows("SELECT label, uses FROM counts WHERE reservation=?", id)))
    if uses == 0:
        so_far: float | None = 0.0
    elif epsilon is not None and uses >= most:
        so_far = epsilon
    else:
        bounds = [epsilon, _composed(adjacency, use, uses, delta)]
        so_far = min((b for b in bounds if b is not None), default=None)
    date = None if day is None else date_of(day)
    said = read_json(plan)
    share, of_sum = said.get("share", 1), said.get("aggregation_trusted", False)
    return RunReport(
        name, epsilon, delta, rounds, claimed, uses, so_far, operator, method, date, share, of_sum
    )


def refusals(database: Database) -> dict[str, int]:
    """Returns the number of refusals of each kind today, UTC."""
    return dict(
        database.rows("SELECT reason, times FROM refusals WHERE day=? ORDER BY reason", today())
    )


def _composed(adjacency: str, use: str | None, uses: int, delta: float) -> float | None:
    """Returns ε of this number of uses by Rényi DP; None where it is not known."""
    if use is None or adjacency != ADD_REMOVE or not 0 < delta < 1:
        return None
    event = checks.require("dp_accounting").SelfComposedDpEvent(event_from_json(use), uses)
    try:
        return epsilon_of(event, delta, "rdp")
    except PrivacyError:
        return None
