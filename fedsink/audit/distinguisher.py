"""Holds a claim against the ε that a distinguisher proves: plays of two kinds in, findings out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsink.audit.bounds import Counts, distinguishing_epsilon, gaussian_epsilon
from fedsink.errors import PrivacyError

Features = NDArray[np.float64]
Bound = Callable[..., float]  # of counts, at a confidence

# Relative: a direction without noise gets at most 1e9 times the weight of the others.
_RIDGE = 1e-9

# Thresholds are compared at 1 − (1 − confidence)/50, at quantiles of the scores: else the most
# noisy of the bounds would be chosen, far out, and other plays would not confirm it.
_STRICTER = 50.0
_THRESHOLDS = 49  # odd: with the middle

_TAILS = 4.5  # kurtosis of noise that has heavier tails than a Gaussian's 3; Laplace noise has 6


@dataclass(frozen=True)
class Finding:
    """An ε that was claimed, and an ε that was excluded: a line of an audit.

    Attributes:
        audited, method: the plays and the kind of bound, in words.
        claim: the upper bound on ε that is charged.
        bound: the lower bound on ε that was proved; a correct mechanism's ε is above it with
            probability `confidence`.
        resolution: the largest bound that this number of plays or canaries could prove.
    """

    audited: str
    method: str
    claim: float
    bound: float
    confidence: float
    resolution: float

    @property
    def violated(self) -> bool:
        """True if the lower bound exceeds the claim: the mechanism does not keep its promise."""
        return self.bound > self.claim

    @property
    def unresolved(self) -> bool:
        """True if the claim is beyond the reach of this audit."""
        return self.claim >= self.resolution

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {**asdict(self), "violated": self.violated}


def compare(
    present: Features,
    absent: Features,
    moved: Features,
    *,
    audited: str,
    claim: float,
    delta: float,
    confidence: float,
    gaussian: bool,
) -> list[Finding]:
    """Holds a claim against plays of two kinds; see `lower_bound`.

    A mechanism that is claimed to be Gaussian is held against its exact trade-off as well.
    """
    bounds: dict[str, Bound] = {"threshold": partial(distinguishing_epsilon, delta=delta)}
    if gaussian:
        bounds["Gaussian trade-off"] = partial(gaussian_epsilon, delta=delta)
    counted = len(present) - len(present) // 4
    return [
        Finding(
            audited=audited,
            method=method,
            claim=claim,
            bound=lower_bound(present, absent, moved, bound, confidence),
            confidence=confidence,
            resolution=bound(Counts(counted, 0, 0, counted), confidence=confidence),
        )
        for method, bound in bounds.items()
    ]


def lower_bound(
    present: Features, absent: Features, moved: Features, bound: Bound, confidence: float
) -> float:
    """`bound` of the better of two threshold tests between two kinds of plays.

    - along `moved`, the likelihood ratio of equal Gaussian noise; where noise has heavier tails,
      each feature is cut off at its two ends, which is that of Laplace noise;
    - along Σ⁻¹(μ₁ − μ₀) (Fisher 1936) with the full pooled covariance Σ, so that noise which was
      forgotten in one round, or cancels in a difference, outweighs all others.

    The first eighth of each kind fits them. The second is for the one that is known, unless the
    other is better beyond doubt. Both choose its threshold, and the result comes from the others.

    Args:
        present: of plays with the canary, (N, F), one row per play.
        absent: of plays without the canary, (M, F).
        moved: what the canary moves, (F,), as far as that is known.
        bound: turns counts into ε.
        confidence: of the result, in (0, 1).
    """
    for kind in (present, absent):
        if not np.isfinite(kind).all():
            raise PrivacyError("a play holds a value that is not finite: audit the release.")
    fit, choose, known, count = (
        [kind[int(a * len(kind)) : int(b * len(kind))] for kind in (present, absent)]
        for a, b in ((0, 0.125), (0.125, 0.25), (0, 0.25), (0.25, 1))
    )
    centre, half = (fit[0].mean(0) + fit[1].mean(0)) / 2.0, np.abs(moved) / 2.0
    heavy = moved.any() and min(_kurtosis(kind[:, moved != 0]) for kind in fit) > _TAILS
    direction = fisher_direction(*fit)

    def along(plays: Features) -> Features:
        if not heavy:
            return np.asarray(plays @ moved)
        return np.asarray(np.clip((plays - centre) * np.sign(moved), -half, half).sum(1))

    def fitted(plays: Features) -> Features:
        return np.asarray(plays @ direction)

    strict = 1.0 - (1.0 - confidence) / _STRICTER
    proved = best_threshold([fitted(kind) for kind in choose], bound, strict)[1]
    doubtful = best_threshold([along(kind) for kind in choose], bound, 0.5)[1]
    score = fitted if proved > doubtful else along
    threshold, _ = best_threshold([score(kind) for kind in known], bound, strict)
    tp, fp = (int((score(kind) > threshold).sum()) for kind in count)
    return bound(Counts(tp, len(count[0]) - tp, fp, len(count[1]) - fp), confidence=confidence)


def _kurtosis(plays: Features) -> float:
    noise = plays - plays.mean(0)
    return float(((noise / (noise.std(0) + np.finfo(float).tiny)) ** 4).mean())


def fisher_direction(present: Features, absent: Features) -> Features:
    """Σ⁻¹(μ₁ − μ₀), (F,), scaled to unit length; zero where the means agree."""
    scatter = np.atleast_2d(np.cov(present, rowvar=False) + np.cov(absent, rowvar=False)) / 2.0
    return inverse_times(scatter, present.mean(0) - absent.mean(0))


def inverse_times(scatter: Features, signal: Features) -> Features:
    """Σ⁻¹s of unit length, with a ridge that only tells a zero variance from a small one."""
    ridge = _RIDGE * scatter.trace() / len(scatter) + np.finfo(float).tiny
    # In units of the ridge: it is one then, and survives whatever the units of the scatter.
    direction: Features = np.linalg.solve((scatter + ridge * np.eye(len(scatter))) / ridge, signal)
    length = np.linalg.norm(direction)
    return direction / length if length > 0 else direction


def best_threshold(
    scores: Sequence[Features], bound: Bound, confidence: float
) -> tuple[float, float]:
    """The threshold, above which to say "present", with the largest bound of these scores; both."""
    present, absent = scores
    levels = np.arange(1, _THRESHOLDS + 1) / (_THRESHOLDS + 1)
    # Of equal bounds, zero above all, the first counts: the one nearest to the middle.
    levels = levels[np.argsort(np.abs(levels - 0.5), kind="stable")]
    thresholds = np.quantile(np.concatenate([present, absent]), levels)
    tp = (present[:, None] > thresholds).sum(0).tolist()
    fp = (absent[:, None] > thresholds).sum(0).tolist()
    bounds = [
        bound(Counts(t, len(present) - t, f, len(absent) - f), confidence=confidence)
        for t, f in zip(tp, fp, strict=True)
    ]
    best = int(np.argmax(bounds))
    return float(thresholds[best]), bounds[best]
