"""A distinguisher fitted on one half of the transcripts and judged on the other."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedsink.audit.bounds import Counts
from fedsink.errors import PrivacyError

Features = NDArray[np.float64]

# Relative: a direction without noise gets 1e9 times the weight of the others, and no more.
_RIDGE = 1e-9

# Thresholds are compared at 1 − (1 − confidence)/10⁴: the maximum over many noisy bounds would
# otherwise pick a threshold far out that was lucky, and the other half would not confirm it.
_STRICTER = 1e4
_THRESHOLDS = 500


class Bound(Protocol):
    """Counts to ε: for example `distinguishing_epsilon` with its δ bound by `partial`."""

    def __call__(self, counts: Counts, *, confidence: float) -> float:
        """A lower bound on ε that holds with this confidence."""


def lower_bound(present: Features, absent: Features, bound: Bound, confidence: float) -> float:
    """What `bound` makes of the best linear threshold test between two kinds of transcripts.

    Direction w = Σ⁻¹(μ₁ − μ₀) (Fisher 1936) with the full pooled covariance Σ, so a coordinate, or
    a combination of coordinates, that carries no noise decides alone: noise that was forgotten in
    one round has no variance, and noise that was used twice cancels in a difference. Direction
    and threshold are chosen on the first half of each kind, the result comes from the second.

    Args:
        present: Features of transcripts with the canary, (N, F), one row per transcript.
        absent: The same without, (M, F).
        bound: Counts to ε.
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
    # Scaled to a trace near one, so that the ridge survives whatever the units are.
    direction: Features = np.linalg.solve((scatter + ridge * np.eye(len(scatter))) / ridge, signal)
    length = np.linalg.norm(direction)
    return direction / length if length > 0 else direction


def best_threshold(present: Features, absent: Features, bound: Bound, confidence: float) -> float:
    """The threshold above which to say "present" that gives these scores the largest bound."""
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
