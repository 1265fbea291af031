"""One line of an audit: a claim beside what was proved about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """An ε that was claimed and an ε that was excluded.

    Attributes:
        audited: What was run.
        method: How the bound was made.
        claim: The upper bound on ε that the accountant or the mechanism states.
        bound: The lower bound on ε that the audit proved at `confidence`.
        confidence: With which probability a correct mechanism stays above `bound`.
        resolution: The largest bound that this number of trials or canaries could prove.
    """

    audited: str
    method: str
    claim: float
    bound: float
    confidence: float
    resolution: float

    @property
    def violated(self) -> bool:
        """Whether the lower bound exceeds the claim: the mechanism does not do what it states."""
        return self.bound > self.claim

    @property
    def unresolved(self) -> bool:
        """Whether the claim is beyond what this audit could refute."""
        return self.claim >= self.resolution

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "audited": self.audited,
            "method": self.method,
            "claim": self.claim,
            "bound": self.bound,
            "confidence": self.confidence,
            "resolution": self.resolution,
            "violated": self.violated,
        }
