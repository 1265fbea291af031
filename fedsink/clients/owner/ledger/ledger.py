"""Reserve, bind, claim, release: the four commits before an answer leaves."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from sqlite3 import Connection

from fedsink.clients.owner.ledger.charge import (
    WORDS,
    Budget,
    Charge,
    Claim,
    Reservation,
    Use,
    event_to_json,
)
from fedsink.clients.owner.ledger.database import Database, problems
from fedsink.errors import BudgetError, LedgerError, ReleaseRefusedError, RunTakenError
from fedsink.protocol.signing import StatedCharge
from fedsink.values import read_json

_EVERY_LABEL = -1  # how the file counts a use of all classes; NULL would be no key
_ROUNDING = 1e-9  # ten plans of δ = 1e-6 fill 1e-5, whatever the last bit of their sum


class Ledger:
    """The charges of one or more dataset lineages, each named by its owner.

    An account belongs to a (lineage, adjacency) and has its own ceiling: events of different
    adjacency are never summed. It holds runs, a run holds the one plan that was charged for it, and
    the uses that were claimed. A run's name belongs to one account of a lineage.

    Guarantees:
        - A plan is charged whole and committed before its first answer exists, and plans add up.
        - A use is claimed and committed before its answer exists.
        - A place (run, round) once claimed is answered only for the digest that claimed it.
        - Charges survive every end of the process.
        - Two processes at once cannot spend more than the ceiling.
        - No class of records is used more often than its plan was charged for.
        - A changed content inherits every charge of its lineage, and one content has one lineage.
        - A run answers from one version of the data, and in one account of a lineage.

    `durable`: a charge survives a power cut, too. All methods raise LedgerError where the file
    cannot be used.
    """

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self._database = Database(path, durable=durable)
        if damage := problems(self._database):
            self._database.close()
            raise LedgerError(
                f"the ledger {path} is damaged ({damage[0]}), and nothing is released without it: "
                "restore it from a backup."
            )

    def reserve(
        self,
        lineage: str,
        run: str,
        charge: Charge,
        budget: Budget | None,
        operator: str | None = None,
        method: str | None = None,
    ) -> Reservation:
        """Charges a whole plan, or finds that it was charged before.

        Without a budget (in a simulation, whose owner has stated no ceiling) one plan is admitted
        at any cost. `operator` and `method` are for the owner to read.
        """
        with self._database.explained() as connection:
            found = _find(connection, lineage, run, charge, budget)
            if found is not None:
                return found
            if budget is not None:
                left = _left(connection, lineage, charge, budget)
                rough = charge.rough_epsilon(left[0])
                if rough is not None:
                    raise _too_little(f"about ε = {rough:.3g}", lineage, charge, left)
        # It may take seconds: before the file is locked.
        epsilon = None if budget is None else float(charge.epsilon())
        with self._database.transaction() as connection:
            # Another process may have been first.
            found = _find(connection, lineage, run, charge, budget)
            if found is not None:
                return found
            return self._admit(lineage, run, charge, epsilon, budget, operator, method)

    def bind(self, lineage: str, fingerprint: bytes, on_change: str = "inherit") -> None:
        """Records the fingerprint of the lineage's present data, which never leaves this file."""
        with self._database.transaction() as connection:
            row = connection.execute(
                "SELECT lineage FROM contents WHERE fingerprint=?", (fingerprint,)
            ).fetchone()
            if row is not None and row[0] != lineage:
                raise ReleaseRefusedError(
                    f"These data are {row[0]!r} in the ledger: a new name does not give them a "
                    "new budget."
                )
            if row is not None:
                return
            if (
                on_change == "refuse"
                and connection.execute(
                    "SELECT 1 FROM contents WHERE lineage=?", (lineage,)
                ).fetchone()
            ):
                raise ReleaseRefusedError(
                    f"The data of {lineage!r} have changed, and the policy refuses that: restore "
                    'them, or allow on_change = "inherit".'
                )
            connection.execute("INSERT INTO contents VALUES (?, ?)", (fingerprint, lineage))
            self._database.seal("content", fingerprint, lineage)

    def claim(
        self, reservation: Reservation, fingerprint: bytes, uses: Sequence[Use]
    ) -> list[Claim]:
        """Claims all uses of one message, or none of them, for the content that `bind` recorded.

        A use claimed before for the same digest costs nothing: its answer is the same bytes.
        """
        run = reservation.run
        with self._database.transaction() as connection:
            [(held,)] = connection.execute("SELECT content FROM runs WHERE id=?", (run,))
            # Parallel composition over labels needs records whose label stays: a record that
            # changes its class between two rounds of a schedule would take part in both.
            if held is None:
                connection.execute("UPDATE runs SET content=? WHERE id=?", (fingerprint, run))
            elif held != fingerprint:
                raise RunTakenError(
                    f"The data of {reservation.lineage} have changed since the first answer to the "
                    f"run {reservation.name}: restore them, or start another run."
                )
            claims = [self._claim(reservation, use) for use in uses]
            counts = dict(connection.execute("SELECT label, uses FROM counts WHERE run=?", (run,)))
            of_all_labels = counts.pop(_EVERY_LABEL, 0)
            most = of_all_labels + max(counts.values(), default=0)
            if most > reservation.uses and any(claim.new for claim in claims):
                raise BudgetError(
                    f"The plan of the run {reservation.name} was charged for {reservation.uses} "
                    f"uses of a record at {reservation.lineage}, and this request would be one "
                    "more."
                )
        return claims

    def claim_next(self, reservation: Reservation, digest: bytes) -> int:
        """Claims the next round, for an answer given once, of data that the ledger never sees."""
        with self._database.transaction() as connection:
            [(last,)] = connection.execute(
                "SELECT COALESCE(MAX(round), 0) FROM claims WHERE run=?", (reservation.run,)
            )
            if last >= min(reservation.rounds, reservation.uses):
                raise BudgetError(
                    f"{reservation.lineage} has given all {last} answers that the run "
                    f"{reservation.name} was charged for."
                )
            self._claim(reservation, Use(last + 1, None, digest))
        return int(last) + 1

    def note_released(self, reservation: Reservation, rounds: Iterable[int]) -> None:
        """Notes that the replies of these rounds are stored and may have left the node."""
        with self._database.transaction() as connection:
            for round in rounds:
                noted = connection.execute(
                    "UPDATE claims SET released=1 WHERE run=? AND round=? AND NOT released",
                    (reservation.run, round),
                )
                if noted.rowcount:
                    self._database.seal("release", reservation.run, round)

    def note_refused(self, reason: str) -> None:
        """Counts a refusal for the owner, who sees those of today."""
        day = today()
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO refusals VALUES (?, ?, 1)"
                " ON CONFLICT (day, reason) DO UPDATE SET times = times + 1",
                (day, reason),
            )
            connection.execute("DELETE FROM refusals WHERE day < ?", (day,))

    def charged(self, lineage: str, run: str) -> tuple[list[StatedCharge], str | None]:
        """Returns the charges of one run, and the owner's rule for parts of the noise at that time.

        The rule is None where no noise was shared.
        """
        rows = self._database.rows(
            "SELECT adjacency, plan, runs.epsilon, runs.delta,"
            " (SELECT COUNT(*) FROM claims WHERE run = runs.id)"
            " FROM runs JOIN accounts ON account = accounts.id WHERE lineage=? AND name=?",
            lineage,
            run,
        )
        plans = [read_json(row[1]) for row in rows]
        words = [plan.pop(WORDS, {}) for plan in plans]
        rule = next((w["secure_aggregation"] for w in words if w), None)
        return [StatedCharge(r[0], p, *r[2:]) for r, p in zip(rows, plans, strict=True)], rule

    def knows(self, digests: Iterable[bytes]) -> bool:
        """Tells whether every one of these digests has been claimed."""
        noted = {row[0] for row in self._database.rows("SELECT digest FROM claims")}
        return noted.issuperset(digests)

    def head(self) -> tuple[int, bytes]:
        """Returns the number of facts, and the seal of the last one."""
        return self._database.head()

    def seal(self, number: int) -> bytes | None:
        """Returns the seal of a fact; None where there are fewer."""
        if number == 0:
            return b""
        found = self._database.rows("SELECT seal FROM seals WHERE number=?", number)
        return found[0][0] if found else None

    def close(self) -> None:
        """Closes the file."""
        self._database.close()

    def _admit(
        self, lineage: str, run: str, charge: Charge, epsilon: float | None, budget: Budget | None,
        operator: str | None, method: str | None,
    ) -> Reservation:  # fmt: skip
        connection = self._database.connection
        ceiling: tuple[float | None, float | None] = (None, None)
        if budget is not None and epsilon is not None:
            left = _left(connection, lineage, charge, budget)
            if not (  # NaN is too much, too
                epsilon <= left[0] + _ROUNDING * budget.epsilon
                and charge.delta <= left[1] + _ROUNDING * budget.delta
            ):
                raise _too_little(f"ε = {epsilon:.4g}", lineage, charge, left)
            ceiling = (budget.epsilon, budget.delta)
        elif _charges(connection, lineage, charge.adjacency):
            raise BudgetError(f"{lineage} has answered a run, and its ledger admits only one plan.")
        connection.execute(
            "INSERT INTO accounts (lineage, adjacency, epsilon, delta) VALUES (?, ?, ?, ?) ON"
            " CONFLICT (lineage, adjacency) DO UPDATE"
            " SET epsilon = excluded.epsilon, delta = excluded.delta",
            (lineage, charge.adjacency, *ceiling),
        )
        connection.execute(
            "INSERT INTO runs (account, name, plan, event, rounds, uses, epsilon, delta, operator,"
            " method, day) SELECT id, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? FROM accounts"
            " WHERE lineage=? AND adjacency=?"
            # It was charged in part by a ledger of before, and keeps what it has paid.
            " ON CONFLICT (account, name) DO UPDATE"
            " SET rounds = excluded.rounds, uses = excluded.uses, delta = delta + excluded.delta,"
            " epsilon = COALESCE(epsilon, 0.0) + excluded.epsilon",
            (
                run, charge.plan_json, event_to_json(charge.event), charge.rounds, charge.uses,
                epsilon, float(charge.delta), operator, method, date_of(today()),
                lineage, charge.adjacency,
            ),
        )  # fmt: skip
        self._database.seal(
            "run", lineage, charge.adjacency, run, charge.plan_json, epsilon, charge.delta
        )
        [(id,)] = connection.execute(
            "SELECT runs.id FROM runs JOIN accounts ON account = accounts.id"
            " WHERE lineage=? AND adjacency=? AND name=?",
            (lineage, charge.adjacency, run),
        )
        return Reservation(id, lineage, run, charge.rounds, charge.uses)

    def _claim(self, reservation: Reservation, use: Use) -> Claim:
        if not 1 <= use.round <= reservation.rounds:
            raise ReleaseRefusedError(
                f"Round {use.round} is not in the plan's 1, ..., {reservation.rounds}."
            )
        connection, place = self._database.connection, (reservation.run, use.round)
        held = connection.execute(
            "SELECT digest, released FROM claims WHERE run=? AND round=?", place
        ).fetchone()
        if held is not None:
            if held[0] != use.digest:
                raise ReleaseRefusedError(
                    f"{reservation.lineage} has already answered another request in round "
                    f"{use.round} of the run {reservation.name}."
                )
            return Claim(False, bool(held[1]))
        label = _EVERY_LABEL if use.label is None else use.label
        connection.execute("INSERT INTO claims VALUES (?, ?, ?, 0)", (*place, use.digest))
        connection.execute(
            "INSERT INTO counts VALUES (?, ?, 1)"
            " ON CONFLICT (run, label) DO UPDATE SET uses = uses + 1",
            (reservation.run, label),
        )
        self._database.seal("claim", *place, label, use.digest)
        return Claim(True, False)


def today() -> int:
    """Returns the days since 1970-01-01, UTC."""
    return int(time.time() // 86_400)


def date_of(day: int) -> str:
    """Returns the date of a day as text."""
    return time.strftime("%Y-%m-%d", time.gmtime(day * 86_400))


def _find(
    connection: Connection, lineage: str, run: str, charge: Charge, budget: Budget | None
) -> Reservation | None:
    """Returns the reservation of exactly this plan for this run, if all of it is paid."""
    found = None
    for id, adjacency, plan, rounds, uses in connection.execute(
        "SELECT runs.id, adjacency, plan, rounds, uses FROM runs"
        " JOIN accounts ON account = accounts.id WHERE lineage=? AND name=?",
        (lineage, run),
    ).fetchall():
        if adjacency != charge.adjacency:
            # Its answers may depend on states of earlier answers, which that account has paid for,
            # under another kind of neighbour.
            raise RunTakenError(
                f"The run {run} is charged for the adjacency {adjacency} at {lineage}, and now "
                f"asks for {charge.adjacency}: a run has one, so take another name."
            )
        if plan != charge.plan_json:
            then, now = read_json(plan).get(WORDS, {}), charge.plan.get(WORDS, {})
            changed = sorted(word for word in {*then, *now} if then.get(word) != now.get(word))
            if then and now and changed:
                word = changed[0]
                raise RunTakenError(
                    f"The run {run} was reserved at {lineage} under {word} = {then.get(word)!r}, "
                    f"and the policy says {now.get(word)!r} now, which has another price: set it "
                    "back, or start another run."
                )
            raise RunTakenError(
                f"The run {run} is reserved for another plan at {lineage}: a plan is fixed before "
                "its first release."
            )
        if rounds >= charge.rounds:
            found = Reservation(id, lineage, run, rounds, uses)
    opened = connection.execute(
        "SELECT epsilon IS NOT NULL FROM accounts WHERE lineage=? AND adjacency=?",
        (lineage, charge.adjacency),
    ).fetchone()
    if opened is not None and bool(opened[0]) != (budget is not None):
        raise ReleaseRefusedError(
            f"{lineage} was charged {'with' if opened[0] else 'without'} a ceiling so far, and "
            "plans with and without one cannot be added: use the settings that it had."
        )
    return found


def _charges(
    connection: Connection, lineage: str, adjacency: str
) -> list[tuple[float | None, float]]:
    """Returns (ε, δ) of every run of an account; ε is None for a run that has paid nothing."""
    return connection.execute(
        "SELECT runs.epsilon, runs.delta FROM runs JOIN accounts ON account = accounts.id"
        " WHERE lineage=? AND adjacency=?",
        (lineage, adjacency),
    ).fetchall()


def _left(
    connection: Connection, lineage: str, charge: Charge, budget: Budget
) -> tuple[float, float]:
    """Returns what is left of the account's ceiling, less than 0 where the owner lowered it."""
    charges = _charges(connection, lineage, charge.adjacency)
    return (
        budget.epsilon - math.fsum(epsilon or 0.0 for epsilon, _ in charges),
        budget.delta - math.fsum(delta for _, delta in charges),
    )


def _too_little(price: str, lineage: str, charge: Charge, left: tuple[float, float]) -> BudgetError:
    return BudgetError(
        f"The plan costs {price}, δ = {charge.delta:g} ({charge.adjacency}), and of {lineage}'s "
        f"budget ε = {max(0.0, left[0]):.4g}, δ = {max(0.0, left[1]):.4g} are left."
    )
