"""Lower bounds on ε from how often a distinguisher was right.

`distinguishing_epsilon` and `gaussian_mu` count independent plays, each with or without the canary
by the toss of a coin; `one_run_epsilon` counts the canaries of a single run, there or not by one.

>>> round(float(distinguishing_epsilon(Guesses(2000, 2000, 2000), 0.0, 0.95)), 2)
6.49
>>> round(one_run_epsilon(correct=1000, guesses=1000, canaries=1000, delta=0.0, confidence=0.95), 2)
5.81
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaincinv, ndtr, ndtri
from scipy.stats import binom

from fedsink.privacy.accounting import accountants
from fedsink.values import privacy_checks as checks

_MOST = 60.0  # e^−60 cannot be seen in doubles
_FEWEST_GUESSES = 16
_OF_RATE = 0.05  # part of the doubt that is spent on how often a guess is made


class Guesses(NamedTuple):
    """Right guesses, guesses that were made, and plays: numbers, or arrays of them."""

    right: Any
    made: Any
    plays: Any


def clopper_pearson(successes: Any, trials: Any, confidence: float) -> Any:
    """Returns the exact lower limit of a binomial rate, of one side (Clopper and Pearson 1934)."""
    tail = 1.0 - checks.within("confidence", confidence, "(0, 1)")
    k, n = np.asarray(successes), np.asarray(trials)
    return np.where(k > 0, betaincinv(np.maximum(k, 1), n - k + 1, tail), 0.0)


def distinguishing_epsilon(guesses: Guesses, delta: float, confidence: float) -> Any:
    """Returns the largest ε that the guesses exclude at δ, or 0.

    For an (ε, δ)-private mechanism the result exceeds ε with probability at most 1 − confidence.

    Let P be the law of a play with the canary and Q without, guesses "with" on A and "without" on
    B. Of the plays P(A)/2 + Q(B)/2 are guessed right and Q(A)/2 + P(B)/2 wrong, and (ε, δ) privacy
    bounds P(A) by e^ε Q(A) + δ and Q(B) by e^ε P(B) + δ (Kairouz, Oh, Viswanath 2015, Theorem 2.1).
    So ``right ≤ e^ε wrong + δ``, and with the rate s of guesses and their accuracy a = right/s
    ``ε ≥ log((a − δ/s)/(1 − a))``. A guess is right with probability a by itself, however many
    there are: one limit on a, and one on s, which only matters beside δ.

    Guarantees:
        - A mechanism that is (ε, δ) private exceeds ε with probability at most 1 − confidence,
          if the distinguisher was fixed before the plays that are counted.
    """
    doubt = 1.0 - confidence
    accuracy = clopper_pearson(guesses.right, guesses.made, 1.0 - (1.0 - _OF_RATE) * doubt)
    rate = clopper_pearson(guesses.made, guesses.plays, 1.0 - _OF_RATE * doubt)
    with np.errstate(divide="ignore", invalid="ignore"):  # without a guess
        return np.log(np.fmax((accuracy - delta / rate) / (1.0 - accuracy), 1.0))


def gaussian_mu(guesses: Guesses, confidence: float) -> Any:
    """Returns the μ of the strongest Gaussian mechanism that the guesses exclude, or 0.

    A mechanism that is μ-GDP has TPR ≤ Φ(μ + Φ⁻¹(FPR)) for every distinguisher (Dong, Roth, Su
    2022, Definition 3; used for audits by Nasr et al. 2023), so that at most Φ(μ/2) of the plays
    are guessed right. It needs far fewer plays than `distinguishing_epsilon`.

    Guarantees:
        - A Gaussian mechanism, or a composition of Gaussian mechanisms, exceeds its μ with
          probability at most 1 − confidence.
    """
    return 2.0 * np.fmax(ndtri(clopper_pearson(guesses.right, guesses.plays, confidence)), 0.0)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Returns ε at δ of a Gaussian with Δ/σ = μ (Balle and Wang 2018, equation 6), or 0."""
    if not mu > 0 or accountants.gaussian_delta(1.0 / mu, 0.0) <= delta:
        return 0.0
    return accountants.gaussian_epsilon(1.0 / mu, delta)


def one_run_p_value(
    *, correct: int, guesses: int, canaries: int, epsilon: float, delta: float
) -> float:
    """Returns a bound on the probability of so many right guesses in an (ε, δ) private run.

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
    """Returns the largest ε with `one_run_p_value` (same arguments) < 1 − confidence, or 0.

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
    """Returns the even number of canaries to guess that promises most if the claim is exact."""
    # From the claim alone, never the run: no correction for a choice is due. Scores of absent and
    # present canaries are taken as N(0, 1) and N(μ, 1); r/2 are guessed to be in, r/2 to be out.
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
