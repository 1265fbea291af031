"""Compares claims with the ε that a distinguisher proves.

`compare` is the entry point: transcripts with and without a canary in, findings out. The
distinguisher is fitted on one half of the transcripts and judged on the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsink.audit.bounds import Counts, distinguishing_epsilon, gaussian_epsilon
from fedsink.errors import PrivacyError

Features = NDArray[np.float64]

# Relative: a direction without noise gets at most 1e9 times the weight of the others.
_RIDGE = 1e-9

# Thresholds are compared at 1 − (1 − confidence)/10⁴: the maximum over many noisy bounds would
# otherwise pick a threshold far out that was lucky, and the other half would not confirm it.
_STRICTER = 1e4
_THRESHOLDS = 500


class Bound(Protocol):
    """Turns counts into ε: for example `distinguishing_epsilon`, its δ given by `partial`."""

    def __call__(self, counts: Counts, *, confidence: float) -> float:
        """A lower bound on ε that holds with this confidence."""


@dataclass(frozen=True)
class Finding:
    """An ε that was claimed, and an ε that was excluded: a line of an audit.

    Attributes:
        audited: Runs that were audited, in words.
        method: By which the bound was made, in words.
        claim: The upper bound on ε that the accountant or the mechanism states.
        bound: The lower bound on ε that the audit proved at `confidence`.
        confidence: Probability with which a correct mechanism's ε is at least `bound`.
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
        """The lower bound exceeds the claim: the mechanism does not keep its promise."""
        return self.bound > self.claim

    @property
    def unresolved(self) -> bool:
        """The claim is beyond the reach of this audit."""
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
    """Holds a claim against two kinds of transcripts, by the best linear threshold test.

    Args:
        present: Features of transcripts with the canary, (N, F); half of them fit the test.
        absent: Features of transcripts without the canary, (N, F).
        audited: Runs that were audited, in words.
        claim: The ε that is stated at δ.
        delta: δ in [0, 1), and in (0, 1) where `gaussian`.
        confidence: Of each bound, in (0, 1).
        gaussian: The mechanism is claimed to be Gaussian, and is held against its exact trade-off
            as well.
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


def lower_bound(present: Features, absent: Features, bound: Bound, confidence: float) -> float:
    """`bound` of the best linear threshold test between two kinds of transcripts.

    Direction w = Σ⁻¹(μ₁ − μ₀) (Fisher 1936) with the full pooled covariance Σ, so a coordinate, or
    a combination of coordinates, without noise outweighs all others: noise that was forgotten in
    one round has no variance, and noise that was used twice cancels in a difference. Direction
    and threshold are chosen on the first half of each kind, the result comes from the second.

    Args:
        present: Features of transcripts with the canary, (N, F), one row per transcript.
        absent: Features of transcripts without the canary, (M, F).
        bound: Turns counts into ε.
        confidence: Of the result, in (0, 1).

    Raises:
        PrivacyError: If the shapes disagree, a kind has fewer than four transcripts, or a
            feature is not finite.
    """
    for kind in (present, absent):
        if kind.ndim != 2 or len(kind) < 4 or kind.shape[1] != present.shape[1]:
            raise PrivacyError(
                "transcripts must be two matrices with a row each, at least four rows and equally "
                f"many columns, received shapes {present.shape} and {absent.shape}."
            )
        if not np.isfinite(kind).all():
            raise PrivacyError("a transcript holds a value that is not finite: audit the release.")
    (fit_in, test_in), (fit_out, test_out) = _halves(present), _halves(absent)
    direction = fisher_direction(fit_in, fit_out)
    threshold = best_threshold(fit_in @ direction, fit_out @ direction, bound, confidence)
    return bound(
        _count(test_in @ direction, test_out @ direction, threshold), confidence=confidence
    )


def fisher_direction(present: Features, absent: Features) -> Features:
    """Σ⁻¹(μ₁ − μ₀), (F,), scaled to unit length; zero where the means agree."""
    difference = present.mean(0) - absent.mean(0)
    scatter = np.atleast_2d(np.cov(present, rowvar=False) + np.cov(absent, rowvar=False)) / 2.0
    return inverse_times(scatter, difference)


def inverse_times(scatter: Features, signal: Features) -> Features:
    """Σ⁻¹s of unit length, with a ridge that only tells a zero variance from a small one."""
    ridge = _RIDGE * scatter.trace() / len(scatter) + np.finfo(float).tiny
    # In units of the ridge: it is one then, and survives whatever the units of the scatter.
    direction: Features = np.linalg.solve((scatter + ridge * np.eye(len(scatter))) / ridge, signal)
    length = np.linalg.norm(direction)
    return direction / length if length > 0 else direction


def best_threshold(present: Features, absent: Features, bound: Bound, confidence: float) -> float:
    """The threshold, above which to say "present", with the largest bound of these scores."""
    scores = np.unique(np.concatenate([present, absent]))
    middles = (scores[1:] + scores[:-1]) / 2.0
    if not len(middles):
        return float(scores[0])
    widest = middles[np.argmax(np.diff(scores))]
    middles = np.append(middles[:: 1 + len(middles) // _THRESHOLDS], widest)
    # Of equal bounds, zero above all, the first counts: the one nearest to the middle.
    centre = (present.mean() + absent.mean()) / 2.0
    middles = middles[np.argsort(np.abs(middles - centre), kind="stable")]
    tp = len(present) - np.searchsorted(np.sort(present), middles, side="right")
    fp = len(absent) - np.searchsorted(np.sort(absent), middles, side="right")
    strict = 1.0 - (1.0 - confidence) / _STRICTER
    bounds = [
        bound(
            Counts(int(t), len(present) - int(t), int(f), len(absent) - int(f)), confidence=strict
        )
        for t, f in zip(tp, fp, strict=True)
    ]
    return float(middles[int(np.argmax(bounds))])


def _count(present: Features, absent: Features, threshold: float) -> Counts:
    tp, fp = int((present > threshold).sum()), int((absent > threshold).sum())
    return Counts(tp, len(present) - tp, fp, len(absent) - fp)


def _halves(rows: Features) -> tuple[Features, Features]:
    middle = len(rows) // 2
    return rows[:middle], rows[middle:]
