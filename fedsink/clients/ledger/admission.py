"""Decides whether a plan or a use fits into its account.

Every function runs inside one transaction of the ledger.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from sqlite3 import Connection
from typing import Any, NamedTuple

from fedsink.clients.ledger.budget import Budget
from fedsink.clients.ledger.charge import (
    EVERY_LABEL,
    WORDS,
    Application,
    Charge,
    Instalment,
    Price,
    Requester,
    Reservation,
    event_to_json,
)
from fedsink.clients.ledger.database import Database
from fedsink.errors import BudgetError, DailyLimitError, ReleaseRefusedError, RunTakenError
from fedsink.values import read_json

ONE_PLAN = "one-plan"  # the rule of an account without a ceiling
_ROUNDING = 1 + 1e-9  # ten plans of δ = 1e-6 fill 1e-5, whatever the last bit of their sum


class Expense(NamedTuple):
    """(ε, δ) that an account is charged."""

    epsilon: float
    delta: float


def within(spent: float, ceiling: float) -> bool:
    """Tells whether a sum of decimals stays within a decimal ceiling (never for NaN)."""
    return spent <= ceiling * _ROUNDING


def check_reach(
    connection: Connection,
    application: Application,
    part: Instalment,
    replaced: int | None = None,
) -> None:
    """Refuses a plan whose ε is far above what is left, before it is priced.

    Args:
        connection: the ledger's.
        application: the plan and its account.
        part: of the plan, to be charged.
        replaced: the plan's earlier reservation, whose charge is replaced.

    Raises:
        BudgetError: the account has too little left.
    """
    lineage, budget = application.lineage, application.budget
    if budget is None or budget.admission != "reserve":
        return
    earlier = _charged(connection, lineage, part.whole.adjacency, replaced)
    left = budget.epsilon - math.fsum(epsilon for epsilon, _ in earlier)
    left_delta = budget.delta - math.fsum(delta for _, delta in earlier)
    rough = part.rough_epsilon(left)
    if rough is not None:
        price = f"about ε = {rough:.3g}"
        raise _too_little_left(price, lineage, part.whole, left, left_delta, part.delta)


def find(connection: Connection, application: Application) -> Reservation | None:
    """Returns the reservation of exactly this plan for this run, if there is one.

    Raises:
        RunTakenError: the run has another plan, is in another account of the lineage, or was
            reserved under other words of the policy.
        ReleaseRefusedError: the account has another rule.
    """
    lineage, run, charge = application.lineage, application.run, application.charge
    budget = application.budget
    _check_account_of(connection, lineage, run, charge.adjacency)
    account = connection.execute(
        "SELECT id, admission, alpha FROM accounts WHERE lineage=? AND adjacency=?",
        (lineage, charge.adjacency),
    ).fetchone()
    if account is None:
        return None
    if account[1:] != _rule(budget):
        raise ReleaseRefusedError(
            f"{lineage} was charged by the rule {_words(*account[1:])} so far, and charges of "
            f"{_words(*_rule(budget))} cannot be added to those: set the rule back."
        )
    plans = connection.execute(
        "SELECT runs.id, charged.id, plan, reserved, uses, step FROM runs"
        " JOIN charged ON run = runs.id WHERE account=? AND name=?",
        (account[0], run),
    ).fetchall()
    wanted = charge.plan_json
    for run_id, id, plan, reserved, uses, step in plans:
        _check_words(application, read_json(plan).get(WORDS, {}))
        if plan == wanted:
            if step is not None:
                uses = charge.instalment(step, reserved).uses
            return Reservation(id, run_id, account[0], lineage, run, reserved, uses, budget, step)
    if plans and account[1] != "rdp-filter":
        raise RunTakenError(
            f"The run {run} is reserved for another plan at {lineage}: a plan is fixed before its "
            "first release."
        )
    return None


def _check_words(application: Application, then: Mapping[str, Any]) -> None:
    """Refuses a run whose price depends on words of the policy that have changed since."""
    now = application.charge.plan.get(WORDS, {})
    changed = sorted(word for word in {*then, *now} if then.get(word) != now.get(word))
    if then and now and changed:
        word = changed[0]
        raise RunTakenError(
            f"The run {application.run} was reserved at {application.lineage} under {word} = "
            f"{then.get(word)!r}, and the policy says {now.get(word)!r} now, which has another "
            "price: set it back, or start another run."
        )


def _check_account_of(connection: Connection, lineage: str, run: str, adjacency: str) -> None:
    """Refuses a run that another account of the lineage holds.

    The run's answers may depend on states of earlier answers, which that account has paid for,
    under another kind of neighbour.
    """
    other = connection.execute(
        "SELECT adjacency FROM runs JOIN accounts ON account = accounts.id"
        " WHERE lineage=? AND name=? AND adjacency!=?",
        (lineage, run, adjacency),
    ).fetchone()
    if other is not None:
        raise RunTakenError(
            f"The run {run} is charged for the adjacency {other[0]} at {lineage}, and now asks "
            f"for {adjacency}: a run has one, so take another name."
        )


def admit(
    database: Database, application: Application, part: Instalment, priced: Price
) -> Reservation:
    """Charges a plan that is new to the ledger.

    Args:
        database: the ledger's.
        application: the plan and its account.
        part: of the plan, charged now.
        priced: cost of that part.

    Raises:
        BudgetError: the account has too little left.
        DailyLimitError: there were enough new runs today.
    """
    connection, requester = database.connection, application.requester
    lineage, run, charge = application.lineage, application.run, application.charge
    budget = application.budget
    day = day_of_run(connection, run, requester)
    account = _account(database, lineage, charge.adjacency, budget)
    earlier = _charged(connection, lineage, charge.adjacency)
    if budget is None and earlier:
        raise BudgetError(f"{lineage} has answered a run, and its ledger admits only one plan.")
    if budget is not None and priced.epsilon is not None:
        _check_sums(lineage, charge, budget, Expense(priced.epsilon, part.delta), earlier)
    known = connection.execute(
        "SELECT id FROM runs WHERE account=? AND name=?", (account, run)
    ).fetchone()
    if known is None:
        run_id = database.append("runs", account, run, requester.operator, day)
    else:
        run_id = known[0]
    use = None if charge.use is None else event_to_json(charge.use)
    id = database.append(
        "reservations", run_id, charge.plan_json, event_to_json(charge.event), use,
        charge.rounds, charge.uses, priced.epsilon, float(part.delta), priced.rho, requester.method,
        part.step, part.rounds,
    )  # fmt: skip
    reservation = Reservation(
        id, run_id, account, lineage, run, part.rounds, part.uses, budget, part.step
    )
    check_filter(database, reservation)  # the owner may have lowered the ceiling
    return reservation


def extend(
    database: Database, reservation: Reservation, budget: Budget, part: Instalment, priced: Price
) -> Reservation:
    """Charges further rounds of a plan, whose earlier rounds are paid already.

    Raises:
        BudgetError: the account has too little left.
    """
    charge, connection = part.whole, database.connection
    earlier = _charged(connection, reservation.lineage, charge.adjacency, reservation.id)
    if priced.epsilon is None:
        raise BudgetError(f"The plan of the run {reservation.name} has no instalments.")
    cost = Expense(priced.epsilon, part.delta)
    _check_sums(reservation.lineage, charge, budget, cost, earlier)
    _note_ceiling(database, reservation.account, budget)
    database.append("instalments", reservation.id, part.rounds, priced.epsilon)
    return replace(reservation, rounds=part.rounds, uses=part.uses)


def day_of_run(connection: Connection, run: str, requester: Requester) -> int | None:
    """Returns the day, from 1970-01-01 UTC, on which a run may begin; None without a daily limit.

    The day is the latest that the ledger has seen: setting the clock back refills nothing.

    Raises:
        DailyLimitError: as many runs as the owner admits have begun on this day.
    """
    if requester.runs_per_day is None:
        return None
    [latest] = connection.execute("SELECT MAX(day) FROM runs").fetchone()
    day = max(today(), -1 if latest is None else latest)
    [others] = connection.execute(
        "SELECT COUNT(DISTINCT name) FROM runs WHERE day=? AND name!=?", (day, run)
    ).fetchone()
    if others >= requester.runs_per_day:
        ahead = (
            f" The clock was ahead when they began, and a clock that is set back refills nothing: "
            f"until the end of {date_of(day)} no new run begins unless the limit is raised."
        )
        raise DailyLimitError(
            f"{others} runs have begun on {date_of(day)}, and the policy admits "
            f"allow.runs_per_day={requester.runs_per_day}: wait, or raise it."
            + (ahead if day > today() else "")
        )
    return day


def today() -> int:
    """Returns the days since 1970-01-01, UTC."""
    return int(time.time() // 86_400)


def date_of(day: int) -> str:
    """Returns the date of a day as text."""
    return time.strftime("%Y-%m-%d", time.gmtime(day * 86_400))


def same_content(database: Database, reservation: Reservation, fingerprint: bytes) -> None:
    """Holds a run to the content of its first answer.

    Parallel composition over labels needs records whose label stays: a record that changes its
    class between two rounds of a class schedule would take part in both.

    Raises:
        RunTakenError: the data have changed since then.
    """
    held = database.connection.execute(
        "SELECT fingerprint FROM sources WHERE run=?", (reservation.run,)
    ).fetchone()
    if held is None:
        database.append("sources", reservation.run, fingerprint)
    elif held[0] != fingerprint:
        raise RunTakenError(
            f"The data of {reservation.lineage} have changed since the first answer to the run "
            f"{reservation.name}: restore them, or start another run."
        )


def check_labels(connection: Connection, reservation: Reservation) -> None:
    """Holds every class to the uses its plan was charged for.

    Raises:
        BudgetError: a class would take part more often.
    """
    counts = connection.execute(
        "SELECT label, uses FROM counts WHERE reservation=?", (reservation.id,)
    ).fetchall()
    if largest(counts) > reservation.uses:
        raise BudgetError(
            f"The plan of the run {reservation.name} was charged for {reservation.uses} uses of a "
            f"record at {reservation.lineage}, and this request would be one more."
        )


def check_filter(database: Database, reservation: Reservation) -> None:
    """Holds the sum of the Rényi divergences to the filter's budget.

    Raises:
        BudgetError: this use would exceed it.
    """
    budget = reservation.budget
    if budget is None or budget.admission != "rdp-filter":
        return
    _note_ceiling(database, reservation.account, budget)
    if not within(spent_rho(database.connection, reservation.account), budget.rho):
        raise BudgetError(
            f"The filter of {reservation.lineage} admits ε = {budget.epsilon:g} at δ = "
            f"{budget.delta:g}, and this request would exceed it."
        )


def spent_rho(connection: Connection, account: int) -> float:
    """Returns Σ ρ of the most used class, summed over the states that the data have been in.

    A record keeps its class within one version of the data; over a change it may have moved to
    another, so there the largest sums are added.
    """
    sums = connection.execute(
        "SELECT fingerprint, label, SUM(counts.uses * rho) FROM counts"
        " JOIN reservations ON reservation = reservations.id"
        " JOIN runs ON reservations.run = runs.id"
        " LEFT JOIN sources ON sources.run = runs.id"
        " WHERE account=? GROUP BY fingerprint, label",
        (account,),
    ).fetchall()
    states: dict[bytes, list[tuple[int, float]]] = {}
    for fingerprint, label, rho in sums:
        states.setdefault(fingerprint, []).append((label, rho))
    return math.fsum(largest(labels) for labels in states.values())


def largest(by_label: Iterable[tuple[int, float]]) -> float:
    """Returns the largest sum of a class; uses of all classes count for each."""
    counts = dict(by_label)
    of_all_labels = counts.pop(EVERY_LABEL, 0)
    return of_all_labels + max(counts.values(), default=0)


def _account(database: Database, lineage: str, adjacency: str, budget: Budget | None) -> int:
    """Returns the account's number; the first plan opens the account."""
    known = database.connection.execute(
        "SELECT id FROM accounts WHERE lineage=? AND adjacency=?", (lineage, adjacency)
    ).fetchone()
    account = (
        database.append("accounts", lineage, adjacency, *_rule(budget))
        if known is None
        else int(known[0])
    )
    _note_ceiling(database, account, budget)
    return account


def _note_ceiling(database: Database, account: int, budget: Budget | None) -> None:
    """Notes the owner's ceiling for reports; the policy decides what is admitted."""
    wanted = (None, None) if budget is None else (budget.epsilon, budget.delta)
    noted = database.connection.execute(
        "SELECT epsilon, delta FROM ceilings WHERE account=? ORDER BY number DESC LIMIT 1",
        (account,),
    ).fetchone()
    if noted != wanted:
        database.append("ceilings", account, *wanted)


def _check_sums(
    lineage: str,
    charge: Charge,
    budget: Budget,
    cost: Expense,
    earlier: list[tuple[float, float]],
) -> None:
    left_epsilon = budget.epsilon - math.fsum(e for e, _ in earlier)
    left_delta = budget.delta - math.fsum(d for _, d in earlier)
    fits = within(math.fsum([cost.epsilon, *(e for e, _ in earlier)]), budget.epsilon) and within(
        math.fsum([cost.delta, *(d for _, d in earlier)]), budget.delta
    )
    if not fits:
        raise _too_little_left(
            f"ε = {cost.epsilon:.4g}", lineage, charge, left_epsilon, left_delta, cost.delta
        )


def _charged(
    connection: Connection, lineage: str, adjacency: str, replaced: int | None = None
) -> list[tuple[float, float]]:
    """Returns (ε, δ) of every plan that the account has admitted, except one."""
    return connection.execute(
        "SELECT charged.epsilon, charged.delta FROM charged"
        " JOIN runs ON run = runs.id JOIN accounts ON account = accounts.id"
        " WHERE lineage=? AND adjacency=? AND charged.id IS NOT ?",
        (lineage, adjacency, replaced),
    ).fetchall()


def _too_little_left(
    price: str,
    lineage: str,
    charge: Charge,
    left_epsilon: float,
    left_delta: float,
    delta: float,
) -> BudgetError:
    return BudgetError(
        f"The plan costs {price}, δ = {delta:g} ({charge.adjacency}), and of {lineage}'s "
        f"budget ε = {max(0.0, left_epsilon):.4g}, δ = {max(0.0, left_delta):.4g} are left."
    )


def _rule(budget: Budget | None) -> tuple[str, float | None]:
    return (ONE_PLAN, None) if budget is None else (budget.admission, budget.order)


def _words(admission: str, order: float | None) -> str:
    return admission if order is None else f"{admission} at order {order:g}"
