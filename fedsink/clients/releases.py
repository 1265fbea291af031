"""The one way out of a node: charge, commit, compute, store, release."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from torch import Tensor

from fedsink.clients.ledger.budget import Budget
from fedsink.clients.ledger.charge import Charge
from fedsink.clients.ledger.ledger import Ledger
from fedsink.clients.ledger.places import Asked, Place, Reservation, Use
from fedsink.clients.replies import ReplyStore
from fedsink.errors import LedgerError, ReleaseRefusedError


def use_digests(digest: bytes, uses: int) -> list[bytes]:
    """A digest for each use of one message."""
    return [hashlib.sha256(digest + use.to_bytes(8, "big")).digest() for use in range(uses)]


def reservation_name(run: str, charge: Charge | None, fingerprint: bytes) -> bytes:
    """SHA-256 of all that a message is charged under: nothing is remembered by less.

    Replies, the digests that noise is drawn under, and the states of answers are found by it. So
    what one account, run, plan or version of the data has left behind is never used in another.

    Args:
        run: public name of the run.
        charge: names the account by its adjacency, and holds the whole plan; None: nothing is
            protected, and nothing charged.
        fingerprint: of the version of the data. It stands for the lineage as well: a content has
            one (`Ledger.bind`).
    """
    account, plan = ("", "") if charge is None else (charge.adjacency, charge.plan_json)
    named = json.dumps([account, run, plan, fingerprint.hex()])
    return hashlib.sha256(named.encode()).digest()


def release_key(reservation: bytes, digest: bytes) -> bytes:
    """Names the reply to one message under a reservation; see `reservation_name`."""
    return hashlib.sha256(reservation + digest).digest()


def refuse_rollback(ledger: Ledger, store: ReplyStore) -> None:
    """Refuse a ledger that does not know a reply beside it: it would spend a budget again.

    A use is claimed before its reply is stored, so such a ledger is older than the reply, or new.

    Raises:
        LedgerError: there is such a reply.
    """
    replies = store.digests()  # first: what is listed now was claimed before
    if not ledger.knows(use_digests(digest, 1)[0] for digest in replies):
        raise LedgerError(
            "The ledger does not know every reply that is stored beside it, so it was put back or "
            "replaced, and charges are missing: restore the ledger that belongs to the replies."
        )


def refuse_forgotten(ledger: Ledger, states: Path) -> None:
    """Refuse an empty ledger beside states that were learned from the data under lost charges.

    Args:
        ledger: the node's.
        states: folder of what its answers remember; see `fedsink.clients.states`.

    Raises:
        LedgerError: there is such a state.
    """
    if ledger.head()[0] == 0 and any(states.glob("*/*.state")):
        raise LedgerError(
            f"The ledger is empty beside states that were learned from the data ({states}): "
            "restore the ledger, or remove the states (fedsink ledger forget-states) if the data "
            "are new."
        )


@dataclass(frozen=True)
class Admitted:
    """A message whose charge is committed.

    Attributes:
        digests: one for each use; its noise is drawn under it.
        stored: the reply that has been computed before, if there is one.
        release: stores the reply computed now and returns what may leave.
        keeps: whether `release` stores anything.
    """

    digests: Sequence[bytes]
    stored: Mapping[str, Tensor] | None
    release: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
    keeps: bool = True

    @classmethod
    def unrecorded(cls, digests: Sequence[bytes]) -> Admitted:
        """What leaves no trace: a simulation's noise that can be drawn again."""
        return cls(digests, None, lambda reply: reply, keeps=False)


@lru_cache(maxsize=16)
def seeded(uses: int) -> Admitted:
    """What a client of a seed is admitted to: its noise depends on no digest."""
    return Admitted.unrecorded((b"",) * uses)


class Releases:
    """Answers of one client, each charged before it exists.

    Guarantees:
        - Nothing is computed from the data before its charge is committed.
        - The same request on changed data is another request.
        - A released reply is answered again with its stored bytes, or not at all; without a
          store the caller's noise must be the same for the same digests.

    Args:
        ledger: the node's.
        lineage: the owner's name of this client's data.
        budgets: ceilings by adjacency; None: the ledger admits one plan, whatever it costs.
        store: where released replies are kept; None where their noise can be drawn again.
        on_change: ``"inherit"`` or ``"refuse"``, see `Ledger.bind`.
        runs_per_day: how many new runs the owner admits; None: any number.
    """

    def __init__(
        self,
        ledger: Ledger,
        lineage: str,
        budgets: Mapping[str, Budget] | None,
        store: ReplyStore | None,
        on_change: str = "inherit",
        runs_per_day: int | None = None,
    ) -> None:
        self._ledger = ledger
        self._lineage = lineage
        self._budgets = budgets
        self._store = store
        self._on_change = on_change
        self._runs_per_day = runs_per_day
        self._reservation: tuple[tuple[str, str, str], Reservation] | None = None
        self._bound: bytes | None = None

    def admit(
        self,
        run: str,
        charge: Charge,
        places: Sequence[Place],
        digest: bytes,
        content: Callable[[], bytes],
        method: str | None = None,
        operator: str | None = None,
    ) -> Admitted:
        """Charge one message; its reply is computed at most once for each state of the data.

        Args:
            run: public name of the run.
            charge: its plan.
            places: the rounds and classes of the message's uses.
            digest: SHA-256 of the whole message.
            content: fingerprint of the data, which it loads.
            method: name of the answer, and who has asked for it by which signature: for the owner.
            operator: see `method`.

        Raises:
            ReleaseRefusedError: budget, ledger or store forbid an answer.
            LedgerError: ledger or store cannot be read or written.
        """
        asked = Asked(operator, method, self._runs_per_day)
        reservation = self._reserve(run, charge, asked, max(place[0] for place in places))
        fingerprint = content()
        if fingerprint != self._bound:
            self._ledger.bind(self._lineage, fingerprint, self._on_change)
            self._bound = fingerprint
        key = release_key(reservation_name(run, charge, fingerprint), digest)
        digests = use_digests(key, len(places))
        uses = [Use(*place, each) for place, each in zip(places, digests, strict=True)]
        claims = self._ledger.claim(reservation, fingerprint, uses)
        store = self._store
        if store is None:
            return Admitted.unrecorded(digests)
        released = all(claim.released for claim in claims)

        def mark() -> None:
            if not released:
                self._ledger.released(reservation, [place[0] for place in places])

        stored = store.get(key)
        if stored is not None:
            mark()
        elif any(claim.released for claim in claims):
            raise ReleaseRefusedError(
                f"The reply to this request of the run {run} has left {self._lineage}, and its "
                "stored bytes are gone: it is never noised again."
            )

        def release(reply: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
            kept = store.put(key, reply)
            mark()
            return kept

        return Admitted(digests, stored, release)

    def _reserve(self, run: str, charge: Charge, asked: Asked, round: int) -> Reservation:
        plan = (run, charge.adjacency, charge.plan_json)
        known = self._reservation
        lacks = known is not None and known[1].step is not None and known[1].rounds < round
        if known is None or known[0] != plan or lacks:
            budget = None if self._budgets is None else self._budgets[charge.adjacency]
            held = self._ledger.reserve(self._lineage, run, charge, budget, asked, round)
            self._reservation = plan, held
            return held
        return known[1]
