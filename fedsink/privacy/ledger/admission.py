"""Whether a plan or a use fits into its account; every function runs inside one transaction."""

from __future__ import annotations

import math
from collections.abc import Iterable
from sqlite3 import Connection
from typing import NamedTuple

from fedsink.errors import BudgetError, ReleaseRefusedError
from fedsink.privacy.ledger.budget import Budget
from fedsink.privacy.ledger.charge import Charge
from fedsink.privacy.ledger.database import Database
from fedsink.privacy.ledger.events import event_to_json
from fedsink.privacy.ledger.places import EVERY_LABEL, Reservation
from fedsink.privacy.ledger.tables import ORIGIN, sealed

ONE_PLAN = "one-plan"  # the rule of an account without a ceiling
_MOST_PRICES = 4096
_ROUNDING = 1 + 1e-9  # ten plans of δ = 1e-6 fill 1e-5, whatever the last bit of their sum


class Price(NamedTuple):
    """What a plan costs under its account's rule: ε in full, or ρ(α) a use."""

    epsilon: float | None
    rho: float | None


def within(spent: float, ceiling: float) -> bool:
    """Whether a sum of decimal fractions stays within a decimal ceiling (never for NaN)."""
    return spent <= ceiling * _ROUNDING


def price(charge: Charge, budget: Budget | None) -> Price:
    """The plan's cost, as far as the account's rule asks for it."""
    if budget is None:
        return Price(None, None)
    if budget.admission == "reserve":
        return Price(float(charge.epsilon()), None)
    return Price(None, budget.cost(charge.use))


def remembered(connection: Connection, charge: Charge) -> Price | None:
    """The ε that was computed for this plan before, whether it was admitted or not."""
    row = connection.execute(
        "SELECT epsilon, seal FROM prices WHERE plan=?", (charge.price_key,)
    ).fetchone()
    if row is None or row[1] != price_seal(charge.price_key, row[0]):
        return None
    return Price(row[0], None)


def price_seal(key: bytes, epsilon: float) -> bytes:
    """The seal of a price; no other fact is sealed with it."""
    return sealed(ORIGIN, "prices", key, epsilon)


def remember(connection: Connection, charge: Charge, priced: Price) -> None:
    """Keep a plan's ε; of more than some thousand the oldest is forgotten."""
    if priced.epsilon is None or math.isnan(priced.epsilon):
        return
    connection.execute(
        "INSERT OR REPLACE INTO prices (plan, epsilon, seal) VALUES (?, ?, ?)",
        (charge.price_key, priced.epsilon, price_seal(charge.price_key, priced.epsilon)),
    )
    connection.execute(
        "DELETE FROM prices WHERE id <= (SELECT MAX(id) FROM prices) - ?", (_MOST_PRICES,)
    )


def check_reach(
    connection: Connection, lineage: str, charge: Charge, budget: Budget | None
) -> None:
    """Refuse a plan whose ε is far above what is left, before it is priced.

    Raises:
        BudgetError: the account has too little left.
    """
    if budget is None or budget.admission != "reserve":
        return
    earlier = _charged(connection, lineage, charge.adjacency)
    left = budget.epsilon - math.fsum(epsilon for epsilon, _ in earlier)
    left_delta = budget.delta - math.fsum(delta for _, delta in earlier)
    rough = charge.rough_epsilon(left)
    if rough is not None:
        raise _too_little_left(f"about ε = {rough:.3g}", lineage, charge, left, left_delta)


def find(
    connection: Connection, lineage: str, run: str, charge: Charge, budget: Budget | None
) -> Reservation | None:
    """The reservation of exactly this plan for this run, if there is one.

    Raises:
        ReleaseRefusedError: the run has another plan, or the account another rule.
    """
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
        "SELECT runs.id, reservations.id, plan, rounds, uses FROM runs"
        " JOIN reservations ON run = runs.id WHERE account=? AND name=?",
        (account[0], run),
    ).fetchall()
    wanted = charge.plan_json
    for run_id, id, plan, rounds, uses in plans:
        if plan == wanted:
            return Reservation(id, run_id, account[0], lineage, run, rounds, uses, budget)
    if plans and account[1] != "rdp-filter":
        raise ReleaseRefusedError(
            f"The run {run} is reserved for another plan at {lineage}: a plan is fixed before its "
            "first release."
        )
    return None


def admit(
    database: Database,
    lineage: str,
    run: str,
    charge: Charge,
    budget: Budget | None,
    priced: Price,
) -> Reservation:
    """Charge a plan that is new to the ledger.

    Raises:
        BudgetError: the account has too little left.
    """
    connection = database.connection
    account = _account(database, lineage, charge.adjacency, budget)
    earlier = _charged(connection, lineage, charge.adjacency)
    if budget is None and earlier:
        raise BudgetError(f"{lineage} has answered a run, and its ledger admits one plan alone.")
    if budget is not None and priced.epsilon is not None:
        _check_sums(lineage, charge, budget, priced.epsilon, earlier)
    known = connection.execute(
        "SELECT id FROM runs WHERE account=? AND name=?", (account, run)
    ).fetchone()
    run_id = database.append("runs", account, run) if known is None else known[0]
    use = None if charge.use is None else event_to_json(charge.use)
    id = database.append(
        "reservations", run_id, charge.plan_json, event_to_json(charge.event), use,
        charge.rounds, charge.uses, priced.epsilon, float(charge.delta), priced.rho,
    )  # fmt: skip
    reservation = Reservation(id, run_id, account, lineage, run, charge.rounds, charge.uses, budget)
    check_filter(database, reservation)  # the owner may have lowered the ceiling
    return reservation


def same_content(database: Database, reservation: Reservation, fingerprint: bytes) -> None:
    """Hold a run to the content of its first answer.

    Parallel composition over labels needs records whose label stays: a record that changes its
    class between two rounds of a class schedule would take part in both.

    Raises:
        ReleaseRefusedError: the data have changed since then.
    """
    held = database.connection.execute(
        "SELECT fingerprint FROM sources WHERE run=?", (reservation.run,)
    ).fetchone()
    if held is None:
        database.append("sources", reservation.run, fingerprint)
    elif held[0] != fingerprint:
        raise ReleaseRefusedError(
            f"The data of {reservation.lineage} have changed since the first answer to the run "
            f"{reservation.name}: restore them, or start another run."
        )


def check_labels(connection: Connection, reservation: Reservation) -> None:
    """Hold every class to the uses its plan was charged for.

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
    """Hold the sum of the Rényi divergences to the filter's budget.

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
    """Σ ρ of the most used class, summed over the states that the data have been in.

    A record keeps its class within one state of the data; over a change it may have moved to
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
    """The sum for the class with the largest one; uses of all classes count for each."""
    counts = dict(by_label)
    of_all_labels = counts.pop(EVERY_LABEL, 0)
    return of_all_labels + max(counts.values(), default=0)


def _account(database: Database, lineage: str, adjacency: str, budget: Budget | None) -> int:
    """The account's number; it is opened with its first plan."""
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
    """What the owner allows now, for reports: what is admitted is decided by the policy."""
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
    epsilon: float,
    earlier: list[tuple[float, float]],
) -> None:
    left_epsilon = budget.epsilon - math.fsum(e for e, _ in earlier)
    left_delta = budget.delta - math.fsum(d for _, d in earlier)
    fits = within(math.fsum([epsilon, *(e for e, _ in earlier)]), budget.epsilon) and within(
        math.fsum([charge.delta, *(d for _, d in earlier)]), budget.delta
    )
    if not fits:
        raise _too_little_left(f"ε = {epsilon:.4g}", lineage, charge, left_epsilon, left_delta)


def _charged(connection: Connection, lineage: str, adjacency: str) -> list[tuple[float, float]]:
    """(ε, δ) of every plan that the account has admitted."""
    return connection.execute(
        "SELECT reservations.epsilon, reservations.delta FROM reservations"
        " JOIN runs ON run = runs.id JOIN accounts ON account = accounts.id"
        " WHERE lineage=? AND adjacency=?",
        (lineage, adjacency),
    ).fetchall()


def _too_little_left(
    price: str, lineage: str, charge: Charge, left_epsilon: float, left_delta: float
) -> BudgetError:
    return BudgetError(
        f"The plan costs {price}, δ = {charge.delta:g} ({charge.adjacency}), and of {lineage}'s "
        f"budget ε = {max(0.0, left_epsilon):.4g}, δ = {max(0.0, left_delta):.4g} are left."
    )


def _rule(budget: Budget | None) -> tuple[str, float | None]:
    return (ONE_PLAN, None) if budget is None else (budget.admission, budget.order)


def _words(admission: str, order: float | None) -> str:
    return admission if order is None else f"{admission} at order {order:g}"
