"""Lower bounds on ε from how often a distinguisher was right.

>>> round(distinguishing_epsilon(Counts(tp=1000, fn=0, fp=0, tn=1000), 0.0, 0.95), 2)
5.6
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.optimize import brentq
from scipy.special import betaincinv, ndtri

from fedsink.errors import PrivacyError
from fedsink.privacy.accounting.accountants import gaussian_delta
from fedsink.values import privacy_checks as checks


@dataclass(frozen=True)
class Counts:
    """How a distinguisher decided on independent transcripts with and without the canary.

    Args:
        tp: Transcripts with the canary that were called so.
        fn: Transcripts with the canary that were called without.
        fp: Transcripts without the canary that were called with.
        tn: Transcripts without the canary that were called so.

    Raises:
        PrivacyError: If a count is negative, or there is no transcript of one kind.
    """

    tp: int
    fn: int
    fp: int
    tn: int

    def __post_init__(self) -> None:
        for name in ("tp", "fn", "fp", "tn"):
            object.__setattr__(self, name, checks.count(name, getattr(self, name), minimum=0))
        if self.tp + self.fn == 0 or self.fp + self.tn == 0:
            raise PrivacyError(
                f"an audit needs transcripts with and without the canary, received {self}: "
                "run at least one of each."
            )

    @classmethod
    def perfect(cls, trials: int) -> Counts:
        """`trials` transcripts of each kind, told apart without a mistake: the most provable."""
        return cls(trials, 0, 0, trials)

    def rates(self, confidence: float) -> tuple[float, float]:
        """A lower bound on the true-positive and an upper bound on the false-positive rate.

        Both hold together with this confidence: each may fail with half the rest (Bonferroni).
        """
        low, _ = clopper_pearson(self.tp, self.tp + self.fn, confidence)
        _, high = clopper_pearson(self.fp, self.fp + self.tn, confidence)
        return low, high


def clopper_pearson(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """The exact two-sided interval of a binomial rate (Clopper and Pearson 1934).

    Each end alone is exceeded with probability at most (1 − confidence)/2.

    Args:
        successes: k, at most `trials`.
        trials: n ≥ 1 independent trials.
        confidence: In (0, 1).

    Returns:
        (low, high): Beta quantiles of (k, n−k+1) and (k+1, n−k); 0 at k = 0 and 1 at k = n.

    Raises:
        PrivacyError: If a value is out of range.
    """
    n = checks.count("trials", trials)
    k = checks.count("successes", successes, minimum=0)
    if k > n:
        raise PrivacyError(f"{k} successes do not fit into {n} trials: pass at most {n}.")
    tail = (1.0 - checked_confidence(confidence)) / 2.0
    low = float(betaincinv(k, n - k + 1, tail)) if k else 0.0
    high = float(betaincinv(k + 1, n - k, 1.0 - tail)) if k < n else 1.0
    return low, high


def distinguishing_epsilon(counts: Counts, delta: float, confidence: float) -> float:
    """The largest ε that the counts exclude at δ, or 0: no assumption on the mechanism.

    (ε, δ) privacy bounds every distinguisher by TPR ≤ e^ε FPR + δ and TNR ≤ e^ε FNR + δ (Kairouz,
    Oh, Viswanath 2015, Theorem 2.1), hence with the bounds of `Counts.rates`
    ``ε ≥ max(log((TPR − δ)/FPR), log((1 − FPR − δ)/(1 − TPR)))``.

    Guarantees:
        - A mechanism that is (ε, δ) private exceeds ε with probability at most 1 − confidence.

    Args:
        counts: Decisions of a distinguisher that was fixed before these transcripts were seen.
        delta: δ in [0, 1).
        confidence: In (0, 1).

    Raises:
        PrivacyError: If a value is out of range.
    """
    delta = checked_delta(delta)
    tpr, fpr = counts.rates(confidence)
    ratios = ((tpr - delta) / fpr, (1.0 - fpr - delta) / (1.0 - tpr))
    return max([0.0, *(math.log(ratio) for ratio in ratios if ratio > 0)])


def gaussian_epsilon(counts: Counts, delta: float, confidence: float) -> float:
    """The ε at δ of the strongest Gaussian mechanism that the counts exclude, or 0.

    A mechanism that is μ-GDP has Φ⁻¹(TPR) − Φ⁻¹(FPR) ≤ μ for every distinguisher (Dong, Roth, Su
    2022, Definition 3; used for audits by Nasr et al. 2023). The lower bound on μ becomes an ε by
    Balle and Wang 2018, equation 6, with σ/Δ = 1/μ. For a mechanism claimed to be Gaussian this
    needs orders of magnitude fewer transcripts than `distinguishing_epsilon`.

    Guarantees:
        - A Gaussian mechanism, or a composition of Gaussian mechanisms, that is (ε, δ) private
          exceeds ε with probability at most 1 − confidence.

    Args:
        counts: Decisions of a distinguisher that was fixed before these transcripts were seen.
        delta: δ in (0, 1).
        confidence: In (0, 1).

    Raises:
        PrivacyError: If a value is out of range.
    """
    delta = checks.failure_probability(delta)
    tpr, fpr = counts.rates(confidence)
    mu = float(ndtri(tpr) - ndtri(fpr))  # ∓∞ where nothing was found
    if not mu > 0 or gaussian_delta(1.0 / mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(1.0 / mu, high) > delta:
        high *= 2.0
    return float(brentq(lambda eps: gaussian_delta(1.0 / mu, eps) - delta, 0.0, high))


def checked_confidence(value: float) -> float:
    """`value` as a float; raises PrivacyError unless it lies in (0, 1)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise PrivacyError(f"confidence must lie in (0, 1), received {value!r}: use 0.95.")
    return float(value)


def checked_delta(value: float) -> float:
    """`value` as a float; raises PrivacyError unless it lies in [0, 1): pure privacy has 0."""
    return 0.0 if value == 0 else checks.failure_probability(value)
