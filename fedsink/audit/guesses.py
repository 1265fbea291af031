"""What one run proves: many canaries, each in or out by a coin, and how many coins were guessed.

>>> round(one_run_epsilon(correct=1000, guesses=1000, canaries=1000, delta=0.0, confidence=0.95), 2)
5.81
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import binom

from fedsink.audit.bounds import checked_confidence, checked_delta
from fedsink.errors import PrivacyError
from fedsink.values import privacy_checks as checks

_MOST = 60.0  # e^−60 cannot be seen in doubles
_FEWEST_GUESSES = 16


def one_run_p_value(
    *, correct: int, guesses: int, canaries: int, epsilon: float, delta: float
) -> float:
    """The probability that an (ε, δ) private run lets so many guesses be correct, from above.

    With W ~ Binomial(r, 1/(1 + e^−ε)) and v correct of r guesses on m canaries:
    ``p ≤ P[W ≥ v] + 2mδ·max_i P[v > W ≥ v − i]/i`` (Steinke, Nasr, Jagielski 2023, "Privacy
    auditing with one (1) training run", Theorem 5.2).

    Args:
        correct: v, at most r.
        guesses: r, at most m; the other m − r canaries were abstained from. Fixed in advance.
        canaries: m, each included with probability ½ independently of everything else.
        epsilon: ε ≥ 0 under add/remove of one canary.
        delta: δ in [0, 1).

    Raises:
        PrivacyError: If a value is out of range.
    """
    v, r, m = _checked(correct, guesses, canaries)
    if not math.isfinite(epsilon) or epsilon < 0:
        raise PrivacyError(f"epsilon must be a finite number ≥ 0, received {epsilon!r}.")
    rate = 1.0 / (1.0 + math.exp(-epsilon))
    p = float(binom.sf(v - 1, r, rate))
    if v and checked_delta(delta):
        below = np.cumsum(binom.pmf(np.arange(v - 1, -1, -1), r, rate))
        p += 2.0 * m * delta * float((below / np.arange(1, v + 1)).max())
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
    level = 1.0 - checked_confidence(confidence)

    def excess(epsilon: float) -> float:
        p = one_run_p_value(
            correct=correct, guesses=guesses, canaries=canaries, epsilon=epsilon, delta=delta
        )
        return p - level

    if excess(0.0) >= 0:
        return 0.0
    return _MOST if excess(_MOST) < 0 else float(brentq(excess, 0.0, _MOST))


def guesses_for(mu: float, *, canaries: int, delta: float, confidence: float) -> int:
    """How many canaries to guess: the even number that promises most if the claim is exact.

    It depends on the claim alone, never on the run, so no correction for a choice is due. The
    scores of absent and present canaries are taken as N(0, 1) and N(μ, 1); the r/2 highest are
    guessed to be in, the r/2 lowest to be out.

    Args:
        mu: μ > 0, the separation of the scores in units of their standard deviation.
        canaries: m ≥ 2.
        delta: δ in [0, 1).
        confidence: In (0, 1).
    """
    checks.positive("mu", mu)
    checks.count("canaries", canaries, minimum=2)
    choices: list[int] = []
    r = canaries - canaries % 2
    while r >= 2 and (not choices or r >= _FEWEST_GUESSES):
        choices.append(r)
        r = r // 2 - (r // 2) % 2

    def promised(guesses: int) -> float:
        share = guesses / canaries / 2.0
        t = brentq(lambda x: _above(x, 0.0, mu) - share, -40.0, 40.0 + mu)
        right = float(ndtr(mu - t)) / (2.0 * _above(t, 0.0, mu))
        return one_run_epsilon(
            correct=min(guesses, round(right * guesses)),
            guesses=guesses,
            canaries=canaries,
            delta=delta,
            confidence=confidence,
        )

    return max(choices, key=promised)


def _above(threshold: float, *means: float) -> float:
    return float(np.mean([ndtr(mean - threshold) for mean in means]))


def _checked(correct: int, guesses: int, canaries: int) -> tuple[int, int, int]:
    m = checks.count("canaries", canaries)
    r = checks.count("guesses", guesses)
    v = checks.count("correct", correct, minimum=0)
    if not v <= r <= m:
        raise PrivacyError(
            f"correct ≤ guesses ≤ canaries is needed, received {v}, {r} and {m}: count again."
        )
    return v, r, m
