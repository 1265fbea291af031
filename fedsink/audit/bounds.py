"""Lower bounds on ε from how often a distinguisher was right.

`distinguishing_epsilon` and `gaussian_epsilon` count independent plays, `one_run_epsilon` the
canaries of a single run, each of which was in or out by the toss of a coin.

>>> round(distinguishing_epsilon(Counts(tp=1000, fn=0, fp=0, tn=1000), 0.0, 0.95), 2)
5.6
>>> round(one_run_epsilon(correct=1000, guesses=1000, canaries=1000, delta=0.0, confidence=0.95), 2)
5.81
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaincinv, ndtr, ndtri
from scipy.stats import binom

from fedsink.privacy.accounting.accountants import gaussian_delta
from fedsink.values import privacy_checks as checks

_MOST = 60.0  # e^−60 cannot be seen in doubles
_FEWEST_GUESSES = 16


class Counts(NamedTuple):
    """Decisions on plays with the canary (true positives, false negatives) and without it."""

    tp: int
    fn: int
    fp: int
    tn: int

    def rates(self, confidence: float) -> tuple[float, float]:
        """A lower bound on the true-positive and an upper bound on the false-positive rate.

        Both hold together with this confidence: each may fail with half the rest (Bonferroni).
        """
        low, _ = clopper_pearson(self.tp, self.tp + self.fn, confidence)
        _, high = clopper_pearson(self.fp, self.fp + self.tn, confidence)
        return low, high


def clopper_pearson(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """The exact two-sided interval of a binomial rate (Clopper and Pearson 1934).

    Each end by itself is exceeded with probability at most (1 − confidence)/2.
    """
    k, n = successes, trials
    tail = (1.0 - checks.within("confidence", confidence, "(0, 1)")) / 2.0
    low = float(betaincinv(k, n - k + 1, tail)) if k else 0.0
    high = float(betaincinv(k + 1, n - k, 1.0 - tail)) if k < n else 1.0
    return low, high


def distinguishing_epsilon(counts: Counts, delta: float, confidence: float) -> float:
    """The largest ε that the counts exclude at δ, or 0: no assumption on the mechanism.

    (ε, δ) privacy bounds every distinguisher by TPR ≤ e^ε FPR + δ and TNR ≤ e^ε FNR + δ (Kairouz,
    Oh, Viswanath 2015, Theorem 2.1), hence with the bounds of `Counts.rates`
    ``ε ≥ max(log((TPR − δ)/FPR), log((1 − FPR − δ)/(1 − TPR)))``.

    Guarantees:
        - A mechanism that is (ε, δ) private exceeds ε with probability at most 1 − confidence,
          if the distinguisher was fixed before the plays that are counted.
    """
    tpr, fpr = counts.rates(confidence)
    ratios = ((tpr - delta) / fpr, (1.0 - fpr - delta) / (1.0 - tpr))
    return max([0.0, *(math.log(ratio) for ratio in ratios if ratio > 0)])


def gaussian_epsilon(counts: Counts, delta: float, confidence: float) -> float:
    """The ε at δ of the strongest Gaussian mechanism that the counts exclude, or 0.

    A mechanism that is μ-GDP has Φ⁻¹(TPR) − Φ⁻¹(FPR) ≤ μ for every distinguisher (Dong, Roth, Su
    2022, Definition 3; used for audits by Nasr et al. 2023). The lower bound on μ becomes an ε by
    Balle and Wang 2018, equation 6, with σ/Δ = 1/μ. For a mechanism claimed to be Gaussian this
    needs orders of magnitude fewer plays than `distinguishing_epsilon`.

    Guarantees:
        - A Gaussian mechanism, or a composition of Gaussian mechanisms, that is (ε, δ) private
          exceeds ε with probability at most 1 − confidence.
    """
    tpr, fpr = counts.rates(confidence)
    mu = float(ndtri(tpr) - ndtri(fpr))  # ∓∞ where nothing was found
    if not mu > 0 or gaussian_delta(1.0 / mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(1.0 / mu, high) > delta:
        high *= 2.0
    return float(brentq(lambda eps: gaussian_delta(1.0 / mu, eps) - delta, 0.0, high))


def one_run_p_value(
    *, correct: int, guesses: int, canaries: int, epsilon: float, delta: float
) -> float:
    """The probability that an (ε, δ) private run lets so many guesses be correct, from above.

    With W ~ Binomial(r, 1/(1 + e^−ε)) and v correct of r guesses, a number fixed in advance, on m
    canaries, each included with probability ½ independently of everything else:
    ``p ≤ P[W ≥ v] + 2mδ·max_i P[v > W ≥ v − i]/i`` (Steinke, Nasr, Jagielski 2023, "Privacy
    auditing with one (1) training run", Theorem 5.2), under add/remove of one canary.
    """
    rate = 1.0 / (1.0 + math.exp(-epsilon))
    p = float(binom.sf(correct - 1, guesses, rate))
    if correct and delta:
        below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, rate))
        p += 2.0 * canaries * delta * float((below / np.arange(1, correct + 1)).max())
    return min(1.0, p)


def one_run_epsilon(
    *, correct: int, guesses: int, canaries: int, delta: float, confidence: float
) -> float:
    """The largest ε whose p-value is below 1 − confidence, or 0; arguments as `one_run_p_value`.

    Its resolution is that of m correct guesses: for δ → 0 it is log(p/(1 − p)) with
    p = (1 − confidence)^(1/m), that is 5.81 for 1000 canaries at 95 %.

    Guarantees:
        - A run that is (ε, δ) private exceeds ε with probability at most 1 − confidence.
    """
    level = 1.0 - checks.within("confidence", confidence, "(0, 1)")

    def excess(epsilon: float) -> float:
        p = one_run_p_value(
            correct=correct, guesses=guesses, canaries=canaries, epsilon=epsilon, delta=delta
        )
        return p - level

    if excess(0.0) >= 0:
        return 0.0
    return _MOST if excess(_MOST) < 0 else float(brentq(excess, 0.0, _MOST))


def guesses_for(mu: float, *, canaries: int, delta: float, confidence: float) -> int:
    """Number of canaries to guess: the even one that promises most if the claim is exact.

    It depends only on the claim, never on the run, so no correction for a choice is due. The
    scores of absent and present canaries are taken as N(0, 1) and N(μ, 1); the r/2 highest are
    guessed to be in, the r/2 lowest to be out.
    """
    choices = [canaries - canaries % 2]
    while (fewer := choices[-1] // 2 - choices[-1] // 2 % 2) >= _FEWEST_GUESSES:
        choices.append(fewer)

    def above(threshold: float) -> float:
        return float(ndtr(-threshold) + ndtr(mu - threshold)) / 2.0

    def promised(guesses: int) -> float:
        t = brentq(lambda x: above(x) - guesses / canaries / 2.0, -40.0, 40.0 + mu)
        right = min(guesses, round(guesses * float(ndtr(mu - t)) / (2.0 * above(t))))
        return one_run_epsilon(
            correct=right, guesses=guesses, canaries=canaries, delta=delta, confidence=confidence
        )

    return max(choices, key=promised)
