"""From the clients' plans to the run's guarantee: disjoint clients, or one person at several.

Records of different clients are disjoint, so a record meets one client's mechanism only: the run's
ε is the largest of theirs (parallel composition, McSherry 2009, Theorem 4). A person with records
at j clients meets j mechanisms, which compose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsink.errors import PrivacyError
from fedsink.privacy import checks
from fedsink.privacy.accounting.events import epsilon
from fedsink.privacy.adjacency import REPLACE_ONE, common_adjacency, describe, unit_of

if TYPE_CHECKING:
    from fedsink.privacy.plan import PrivacyPlan


@dataclass(frozen=True)
class Guarantee:
    """(ε, δ) with what it is stated for.

    Attributes:
        epsilon: ε.
        delta: δ.
        adjacency: the adjacency's name.
        accountant: which accountant's bound it is.
    """

    epsilon: float
    delta: float
    adjacency: str
    accountant: str

    @property
    def unit(self) -> str:
        """``"record"``, ``"user"`` or ``"client"``."""
        return unit_of(self.adjacency)

    @property
    def adjacency_words(self) -> str:
        """What neighbouring data sets differ in."""
        return describe(self.adjacency)


def across_clients(plans: Sequence[PrivacyPlan], accountant: str = "pld") -> Guarantee:
    """The guarantee of a run whose clients hold disjoint records: the largest ε.

    Guarantees:
        - No client's ε exceeds the run's, and one client's equals it.
        - Plans of different adjacency or δ are refused.

    Raises:
        PrivacyError: If there are no plans, or they differ in adjacency or δ.
    """
    adjacency, delta = _common(plans)
    worst = max(plan.epsilon(accountant) for plan in set(plans))
    return Guarantee(worst, delta, adjacency, accountant)


def one_person_at(plans: Sequence[PrivacyPlan], accountant: str = "pld") -> Guarantee:
    """The guarantee for somebody with one record at each of these clients: the plans compose.

    Guarantees:
        - The events of all plans are composed, at one δ for all of them together.
        - Plans of different adjacency or δ are refused.

    Args:
        plans: One for each client where the person has a record.
        accountant: One of `ACCOUNTANTS`; different plans compose under ``"pld"`` and ``"rdp"``.

    Raises:
        PrivacyError: If there are no plans, they differ in adjacency or δ, or different plans
            would have to be composed under replace-one.
    """
    adjacency, delta = _common(plans)
    first = plans[0]
    if len(set(plans)) == 1:
        cost = first.cost
        uses = len(plans) * cost.uses(first.rounds)
        bound = cost.epsilon(first.rate, first.noise_multiplier, uses, delta, accountant)
        return Guarantee(bound, delta, adjacency, accountant)
    if adjacency == REPLACE_ONE:
        raise PrivacyError(
            "different plans are not composed under replace-one: give each its own δ and add up "
            "their ε and δ."
        )
    left = delta - sum(plan.overflow for plan in plans)
    if left <= 0:
        raise PrivacyError("the plans' capacities overflow with a probability above δ: raise them.")
    composed = checks.require("dp_accounting").ComposedDpEvent([plan.event for plan in plans])
    return Guarantee(epsilon(composed, left, accountant), delta, adjacency, accountant)


def _common(plans: Sequence[PrivacyPlan]) -> tuple[str, float]:
    adjacency = common_adjacency(plan.adjacency for plan in plans)
    deltas = sorted({plan.delta for plan in plans})
    if len(deltas) != 1:
        raise PrivacyError(
            f"guarantees are combined at one δ only, received {', '.join(map(str, deltas))}: "
            "state every plan at the same δ."
        )
    return adjacency, deltas[0]
