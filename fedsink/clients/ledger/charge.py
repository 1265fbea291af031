"""What a plan asks of a budget, before anything is released."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from fedsink import __version__
from fedsink.errors import PrivacyError


class Instalment(NamedTuple):
    """What is charged of a plan by now.

    Attributes:
        whole: the plan.
        rounds, uses: how many of the plan's first rounds may be claimed, and uses of one record.
        delta: δ of all ends together.
        early: the charge of these rounds alone; None: they are all of the plan's.
    """

    whole: Charge
    rounds: int
    uses: int
    delta: float
    early: Charge | None

    def rough_epsilon(self, ceiling: float) -> float | None:
        """As `Charge.rough_epsilon`, of the lesser of both charges."""
        rough = self.whole.rough_epsilon(ceiling)
        if rough is None or self.early is None:
            return rough
        return self.early.rough_epsilon(ceiling)


@dataclass(frozen=True)
class Charge:
    """One plan, fixed before its first release.

    Attributes:
        adjacency: one of `fedsink.privacy.ADJACENCIES`.
        plan: JSON-able and complete: two plans that differ in anything differ here.
        event: the whole plan as a `dp_accounting.DpEvent`.
        use: one mechanism use as an event; the filter charges it use by use. None where the
            plan's δ holds more than its uses (an overflow's probability, say).
        rounds: T; uses are numbered 1, ..., T.
        uses: in how many of them one labelled record may take part.
        delta: δ in [0, 1).
        epsilon: computes ε of the whole plan at δ; may take seconds, so it is asked only where
            the plan is new and a ceiling must be compared.
        rough_epsilon: a rough ε where it is far above a ceiling, in milliseconds; None where it
            may be near. A ledger that asks it first refuses what is out of reach unpriced.
        part: the charge of the plan's first rounds alone, at another δ; None: the plan has no
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

    def instalment(self, step: int, round: int) -> Instalment:
        """What is charged once this round is asked for, of a plan in K instalments of r rounds.

        A run may end behind any of them, and who asks chooses where, knowing all answers so far.
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
        m ≤ p, the i-th summand is at most what run i alone leaves against an adversary who has the
        other runs in its hands, 2δ_i.

        Args:
            step: r ≥ 1.
            round: the largest that is asked for, from 1.
        """
        ends = -(-self.rounds // step)
        reached = min(ends, -(-max(1, round) // step))
        if self.part is None or ends == 1:
            return Instalment(self, self.rounds, self.uses, self.delta, None)
        delta = 2 * self.delta
        if reached == ends:
            return Instalment(self, self.rounds, self.uses, delta, None)
        early = self.part(reached * step, self.delta / (ends - 1))
        return Instalment(self, early.rounds, early.uses, delta, early)

    @cached_property
    def plan_json(self) -> str:
        """The plan as canonical text."""
        return json.dumps(self.plan, sort_keys=True, separators=(",", ":"))

    @cached_property
    def price_key(self) -> bytes:
        """What ε is a function of, and which version of fedsink computes it, as SHA-256."""
        text = f"{__version__}|{self.adjacency}|{self.plan_json}"
        return hashlib.sha256(text.encode()).digest()
