"""Charges to a budget: plans, their uses, their prices, and their events as text.

A ledger of ε cannot be recomposed; a ledger of events can.

>>> import dp_accounting
>>> event_to_json(dp_accounting.GaussianDpEvent(2.0))
'{"class": "GaussianDpEvent", "noise_multiplier": 2.0}'
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from sqlite3 import Connection
from typing import Any, NamedTuple

from fedsink import __version__
from fedsink.clients.ledger.budget import Budget
from fedsink.clients.ledger.database import ORIGIN, sealed
from fedsink.errors import BudgetError, LedgerError, PrivacyError
from fedsink.privacy.adjacency import ADD_REMOVE
from fedsink.values import privacy_checks as checks
from fedsink.values import read_json

PRICING = 2
"""Of the accounting: raised with every correction, so that no price from before it is read."""
WORDS = "policy"
"""Entry of a plan in the ledger: the words of the owner's policy that its price depends on."""
EVERY_LABEL = -1  # how the file writes a use of all classes; NULL would be no key

Place = tuple[int, int | None]
"""A round and its class (None: all)."""

_MODULE = "dp_accounting.dp_event"
_MOST_PRICES = 4096


class Instalment(NamedTuple):
    """Charge for the rounds of a plan so far.

    Attributes:
        whole: the plan.
        rounds, uses: number of first rounds that may be claimed, and of one record's uses.
        delta: δ of all ends together.
        early: the charge of only these rounds; None: these are all rounds of the plan.
        step: rounds of an instalment; None: the plan is charged in full at once.
    """

    whole: Charge
    rounds: int
    uses: int
    delta: float
    early: Charge | None
    step: int | None

    def rough_epsilon(self, ceiling: float) -> float | None:
        """Returns `Charge.rough_epsilon` of the lesser of both charges."""
        rough = self.whole.rough_epsilon(ceiling)
        if rough is None or self.early is None:
            return rough
        return self.early.rough_epsilon(ceiling)


@dataclass(frozen=True)
class Charge:
    """Cost of one plan, fixed before its first release.

    Attributes:
        adjacency: one of `fedsink.privacy.ADJACENCIES`.
        plan: JSON-able and complete: different plans have different values here.
        event: the whole plan as a `dp_accounting.DpEvent`.
        use: one mechanism use as an event; the filter charges it use by use. None where the
            plan's δ holds more than its uses (an overflow's probability, say).
        rounds: T; uses are numbered 1, ..., T.
        uses: number of rounds in which one labelled record may take part.
        delta: δ in [0, 1).
        epsilon: computes ε of the whole plan at δ; may take seconds, so it is called only for a
            new plan that is compared with a ceiling.
        rough_epsilon: a rough ε where it is far above a ceiling, in milliseconds; None where it
            may be near. A ledger calls it first, to refuse hopeless plans without pricing.
        part: the charge of only the plan's first rounds, at another δ; None: the plan has no
            parts, and is charged in full.
    """

    adjacency: str
    plan: Mapping[str, Any]
    event: Any
    use: Any
    rounds: int
    uses: int
    delta: float
    epsilon: Callable[[], float]
    rough_epsilon: Callable[[float], float | None] = lambda ceiling: None
    part: Callable[[int, float], Charge] | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.delta < 1.0:
            raise PrivacyError(f"a charge has δ in [0, 1), received {self.delta!r}.")

    def instalment(self, step: int | None, round: int) -> Instalment:
        """Returns the charge up to this round, for K instalments of r rounds.

        A run may end after any instalment; the operator chooses where, knowing all answers so far.
        For that the K ends share δ: behind k < K of them a run is charged ε of k·r rounds at
        δ/(K − 1), at most the whole plan's; behind the last one the whole plan's ε at δ; and 2δ
        from the first on.

        *Proof for one run*: let p, p' be the densities of its answers on neighbouring data up to
        the end k that was chosen, e_k what is charged there, and b = (p − exp(e_k)·p')₊. At an end
        that is charged less than the whole plan's ε, ∫b is at most δ/(K − 1), and there are at most
        K − 1 such ends: together δ. At an end that is charged the whole plan's ε it may be more
        than δ/(K − 1). But the answers up to any of these ends are a function of all answers of
        the plan, had the others been asked for: over all answers that stop at one of them,
        ∫b ≤ δ, once for all of these ends. So p ≤ exp(e_k)·p' + b with ∫b ≤ 2δ, whatever chose k.

        *Several runs*, one after the other or in turns: with m = p − b ≤ exp(e_k)·p' for each,
        Πp = Πm + Σ_i (Π_{j<i} m_j)·b_i·(Π_{j>i} p_j). The first term is at most exp(Σe)·Πp'. As
        m ≤ p, the i-th summand is at most that of run i by itself against an adversary who has the
        other runs in its hands, 2δ_i.

        Args:
            step: r ≥ 1; None: the plan is charged in full at once.
            round: the largest requested round, from 1.
        """
        ends = 1 if step is None else -(-self.rounds // step)
        if step is None or self.part is None or ends == 1:
            return Instalment(self, self.rounds, self.uses, self.delta, None, step)
        delta = 2 * self.delta
        reached = min(ends, -(-max(1, round) // step))
        if reached == ends:
            return Instalment(self, self.rounds, self.uses, delta, None, step)
        early = self.part(reached * step, self.delta / (ends - 1))
        return Instalment(self, early.rounds, early.uses, delta, early, step)

    @cached_property
    def plan_json(self) -> str:
        """Plan as canonical text."""
        return json.dumps(self.plan, sort_keys=True, separators=(",", ":"))

    @cached_property
    def price_key(self) -> bytes:
        """SHA-256 of all that ε depends on, and of the versions that compute it."""
        versions = f"{__version__}|{PRICING}|{version('dp-accounting')}"
        text = f"{versions}|{self.adjacency}|{self.plan_json}"
        return hashlib.sha256(text.encode()).digest()


class Requester(NamedTuple):
    """Names the party that asks for a plan, and limits its new runs per day.

    Attributes:
        operator: the owner's name of the request's signer; None: it is not signed.
        method: the name of the answer.
        runs_per_day: most new runs in a day; None: any number.
    """

    operator: str | None = None
    method: str | None = None
    runs_per_day: int | None = None


@dataclass(frozen=True)
class Application:
    """A plan that a run asks an account to admit.

    Attributes:
        lineage: the owner's name of the data, whatever they contain today.
        run: public name of the run.
        charge: the plan and its cost.
        budget: the account's ceiling; None admits one plan, whatever it costs.
        requester: the party that asks.
    """

    lineage: str
    run: str
    charge: Charge
    budget: Budget | None
    requester: Requester


class Use(NamedTuple):
    """A use of a mechanism: its number in the plan, its class (None: all), its digest."""

    round: int
    label: int | None
    digest: bytes


class Claim(NamedTuple):
    """Tells whether a use was claimed now, and whether its reply was noted as released."""

    new: bool
    released: bool


@dataclass(frozen=True)
class Reservation:
    """A plan that an account has admitted; made only by `Ledger.reserve`.

    Attributes:
        id, run, account: row numbers in the ledger.
        lineage: the owner's name of the data.
        name: the run's public name.
        rounds: number of the plan's first rounds charged by now, all T where there are no
            instalments; rounds are numbered from 1.
        uses: number of these rounds in which one labelled record may take part.
        budget: the account's ceiling.
        step: rounds of an instalment, fixed with the first; None: the plan is charged in full.
    """

    id: int
    run: int
    account: int
    lineage: str
    name: str
    rounds: int
    uses: int
    budget: Budget | None
    step: int | None = None


class Price(NamedTuple):
    """Cost of a plan under its account's rule: ε in full, or ρ(α) a use."""

    epsilon: float | None
    rho: float | None


def price(charge: Charge, budget: Budget | None) -> Price:
    """Returns the part of the plan's cost that the account's rule needs."""
    if budget is None:
        return Price(None, None)
    if budget.admission == "reserve":
        return Price(float(charge.epsilon()), None)
    if charge.adjacency != ADD_REMOVE:
        raise BudgetError(f"The filter is known for {ADD_REMOVE} only, not {charge.adjacency}.")
    return Price(None, budget.cost(charge.use))


def remembered(connection: Connection, charge: Charge) -> Price | None:
    """Returns the ε computed for this plan before, whether it was admitted or not."""
    row = connection.execute(
        "SELECT epsilon, seal FROM prices WHERE plan=?", (charge.price_key,)
    ).fetchone()
    if row is None or row[1] != price_seal(charge.price_key, row[0]):
        return None
    return Price(row[0], None)


def price_seal(key: bytes, epsilon: float) -> bytes:
    """Returns the seal of a price; no other fact is sealed with it."""
    return sealed(ORIGIN, "prices", key, epsilon)


def remember(connection: Connection, charge: Charge, priced: Price) -> None:
    """Keeps a plan's ε; forgets the oldest where there are more than some thousand."""
    if priced.epsilon is None or math.isnan(priced.epsilon):
        return
    connection.execute(
        "INSERT OR REPLACE INTO prices (plan, epsilon, seal) VALUES (?, ?, ?)",
        (charge.price_key, priced.epsilon, price_seal(charge.price_key, priced.epsilon)),
    )
    connection.execute(
        "DELETE FROM prices WHERE id <= (SELECT MAX(id) FROM prices) - ?", (_MOST_PRICES,)
    )


def event_to_json(event: Any) -> str:
    """Returns a `dp_accounting.DpEvent` as JSON; `event_from_json` gives an equal event back.

    Raises:
        PrivacyError: the value is no event, or an event that JSON cannot hold.
    """
    try:
        return json.dumps(_plain(event.to_named_tuple()), sort_keys=True)
    except (AttributeError, TypeError, ValueError) as error:
        raise PrivacyError(
            f"a ledger stores serialisable events, received {type(event).__name__} ({error}): "
            "charge a dp_accounting.DpEvent."
        ) from None


def event_from_json(text: str) -> Any:
    """Returns the event that `event_to_json` wrote; reads only classes of dp_accounting.

    Raises:
        LedgerError: the text is damaged or names no event.
    """
    try:
        return _event(read_json(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LedgerError(
            f"an event in the ledger is damaged ({error}): restore the ledger from a backup."
        ) from None


def _plain(value: Any) -> Any:
    if hasattr(value, "class_name"):
        if value.module_name != _MODULE:
            raise ValueError(f"{value.class_name} is not an event of dp_accounting")
        fields = value._asdict()
        del fields["module_name"]
        return {"class": fields.pop("class_name")} | {k: _plain(v) for k, v in fields.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _event(fields: Any) -> Any:
    if isinstance(fields, list):
        return [_event(item) for item in fields]
    if not isinstance(fields, dict):
        return fields
    events = checks.require(_MODULE)
    name = fields["class"]
    kind = getattr(events, name, None)
    # Never import a name from a file: only event classes of this one module are built.
    if not (isinstance(kind, type) and issubclass(kind, events.DpEvent)):
        raise ValueError(f"{name!r} is no event")
    return kind(**{key: _event(value) for key, value in fields.items() if key != "class"})
