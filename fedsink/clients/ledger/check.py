"""Checks that a ledger is unaltered and obeys its own rules."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from fedsink.clients.ledger.admission import ONE_PLAN, largest, spent_rho, within
from fedsink.clients.ledger.budget import Budget
from fedsink.clients.ledger.charge import event_from_json, price_seal
from fedsink.clients.ledger.database import CEILINGS, CHAINED, ORIGIN, Database, sealed
from fedsink.errors import FedsinkError, LedgerError

# Each query finds rows that the ledger itself never writes, (name, ...).
_NEVER = {
    "{} has a claim outside its plan's rounds": (
        "SELECT DISTINCT name FROM claims JOIN charged ON reservation = charged.id"
        " JOIN runs ON runs.id = charged.run WHERE round < 1 OR round > reserved"
        " OR round > rounds OR claims.run != charged.run"
    ),
    "{} has claims and no content they were computed from": (
        "SELECT DISTINCT name FROM claims JOIN runs ON run = runs.id"
        " WHERE runs.id NOT IN (SELECT run FROM sources)"
    ),
    "{} was computed from another lineage's content": (
        "SELECT name FROM runs JOIN accounts ON account = accounts.id"
        " JOIN sources ON run = runs.id"
        " JOIN contents ON contents.fingerprint = sources.fingerprint"
        " WHERE contents.lineage != accounts.lineage"
    ),
    "{} has more than one plan": (
        "SELECT name FROM runs JOIN accounts ON account = accounts.id"
        " JOIN reservations ON run = runs.id WHERE admission != 'rdp-filter'"
        " GROUP BY runs.id HAVING COUNT(*) > 1"
    ),
    "{} has counts that are not those of its claims": (
        "SELECT name FROM runs JOIN reservations ON run = runs.id JOIN ("
        "SELECT reservation, label, SUM(n) AS n FROM ("
        "SELECT reservation, label, uses AS n FROM counts UNION ALL"
        " SELECT reservation, label, -COUNT(*) FROM claims GROUP BY reservation, label)"
        " GROUP BY reservation, label) ON reservation = reservations.id WHERE n != 0"
    ),
}


def problems(database: Database) -> list[str]:
    """Returns a sentence for each invariant that does not hold; none for a sound ledger."""
    try:
        with database.snapshot():
            return _problems(database)
    except (LedgerError, TypeError) as error:  # TypeError: a value is of another type now
        return [f"the file is damaged: {error.__cause__ or error}"]


def _problems(database: Database) -> list[str]:
    integrity = [row[0] for row in database.rows("PRAGMA integrity_check")]
    if integrity != ["ok"]:
        return [f"the file is damaged: {line}" for line in integrity]
    problems = [
        f"a row of {table} refers to a row of {parent} that is not there"
        for table, _, parent, _ in database.rows("PRAGMA foreign_key_check")
    ]
    for sentence, query in _NEVER.items():
        problems += [sentence.format(f"the run {row[0]}") for row in database.rows(query)]
    problems += _overspent_labels(database) + _overspent_accounts(database)
    return problems + _unsealed(database)


def _unsealed(database: Database) -> list[str]:
    """Returns a sentence for each fact or price that was altered."""
    number, previous, problems = 0, ORIGIN, []
    for (number_here, *values, seal), table in heapq.merge(
        *(_facts(database, table) for table in CHAINED), key=lambda fact: fact[0][0]
    ):
        if number_here != number + 1:
            problems.append(f"the facts {number + 1} to {number_here - 1} are missing")
        elif seal != sealed(previous, table, number_here, *values):
            problems.append(f"the fact {number_here}, of {table}, is not what was written")
        number, previous = number_here, seal
    if database.head() != (number, previous):
        problems.append("the last facts are missing")
    for key, epsilon, seal in database.rows("SELECT plan, epsilon, seal FROM prices"):
        if seal != price_seal(key, epsilon):
            problems.append("the price of a plan is not what was written")
    return problems


def _facts(database: Database, table: str) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yields the rows of one table, in the order in which they were added."""
    columns = CHAINED[table]
    query = f"SELECT {', '.join(columns)}, seal FROM {table} ORDER BY {columns[0]}"
    for row in database.connection.execute(query):
        yield row, table


def _overspent_labels(database: Database) -> list[str]:
    problems = []
    for id, name, uses, event, use in database.rows(
        "SELECT reservations.id, name, uses, event, use FROM reservations"
        " JOIN runs ON run = runs.id"
    ):
        counts = database.rows("SELECT label, uses FROM counts WHERE reservation=?", id)
        if largest(counts) > uses:
            problems.append(f"the run {name} has used a class more often than its {uses} times")
        try:
            event_from_json(event)
            event_from_json(use or "null")
        except FedsinkError as error:
            problems.append(f"the run {name}: {error}")
    return problems


def _overspent_accounts(database: Database) -> list[str]:
    problems = []
    for id, lineage, adjacency, rule, alpha, epsilon, delta in database.rows(
        "SELECT id, lineage, adjacency, admission, alpha, epsilon, delta FROM accounts"
        f" JOIN {CEILINGS} ON account = id"
    ):
        plans = database.rows(
            "SELECT COUNT(*), TOTAL(charged.epsilon), TOTAL(charged.delta)"
            " FROM charged JOIN runs ON run = runs.id WHERE account=?",
            id,
        )[0]
        if rule == ONE_PLAN:
            sound = plans[0] <= 1
        elif rule == "reserve":
            sound = within(plans[1], epsilon) and within(plans[2], delta)
        else:
            sound = _within_filter(database, id, epsilon, delta, alpha)
        if not sound:
            problems.append(
                f"the account of {lineage} ({adjacency}) has spent more than its ceiling"
            )
    return problems


def _within_filter(
    database: Database, account: int, epsilon: float, delta: float, order: float
) -> bool:
    """Tells whether the account's uses fit, each entered at no less than its event costs."""
    plans = database.rows(
        "SELECT use, rho FROM reservations JOIN runs ON run = runs.id WHERE account=?", account
    )
    try:
        budget = Budget(epsilon, delta, "rdp-filter", order)
        priced = all(within(budget.cost(event_from_json(use)), rho) for use, rho in plans)
    except FedsinkError:
        return False
    return priced and within(spent_rho(database.connection, account), budget.rho)
