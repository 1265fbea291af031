"""Charge, commit, release: the three steps of every noised answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedsink.clients.ledger import admission
from fedsink.clients.ledger.budget import Budget
from fedsink.clients.ledger.charge import (
    EVERY_LABEL,
    WORDS,
    Application,
    Charge,
    Claim,
    Instalment,
    Price,
    Requester,
    Reservation,
    Use,
    price,
    remember,
    remembered,
)
from fedsink.clients.ledger.check import problems
from fedsink.clients.ledger.database import CHAINED, ORIGIN, Database
from fedsink.errors import LedgerError, PrivacyError, ReleaseRefusedError
from fedsink.protocol.charge_statement import StatedCharge
from fedsink.values import read_json

_NOBODY = Requester()


class Ledger:
    """The charges of one or more dataset lineages, each named by its owner.

    An account belongs to a (lineage, adjacency) and has its own ceiling: events of different
    adjacency are never summed. It holds runs, a run holds the one plan that was reserved for it
    (any number of plans under the filter), and a plan holds the uses that were claimed. A run's
    name belongs to one account of a lineage.

    Guarantees:
        - A use is charged and committed before its answer exists.
        - A place (run, round) once claimed is answered only for the digest that claimed it.
        - Charges survive every end of the process.
        - Two processes at once cannot spend more than the ceiling.
        - No class of records is used more often than its plan was charged for.
        - A changed content inherits every charge of its lineage, and one content has one lineage.
        - A run answers from one version of the data, and in one account of a lineage.
        - At most as many new runs begin in a day as the owner admits, whatever the clock does.

    Args:
        path: the SQLite file.
        durable: whether a charge survives a power cut, too.

    Raises:
        LedgerError: the file cannot be used; all methods raise it, too.
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
        requester: Requester = _NOBODY,
        round: int = 1,
    ) -> Reservation:
        """Admits a plan, or finds that it was admitted before.

        Args:
            lineage: the owner's name of the data, whatever they contain today.
            run: public name of the run.
            charge: the plan and its cost.
            budget: the account's ceiling; None admits one plan at any cost (for a simulation,
                whose owner has stated no ceiling).
            requester: the party that asks, for the owner to read, and its new runs per day.
            round: the largest requested round; where plans are charged in instalments, those up
                to this round are charged.

        Raises:
            BudgetError: the account has too little left for the plan.
            RunTakenError: the run has another plan, or is in another account of the lineage.
            ReleaseRefusedError: the account has another admission rule.
            DailyLimitError: the run is new, and there were enough of them today.
        """
        application = Application(lineage, run, charge, budget, requester)
        with self._database.explained() as connection:
            found = admission.find(connection, application)
            if found is None:
                admission.day_of_run(connection, run, requester)
            elif not self._lacks(found, charge, round):
                return found
            part = charge.instalment(self._step(found, charge, budget), round)
            replaced = None if found is None else found.id
            admission.check_reach(connection, application, part, replaced)
        priced = self._price_of(part, budget)  # may take seconds: before the file is locked
        with self._database.transaction() as connection:
            found = admission.find(connection, application)  # another process may have been first
            if found is None:
                return admission.admit(self._database, application, part, priced)
            if budget is None or not self._lacks(found, charge, round):
                return found
            return admission.extend(self._database, found, budget, part, priced)

    def bind(self, lineage: str, fingerprint: bytes, on_change: str = "inherit") -> None:
        """Records the fingerprint of the lineage's present data.

        Args:
            lineage: the owner's name of the data.
            fingerprint: hash of their content; it never leaves this file.
            on_change: ``"inherit"``: changed data keep all charges; ``"refuse"``: changed data
                are refused.

        Raises:
            ReleaseRefusedError: the content is known under another lineage, or has changed.
        """
        with self._database.transaction() as connection:
            known = connection.execute(
                "SELECT lineage FROM contents WHERE fingerprint=?", (fingerprint,)
            ).fetchone()
            if known is not None and known[0] != lineage:
                raise ReleaseRefusedError(
                    f"These data are {known[0]!r} in the ledger: a new name does not give them a "
                    "new budget."
                )
            if known is not None:
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
            self._database.append("contents", fingerprint, lineage)

    def claim(
        self, reservation: Reservation, fingerprint: bytes, uses: Sequence[Use]
    ) -> list[Claim]:
        """Charges all uses of one message, or none of them.

        A use claimed before for the same digest costs nothing: its answer is the same bytes.

        Args:
            reservation: from `reserve`.
            fingerprint: the content the answers are computed from; see `bind`.
            uses: at least one.

        Raises:
            BudgetError: a class would be used more often than charged, or the filter is full.
            RunTakenError: the data have changed since the run's first answer.
            ReleaseRefusedError: a place is taken, or does not exist.
        """
        with self._database.transaction() as connection:
            admission.same_content(self._database, reservation, fingerprint)
            claims = [self._claim(reservation, use) for use in uses]
            if any(claim.new for claim in claims):
                admission.check_labels(connection, reservation)
                admission.check_filter(self._database, reservation)
        return claims

    def note_released(self, reservation: Reservation, rounds: Iterable[int]) -> None:
        """Notes that the replies of these rounds are stored and may have left the node."""
        with self._database.transaction():
            for round in rounds:
                if not self._was_released(reservation.run, round):
                    self._database.append("releases", reservation.run, round)

    def note_refused(self, reason: str) -> None:
        """Counts a refusal for the owner, who sees those of today."""
        day = admission.today()
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO refusals VALUES (?, ?, 1)"
                " ON CONFLICT (day, reason) DO UPDATE SET times = times + 1",
                (day, reason),
            )
            connection.execute("DELETE FROM refusals WHERE day < ?", (day,))

    def charged(self, lineage: str, run: str) -> list[StatedCharge]:
        """Returns the charges of one run of a lineage, for its owner to state to others."""
        rows = self._database.rows(
            "SELECT adjacency, plan, charged.epsilon, charged.delta,"
            " (SELECT COUNT(*) FROM claims WHERE reservation = charged.id)"
            " FROM charged JOIN runs ON run = runs.id JOIN accounts ON account = accounts.id"
            " WHERE lineage=? AND name=? ORDER BY charged.id",
            lineage,
            run,
        )
        plans = [{k: v for k, v in read_json(row[1]).items() if k != WORDS} for row in rows]
        return [StatedCharge(r[0], plan, *r[2:]) for r, plan in zip(rows, plans, strict=True)]

    def rule_of(self, lineage: str, run: str) -> str | None:
        """Returns the rule for replies with a share of noise under which a run was charged."""
        rows = self._database.rows(
            "SELECT plan FROM charged JOIN runs ON run = runs.id JOIN accounts"
            " ON account = accounts.id WHERE lineage=? AND name=?",
            lineage,
            run,
        )
        words = (read_json(row[0]).get(WORDS, {}) for row in rows)
        return next((rule for w in words if (rule := w.get("secure_aggregation"))), None)

    def knows(self, digests: Iterable[bytes]) -> bool:
        """Tells whether every one of these digests has been claimed."""
        known = {row[0] for row in self._database.rows("SELECT digest FROM claims")}
        return known.issuperset(digests)

    def head(self) -> tuple[int, bytes]:
        """Returns the number of facts, and the seal of the last one."""
        with self._database.explained():
            return self._database.head()

    def seal(self, number: int) -> bytes | None:
        """Returns the seal of a fact; None where there are fewer."""
        if number == 0:
            return ORIGIN
        if not 0 < number <= self.head()[0]:
            return None
        facts = (
            self._database.rows(f"SELECT seal FROM {table} WHERE {columns[0]}=?", number)
            for table, columns in CHAINED.items()
        )
        return next((rows[0][0] for rows in facts if rows), None)

    def close(self) -> None:
        """Closes the file."""
        self._database.close()

    @staticmethod
    def _lacks(found: Reservation, charge: Charge, round: int) -> bool:
        """Tells whether the plan's instalments so far do not reach a round."""
        return found.step is not None and found.rounds < min(round, charge.rounds)

    @staticmethod
    def _step(found: Reservation | None, charge: Charge, budget: Budget | None) -> int | None:
        """Returns the rounds of an instalment, as fixed when the run began."""
        if found is not None:
            return found.step
        if budget is None or charge.part is None or budget.rounds_per_reservation is None:
            return None
        return min(budget.rounds_per_reservation, charge.rounds)

    def _price_of(self, part: Instalment, budget: Budget | None) -> Price:
        """Returns the price of a part of a plan, at most the whole plan's."""
        whole = self._price(part.whole, budget)
        if part.early is None or whole.epsilon is None:
            return whole
        try:
            early = self._price(part.early, budget)
        except PrivacyError:  # already the plan's overflow costs more than this end's δ
            return whole
        return min(
            early, whole, key=lambda part: math.inf if part.epsilon is None else part.epsilon
        )

    def _price(self, charge: Charge, budget: Budget | None) -> Price:
        """Returns the plan's price; keeps a price that takes seconds, to compute it once."""
        if budget is None or budget.admission != "reserve":
            return price(charge, budget)
        with self._database.explained() as connection:
            if kept := remembered(connection, charge):
                return kept
        priced = price(charge, budget)  # before the file is locked
        with self._database.transaction() as connection:
            remember(connection, charge, priced)
        return priced

    def _claim(self, reservation: Reservation, use: Use) -> Claim:
        if not 1 <= use.round <= reservation.rounds:
            raise ReleaseRefusedError(
                f"Round {use.round} is not in the plan's 1, ..., {reservation.rounds}."
            )
        connection = self._database.connection
        held = connection.execute(
            "SELECT digest FROM claims WHERE run=? AND round=?", (reservation.run, use.round)
        ).fetchone()
        if held is not None:
            if held[0] != use.digest:
                raise ReleaseRefusedError(
                    f"{reservation.lineage} has already answered another request in round "
                    f"{use.round} of the run {reservation.name}."
                )
            return Claim(False, self._was_released(reservation.run, use.round))
        label = EVERY_LABEL if use.label is None else use.label
        self._database.append(
            "claims", reservation.run, use.round, reservation.id, label, use.digest
        )
        connection.execute(
            "INSERT INTO counts VALUES (?, ?, 1) "
            "ON CONFLICT (reservation, label) DO UPDATE SET uses = uses + 1",
            (reservation.id, label),
        )
        return Claim(True, False)

    def _was_released(self, run: int, round: int) -> bool:
        query = "SELECT 1 FROM releases WHERE run=? AND round=?"
        return bool(self._database.rows(query, run, round))
