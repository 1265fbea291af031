"""Holds a claim against the ε that a distinguisher proves: plays of two kinds in, findings out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsink.audit.bounds import Guesses, distinguishing_epsilon, gaussian_epsilon, gaussian_mu
from fedsink.errors import PrivacyError

Features = NDArray[np.float64]
Bound = Callable[..., Any]  # of guesses, at a confidence
Kinds = tuple[Features, Features]  # plays with the canary, and without

# Relative: a direction without noise gets at most 1e9 times the weight of the others.
_RIDGE = 1e-9

# Thresholds are compared at 1 − (1 − confidence)/5, at quantiles of the scores: else the most noisy
# of the bounds would be chosen, far out, and other plays would not confirm it.
_STRICTER = 5.0
_THRESHOLDS = 49  # odd: with the middle

_TAILS = 4.5  # kurtosis of noise that has heavier tails than a Gaussian's 3; Laplace noise has 6


@dataclass(frozen=True)
class Finding:
    """An ε that was claimed, and an ε that was excluded: a line of an audit."""

    audited: str  # the plays, in words
    method: str  # the kind of bound
    claim: float  # the upper bound on ε that is charged
    bound: float  # the lower bound that was proved: a correct mechanism's ε is above it
    confidence: float  # with this probability
    resolution: float  # the largest bound that this number of plays or canaries could prove

    @property
    def violated(self) -> bool:
        """True if the lower bound exceeds the claim: the mechanism does not keep its promise."""
        return self.bound > self.claim

    @property
    def unresolved(self) -> bool:
        """True if the claim is beyond the reach of this audit."""
        return self.claim >= self.resolution

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON-able form."""
        return {**asdict(self), "violated": self.violated}


def compare(
    plays: Kinds,
    tuning: int,
    moved: Features,
    *,
    audited: str,
    claim: float,
    delta: float,
    confidence: float,
    gaussian: bool,
) -> list[Finding]:
    """Holds a claim against plays of two kinds; a Gaussian one's exact trade-off as well."""
    exact = partial(distinguishing_epsilon, delta=delta)
    kinds: list[tuple[str, Bound, Callable[[Any], float]]] = [("threshold", exact, float)]
    if gaussian:
        epsilon = partial(gaussian_epsilon, delta=delta)
        kinds.append(("Gaussian trade-off", gaussian_mu, epsilon))
    counted = sum(map(len, plays)) - 2 * tuning
    return [
        Finding(
            audited=audited,
            method=method,
            claim=claim,
            bound=epsilon(lower_bound(plays, tuning, moved, bound, confidence)),
            confidence=confidence,
            resolution=epsilon(bound(Guesses(*[counted] * 3), confidence=confidence)),
        )
        for method, bound, epsilon in kinds
    ]


def lower_bound(
    plays: Kinds, tuning: int, moved: Features, bound: Bound, confidence: float
) -> float:
    """Returns `bound` of the better of two tests that tell two kinds of plays apart.

    - along `moved`, (F,), what the canary is known to move: the likelihood ratio of equal Gaussian
      noise; where tails are heavier, each feature is cut off at its two ends, as for Laplace noise;
    - along Σ⁻¹(μ₁ − μ₀) (Fisher 1936) with the full pooled covariance Σ, so that noise which was
      forgotten in one round, or cancels in a difference, outweighs all others.

    The first half of the `tuning` plays of each kind fits them. The second is for the one that is
    known, unless the other is better beyond doubt. Both choose its two thresholds, between which
    nothing is guessed, and the result comes from the other plays, each of either kind by a toss.
    """
    if not all(np.isfinite(kind).all() for kind in plays):
        raise PrivacyError("a play holds a value that is not finite: audit the release.")
    fit, choose, by_moved, count = (
        (plays[0][part], plays[1][part])
        for part in (
            slice(tuning // 2), slice(tuning // 2, tuning), slice(tuning), slice(tuning, None),
        )
    )  # fmt: skip
    centre, half = (fit[0].mean(0) + fit[1].mean(0)) / 2.0, np.abs(moved) / 2.0
    heavy = moved.any() and min(_kurtosis(kind[:, moved != 0]) for kind in fit) > _TAILS
    direction = fisher_direction(*fit)

    def along(plays: Kinds) -> Kinds:
        if not heavy:
            return plays[0] @ moved, plays[1] @ moved
        one, other = (np.clip((k - centre) * np.sign(moved), -half, half).sum(1) for k in plays)
        return one, other

    def fitted(plays: Kinds) -> Kinds:
        return plays[0] @ direction, plays[1] @ direction

    strict = 1.0 - (1.0 - confidence) / _STRICTER
    proved = best_thresholds(fitted(choose), bound, strict)[1]
    doubtful = best_thresholds(along(choose), bound, 0.5)[1]
    score = fitted if proved > doubtful else along
    thresholds, _ = best_thresholds(score(by_moved), bound, strict)
    return float(bound(_guesses(score(count), *thresholds), confidence=confidence))


def _kurtosis(plays: Features) -> float:
    noise = plays - plays.mean(0)
    return float(((noise / (noise.std(0) + np.finfo(float).tiny)) ** 4).mean())


def fisher_direction(present: Features, absent: Features) -> Features:
    """Returns Σ⁻¹(μ₁ − μ₀), (F,), scaled to unit length; zero where the means agree."""
    scatter = np.atleast_2d(np.cov(present, rowvar=False) + np.cov(absent, rowvar=False)) / 2.0
    return inverse_times(scatter, present.mean(0) - absent.mean(0))


def inverse_times(scatter: Features, signal: Features) -> Features:
    """Returns Σ⁻¹s of unit length; a ridge only tells a zero variance from a small one."""
    ridge = _RIDGE * scatter.trace() / len(scatter) + np.finfo(float).tiny
    # In units of the ridge: it is one then, and survives whatever the units of the scatter.
    direction: Features = np.linalg.solve((scatter + ridge * np.eye(len(scatter))) / ridge, signal)
    length = np.linalg.norm(direction)
    return direction / length if length > 0 else direction


def best_thresholds(
    scores: Kinds, bound: Bound, confidence: float
) -> tuple[tuple[float, float], float]:
    """Returns the thresholds of `_guesses` with the largest bound, and that bound."""
    levels = np.linspace(0.0, 1.0, _THRESHOLDS + 2)
    thresholds = np.quantile(np.concatenate(scores), levels)
    thresholds[[0, -1]] = -np.inf, np.inf
    one, other = np.triu_indices(len(levels))
    # Of equal bounds, zero above all, the first counts: the one nearest to the middle.
    order = np.argsort(np.abs(levels[one] - 0.5) + np.abs(levels[other] - 0.5), kind="stable")
    low, high = thresholds[one[order]], thresholds[other[order]]
    bounds = bound(_guesses(scores, low, high), confidence=confidence)
    best = int(np.argmax(bounds))
    return (float(low[best]), float(high[best])), float(bounds[best])


def _guesses(scores: Kinds, low: Any, high: Any) -> Guesses:
    """Guesses "with the canary" above `high`, "without" up to `low`, and nothing in between."""
    (above, wrongly_above), (wrongly_below, below) = (
        [len(kind) - np.searchsorted(np.sort(kind), high, side="right") for kind in scores],
        [np.searchsorted(np.sort(kind), low, side="right") for kind in scores],
    )
    right = above + below
    return Guesses(right, right + wrongly_above + wrongly_below, sum(map(len, scores)))
