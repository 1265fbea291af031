"""Lines of an audit: a claim beside what was proved about it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from fedsink.audit.bounds import Counts, distinguishing_epsilon, gaussian_epsilon
from fedsink.audit.discriminant import Bound, Features, lower_bound


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


def compare(
    present: Features,
    absent: Features,
    *,
    audited: str,
    claim: float,
    delta: float,
    confidence: float,
    gaussian: bool,
) -> list[Finding]:
    """What two kinds of transcripts prove about a claim, by the best linear threshold test.

    Args:
        present: Features of transcripts with the canary, (N, F); half of them fit the test.
        absent: The same without, (N, F).
        audited: What was run.
        claim: The ε that is stated at δ.
        delta: δ in [0, 1), and in (0, 1) where `gaussian`.
        confidence: Of each bound, in (0, 1).
        gaussian: Whether the mechanism is claimed to be Gaussian, and is so held against its exact
            trade-off as well.
    """
    bounds: dict[str, Bound] = {"threshold": partial(distinguishing_epsilon, delta=delta)}
    if gaussian:
        bounds["Gaussian trade-off"] = partial(gaussian_epsilon, delta=delta)
    counted = len(present) - len(present) // 2
    return [
        Finding(
            audited=audited,
            method=method,
            claim=claim,
            bound=lower_bound(present, absent, bound, confidence),
            confidence=confidence,
            resolution=bound(Counts.perfect(counted), confidence=confidence),
        )
        for method, bound in bounds.items()
    ]
