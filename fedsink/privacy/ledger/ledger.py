"""Charge, commit, release: the three steps of every answer that noise leaves in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedsink.errors import LedgerError, ReleaseRefusedError
from fedsink.privacy.ledger import admission
from fedsink.privacy.ledger.budget import Budget
from fedsink.privacy.ledger.charge import Charge
from fedsink.privacy.ledger.check import problems
from fedsink.privacy.ledger.database import Database
from fedsink.privacy.ledger.places import EVERY_LABEL, Claim, Reservation, Use


class Ledger:
    """The charges of one or more dataset lineages, each named by its owner.

    An account belongs to a (lineage, adjacency) and has its own ceiling: events of different
    adjacency are never summed. It holds runs, a run holds the one plan that was reserved for it
    (any number of plans under the filter), and a plan holds the uses that were claimed.

    Guarantees:
        - A use is charged and committed before its answer exists.
        - A place (run, round) once claimed is answered only for the digest that claimed it.
        - Charges survive the end of the process, however it ends.
        - Two processes at once cannot spend more than the ceiling.
        - No class of records is used more often than its plan was charged for.
        - A changed content inherits every charge of its lineage, and one content has one lineage.
        - A run answers from one state of the data.

    Args:
        path: the SQLite file.
        durable: whether a charge survives a power cut, too.

    Raises:
        LedgerError: the file cannot be used; so do all methods.
    """

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self._database = Database(path, durable=durable)
        if damage := problems(self._database):
            self._database.close()
            raise LedgerError(
                f"the ledger {path} is damaged ({damage[0]}), and nothing is released without it: "
                "restore it from a backup."
            )

    def reserve(self, lineage: str, run: str, charge: Charge, budget: Budget | None) -> Reservation:
        """Admit a plan, or find that it was admitted before.

        Args:
            lineage: the owner's name of the data, whatever they contain today.
            run: public name of the run.
            charge: the plan and its cost.
            budget: the account's ceiling; None admits one plan at whatever it costs (a
                simulation's ledger, whose owner has stated no ceiling).

        Raises:
            BudgetError: the account has too little left for the plan.
            ReleaseRefusedError: the run has another plan, or the account another admission rule.
        """
        key = (lineage, run, charge, budget)
        with self._database.explained() as connection:
            if found := admission.find(connection, *key):
                return found
            admission.check_reach(connection, lineage, charge, budget)
        priced = self._price(charge, budget)
        with self._database.transaction() as connection:
            found = admission.find(connection, *key)
            return found or admission.admit(self._database, *key, priced)

    def bind(self, lineage: str, fingerprint: bytes, on_change: str = "inherit") -> None:
        """Record what the lineage's data are today.

        Args:
            lineage: the owner's name of the data.
            fingerprint: hash of their content; it never leaves this file.
            on_change: ``"inherit"`` lets changed data keep all charges, ``"refuse"`` does
                not let them.

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
        """Charge all uses of one message, or none of them.

        A use that was claimed for the same digest costs nothing: it is answered with the same
        bytes.

        Args:
            reservation: from `reserve`.
            fingerprint: the content the answers are computed from; see `bind`.
            uses: at least one.

        Raises:
            BudgetError: a class would be used more often than charged, or the filter is full.
            ReleaseRefusedError: a place is taken, does not exist, or the data have changed
                since the run's first answer.
        """
        with self._database.transaction() as connection:
            admission.same_content(self._database, reservation, fingerprint)
            claims = [self._claim(reservation, use) for use in uses]
            if any(claim.new for claim in claims):
                admission.check_labels(connection, reservation)
                admission.check_filter(self._database, reservation)
        return claims

    def released(self, reservation: Reservation, rounds: Iterable[int]) -> None:
        """Note that the replies of these rounds are stored and may have left the node."""
        with self._database.transaction():
            for round in rounds:
                if not self._released(reservation.run, round):
                    self._database.append("releases", reservation.run, round)

    def knows(self, digests: Iterable[bytes]) -> bool:
        """Whether every one of these digests has been claimed."""
        known = {row[0] for row in self._database.rows("SELECT digest FROM claims")}
        return known.issuperset(digests)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _price(self, charge: Charge, budget: Budget | None) -> admission.Price:
        """The plan's price; one that takes seconds is kept, so that it is computed once."""
        if budget is None or budget.admission != "reserve":
            return admission.price(charge, budget)
        with self._database.explained() as connection:
            if kept := admission.remembered(connection, charge):
                return kept
        priced = admission.price(charge, budget)  # before the file is locked
        with self._database.transaction() as connection:
            admission.remember(connection, charge, priced)
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
            return Claim(False, self._released(reservation.run, use.round))
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

    def _released(self, run: int, round: int) -> bool:
        query = "SELECT 1 FROM releases WHERE run=? AND round=?"
        return bool(self._database.rows(query, run, round))
