"""Budget that an owner allows under one adjacency, with the rule that admits plans to it.

>>> Budget(3.0, 1e-5, "rdp-filter", 8.0).rho < 3.0
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fedsink.errors import BudgetError, PrivacyError
from fedsink.values import privacy_checks as checks

Admission = Literal["reserve", "rdp-filter"]


@dataclass(frozen=True)
class Budget:
    """A ceiling (ε, δ) for everything that one lineage is charged under one adjacency.

    Runs that are charged under another adjacency learn from the same records: where an owner allows
    several, one record's loss may be the sum of the ceilings.

    ``reserve``: a plan is fixed and charged in full before its first release. Its own (ε_i, δ_i)
    may come from any accountant, because nothing in it is chosen while it runs; plans are summed,
    Σ ε_i ≤ ε and Σ δ_i ≤ δ. Basic composition is a valid filter for plans that are chosen
    adaptively (Rogers, Roth, Ullman, Vadhan 2016) and for plans that run at the same time (Lyu
    2022).

    ``rdp-filter``: every use is charged when it is made, at one Rényi order α > 1 fixed
    beforehand, so that parameters may be chosen from earlier answers. Uses are admitted while
    Σ ρ_i(α) ≤ ρ with

        ε = ρ + log((α − 1)/α) − (log δ + log α)/(α − 1),

    Feldman and Zrnic 2021, Theorem 4.3 (the filter), with Canonne, Kamath, Steinke 2020,
    Proposition 12 (the conversion). A PLD or PRV total is no such filter: its ε may be reached on
    every path and exceeded over all of them.

    Guarantees:
        - Plans admitted under ``reserve`` are together (ε, δ)-differentially private.
        - Uses admitted under ``rdp-filter`` are together (ε, δ)-differentially private, however
          their parameters were chosen.

    Args:
        epsilon: the ceiling ε > 0.
        delta: the ceiling δ in [0, 1); the filter needs δ > 0.
        admission: ``"reserve"`` or ``"rdp-filter"``.
        order: α > 1, for the filter only.
        rounds_per_reservation: r: under ``reserve`` a plan of T rounds is charged in K = ⌈T/r⌉
            instalments, when its first round of each is asked for (`Charge.instalment`); None: in
            full at once.

    Raises:
        PrivacyError: a value is out of range, or the order cannot prove the ceiling.
    """

    epsilon: float
    delta: float
    admission: Admission = "reserve"
    order: float | None = None
    rounds_per_reservation: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.positive("epsilon", self.epsilon))
        if self.delta != 0:
            checks.failure_probability(self.delta)
        object.__setattr__(self, "delta", float(self.delta))
        if self.admission not in get_args(Admission):
            raise PrivacyError(
                f"admission must be one of {', '.join(get_args(Admission))}, received "
                f"{self.admission!r}."
            )
        if self.rounds_per_reservation is not None:
            checks.count("rounds_per_reservation", self.rounds_per_reservation)
        if self.admission == "reserve":
            if self.order is not None:
                raise PrivacyError(
                    f"order={self.order:g} belongs to admission='rdp-filter': leave it out."
                )
            return
        if self.order is None or not (math.isfinite(self.order) and self.order > 1):
            raise PrivacyError(
                f"admission='rdp-filter' needs a Rényi order > 1, received order={self.order!r}."
            )
        if self.rounds_per_reservation is not None:
            raise PrivacyError(
                "admission='rdp-filter' charges use by use: leave rounds_per_reservation out."
            )
        if self.delta == 0:
            raise PrivacyError("admission='rdp-filter' needs delta > 0.")
        object.__setattr__(self, "order", float(self.order))
        if self.rho <= 0:
            raise PrivacyError(
                f"the order {self.order:g} cannot prove ε = {self.epsilon:g} at δ = "
                f"{self.delta:g}, however little is used: choose a higher order."
            )

    @property
    def rho(self) -> float:
        """ρ: how much Rényi divergence of the order α the filter may admit."""
        if self.order is None:
            raise PrivacyError("a budget without an order has no Rényi budget.")
        return self.epsilon - self._conversion(self.order)

    def epsilon_of(self, rho: float) -> float:
        """ε at the budget's δ of uses whose divergences of the order α sum to `rho`."""
        if self.order is None:
            raise PrivacyError("a budget without an order has no Rényi budget.")
        return max(0.0, rho + self._conversion(self.order)) if rho > 0 else 0.0

    def cost(self, use: Any) -> float:
        """ρ_i(α), the Rényi divergence of the order α of one use, a `dp_accounting.DpEvent`.

        Raises:
            BudgetError: the divergence of this event is not known.
        """
        if use is None:
            raise BudgetError("The filter cannot admit a plan that is not the sum of its uses.")
        events = checks.require("dp_accounting")
        ledger = checks.require("dp_accounting.rdp").RdpAccountant([self.order])
        try:
            ledger.compose(use)
        except events.UnsupportedEventError:
            raise BudgetError(
                f"The Rényi divergence of {type(use).__name__} is not known, so the filter cannot "
                'admit it: use admission = "reserve".'
            ) from None
        # An order that the accountant leaves out for an event has no finite bound.
        return float(ledger._rdp[0]) if len(ledger._rdp) else math.inf

    def _conversion(self, order: float) -> float:
        return math.log1p(-1 / order) - (math.log(self.delta) + math.log(order)) / (order - 1)
