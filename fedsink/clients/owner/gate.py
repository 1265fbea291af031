"""The one way out of a node: where there is a ledger, a message is charged before it is answered.

`LedgerGate.admit` reserves the whole plan, has the records read, binds their content to the
lineage, and claims the rounds. `Admitted.keep` stores the reply and notes its release; then it
leaves. A simulated client on a machine without its ledger has a `PassGate`, which admits rounds
charged elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from torch import Tensor

from fedsink.clients.owner.ledger.charge import Budget, Charge, Reservation, Use
from fedsink.clients.owner.ledger.ledger import Ledger
from fedsink.clients.owner.replies import ReplyStore
from fedsink.errors import ReleaseRefusedError

if TYPE_CHECKING:
    from fedsink.clients.answers.base import Answer


def round_digests(digest: bytes, rounds: int) -> list[bytes]:
    """Returns a digest for each round of one message."""
    return [hashlib.sha256(digest + index.to_bytes(8, "big")).digest() for index in range(rounds)]


def reservation_name(run: str, charge: Charge | None, fingerprint: bytes) -> bytes:
    """Returns the SHA-256 of everything that a message's charge depends on.

    Replies, the digests that noise is drawn under, and the states of answers are found by this
    name. So none of these is used under another account, run, plan or version of the data. The
    charge, None where nothing is protected, names the account by its adjacency and holds the whole
    plan. The fingerprint stands for the lineage as well: a content has one (`Ledger.bind`).
    """
    account, plan = ("", "") if charge is None else (charge.adjacency, charge.plan_json)
    named = json.dumps([account, run, plan, fingerprint.hex()])
    return hashlib.sha256(named.encode()).digest()


def reply_name(reservation: bytes, digest: bytes) -> bytes:
    """Returns the name of the reply to one message under a reservation; see `reservation_name`."""
    return hashlib.sha256(reservation + digest).digest()


@dataclass(frozen=True)
class Admitted:
    """A message that may be answered; where there is a ledger, its charge is committed."""

    digests: Sequence[bytes]  # one for each round; the round's noise is drawn under its digest
    stored: Mapping[str, Tensor] | None = None  # the reply computed before, if there is one
    keep: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None
    """Stores the reply computed now and returns the reply that may leave; None: stores nothing,
    because the noise can be drawn again."""


@lru_cache(maxsize=16)
def seeded(rounds: int) -> Admitted:
    """Returns the admission in a seeded run, whose noise is keyed by round and needs no digest."""
    return Admitted((b"",) * rounds)


class LedgerGate:
    """Admits one client's answers, each charged before it exists.

    Guarantees:
        - Nothing that may leave is computed before its charge is committed.
        - The same request on changed data is another request.
        - A released reply is answered again with its stored bytes, or not at all; without a
          store the caller's noise must be the same for the same digests.

    Without `budgets`, ceilings by adjacency, the ledger admits one plan, whatever it costs; there
    is no store where the noise can be drawn again.
    """

    def __init__(
        self,
        ledger: Ledger,
        lineage: str,
        budgets: Mapping[str, Budget] | None,
        store: ReplyStore | None,
        on_change: str = "inherit",
    ) -> None:
        self._ledger = ledger
        self._lineage = lineage
        self._budgets = budgets
        self._store = store
        self._on_change = on_change
        self._reservation: tuple[tuple[str, str, str], Reservation] | None = None
        self._bound: bytes | None = None

    def admit(
        self, answer: Answer, charge: Charge, digest: bytes, content: Callable[[], bytes]
    ) -> Admitted:
        """Charges one message; its reply is computed once, and changed data are refused."""
        rounds = [round for round, _ in answer.rounds]
        reservation = self._reserve(answer, charge)
        fingerprint = content()
        if fingerprint != self._bound:
            self._ledger.bind(self._lineage, fingerprint, self._on_change)
            self._bound = fingerprint
        name = reply_name(reservation_name(answer.run, charge, fingerprint), digest)
        digests = round_digests(name, len(rounds))
        uses = [Use(*round, d) for round, d in zip(answer.rounds, digests, strict=True)]
        claims = self._ledger.claim(reservation, fingerprint, uses)
        store = self._store
        if store is None:
            return Admitted(digests)
        released = all(claim.released for claim in claims)

        def mark() -> None:
            if not released:
                self._ledger.note_released(reservation, rounds)

        stored = store.get(name)
        if stored is not None:
            mark()
        elif any(claim.released for claim in claims):
            raise ReleaseRefusedError(
                f"The reply to this request of the run {answer.run} has left {self._lineage}, and "
                "its stored bytes are gone: it is never noised again."
            )

        def keep(reply: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
            stored_reply = store.put(name, reply)
            mark()
            return stored_reply

        return Admitted(digests, stored, keep)

    def _reserve(self, answer: Answer, charge: Charge) -> Reservation:
        """Returns the plan's reservation; the last one is kept in memory."""
        plan = (answer.run, charge.adjacency, charge.plan_json)
        if self._reservation is None or self._reservation[0] != plan:
            budget = None if self._budgets is None else self._budgets[charge.adjacency]
            held = self._ledger.reserve(
                self._lineage, answer.run, charge, budget, answer.operator, answer.name
            )
            self._reservation = plan, held
        return self._reservation[1]


class PassGate:
    """Replaces `LedgerGate` where a simulated client runs on a machine without its ledger.

    A pass is the digest of a round that was charged on the ledger's machine.

    Guarantees:
        - Nothing is answered before its charge is committed on the ledger's machine.
        - A pass is for one message under one reservation, and noise is drawn under the digests
          that were charged.
    """

    def __init__(self) -> None:
        self._digests: frozenset[bytes] = frozenset()

    def grant(self, digests: Iterable[bytes]) -> None:
        """Replaces the passes by those for the rounds with these digests."""
        self._digests = frozenset(digests)

    def admit(
        self, answer: Answer, charge: Charge, digest: bytes, content: Callable[[], bytes]
    ) -> Admitted:
        """Returns the admission that `LedgerGate.admit` gave on the ledger's machine."""
        reservation = reservation_name(answer.run, charge, content())
        digests = round_digests(reply_name(reservation, digest), len(answer.rounds))
        if not self._digests.issuperset(digests):
            raise ReleaseRefusedError(
                f"No charge of the run {answer.run} was committed for this message and these data."
            )
        return Admitted(digests)
