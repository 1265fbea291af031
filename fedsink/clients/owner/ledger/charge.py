"""Budgets, and what is charged to them: plans, their uses, and their events as text.

A ledger of ε cannot be recomposed; a ledger of events can.

>>> import dp_accounting
>>> event_to_json(dp_accounting.GaussianDpEvent(2.0))
'{"class": "GaussianDpEvent", "noise_multiplier": 2.0}'
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from fedsink.errors import PrivacyError
from fedsink.values import privacy_checks as checks

WORDS = "policy"
"""Entry of a plan in the ledger: the words of the owner's policy that its price depends on."""

Round = tuple[int, int | None]
"""The number of a round and its class (None: all)."""


@dataclass(frozen=True)
class Budget:
    """A ceiling (ε, δ) for everything that one lineage is charged under one adjacency.

    Runs that are charged under another adjacency learn from the same records: where an owner allows
    several, one record's loss may be the sum of the ceilings.

    A plan is fixed and charged whole before its first release. Its own (ε_i, δ_i) may come from any
    accountant, because nothing in it is chosen while it runs; plans are summed, Σ ε_i ≤ ε and
    Σ δ_i ≤ δ. Basic composition is a valid filter for plans that are chosen adaptively (Rogers,
    Roth, Ullman, Vadhan 2016) and for plans that run at the same time (Lyu 2022). A PLD total of
    several plans is none: its ε may be reached on every path and exceeded over all of them.

    Guarantees:
        - Admitted plans are together (ε, δ)-differentially private.
    """

    epsilon: float  # the ceiling ε > 0
    delta: float  # the ceiling δ in [0, 1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.positive("epsilon", self.epsilon))
        if self.delta != 0:
            checks.failure_probability(self.delta)
        object.__setattr__(self, "delta", float(self.delta))


@dataclass(frozen=True)
class Charge:
    """Cost of one plan, fixed before its first release.

    Attributes:
        adjacency: one of `fedsink.privacy.ADJACENCIES`.
        plan: JSON-able and complete: different plans have different values here.
        event: the whole plan as a `dp_accounting.DpEvent`.
        rounds: T; uses are numbered 1, ..., T.
        uses: number of rounds in which one labelled record may take part.
        delta: δ in [0, 1).
        epsilon: computes ε of the whole plan at δ; may take seconds, so it is called only for a
            new plan that is compared with a ceiling.
        rough_epsilon: a rough ε where it is far above a ceiling, in milliseconds; None where it
            may be near. A ledger calls it first, to refuse hopeless plans without pricing.
    """

    adjacency: str
    plan: Mapping[str, Any]
    event: Any
    rounds: int
    uses: int
    delta: float
    epsilon: Callable[[], float]
    rough_epsilon: Callable[[float], float | None] = lambda ceiling: None

    def __post_init__(self) -> None:
        if not 0.0 <= self.delta < 1.0:
            raise PrivacyError(f"a charge has δ in [0, 1), received {self.delta!r}.")

    @cached_property
    def plan_json(self) -> str:
        """Plan as canonical text."""
        return json.dumps(self.plan, sort_keys=True, separators=(",", ":"))


class Use(NamedTuple):
    """A use of a mechanism: its number in the plan, its class (None: all), its digest."""

    round: int
    label: int | None
    digest: bytes


class Claim(NamedTuple):
    """Tells whether a use was claimed now, and whether its reply was noted as released."""

    new: bool
    released: bool


class Reservation(NamedTuple):
    """A plan that is charged; made only by `Ledger.reserve`."""

    run: int  # number of the run in the ledger
    lineage: str  # the owner's name of the data
    name: str  # the run's public name
    rounds: int  # of the plan, numbered from 1
    uses: int  # number of these rounds in which one labelled record may take part


def event_to_json(event: Any) -> str:
    """Returns a `dp_accounting.DpEvent` as JSON; anything else is a PrivacyError."""
    try:
        return json.dumps(_plain(event.to_named_tuple()), sort_keys=True)
    except (AttributeError, TypeError, ValueError) as error:
        raise PrivacyError(
            f"a ledger stores serialisable events, received {type(event).__name__} ({error}): "
            "charge a dp_accounting.DpEvent."
        ) from None


def _plain(value: Any) -> Any:
    if hasattr(value, "class_name"):
        if value.module_name != "dp_accounting.dp_event":
            raise ValueError(f"{value.class_name} is not an event of dp_accounting")
        fields = value._asdict()
        del fields["module_name"]
        return {"class": fields.pop("class_name")} | {k: _plain(v) for k, v in fields.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
