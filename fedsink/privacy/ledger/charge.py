"""What a plan asks of a budget, before anything is released."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedsink import __version__
from fedsink.errors import PrivacyError


@dataclass(frozen=True)
class Charge:
    """One plan, fixed before its first release.

    Attributes:
        adjacency: ``"add-remove"``, ``"replace-one"`` or ``"client"``.
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

    def __post_init__(self) -> None:
        if not 0.0 <= self.delta < 1.0:
            raise PrivacyError(f"a charge has δ in [0, 1), received {self.delta!r}.")

    @cached_property
    def plan_json(self) -> str:
        """The plan as canonical text."""
        return json.dumps(self.plan, sort_keys=True, separators=(",", ":"))

    @cached_property
    def price_key(self) -> bytes:
        """What ε is a function of, and which version of fedsink computes it, as SHA-256."""
        text = f"{__version__}|{self.adjacency}|{self.plan_json}"
        return hashlib.sha256(text.encode()).digest()
