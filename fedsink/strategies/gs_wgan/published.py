"""ε that GS-WGAN claims for itself (Chen, Orekondy, Fritz 2020), where fedsink proves another one.

>>> round(gs_wgan_epsilon(1.07, uses=20_000 * 32, critics=1000, delta=1e-5), 3)
9.993
"""

from __future__ import annotations

import math

from scipy.special import gammaln, logsumexp

from fedsink.values import privacy_checks as checks

_ORDERS = range(2, 257)


def gs_wgan_epsilon(sigma: float, *, uses: int, critics: int, delta: float) -> float:
    """ε that Theorem A.1 claims for `uses` rows, each of one critic of many.

    Each row of a gradient counts as a Gaussian of multiplier σ on a critic that was picked only for
    this row: Rényi DP of one record of `critics` drawn without replacement (Wang, Balle,
    Kasiviswanathan 2019, Theorem 9), composed, with Mironov's conversion (2017, Prop. 3).

    It is a claim and no guarantee of that algorithm: all rows of a round ask the same critic, so
    that they are selected together, and one record changes all of them.

    Args:
        sigma: Noise std over twice the clip of a row.
        uses: T·B, number of rows over the whole run.
        critics: number of critics of which one is asked at a time, ≥ 1.
        delta: δ in (0, 1).

    Raises:
        PrivacyError: If a value is out of range.
    """
    variance = checks.positive("sigma", sigma) ** 2
    uses, rate = checks.count("uses", uses), 1.0 / checks.count("critics", critics)
    left = -math.log(checks.failure_probability(delta))
    return min(uses * _renyi(rate, variance, a) + left / (a - 1) for a in _ORDERS)


def _renyi(rate: float, variance: float, order: int) -> float:
    """Rényi divergence of one use at a whole order α ≥ 2."""
    second = 1.0 / variance  # the Gaussian's divergence at order 2; at order j it is j/(2σ²)
    terms = [0.0]
    for j in range(2, order + 1):
        if j == 2:
            factor = math.log(2.0) + min(second, math.log(2.0) + _log_expm1(second))
        else:
            factor = math.log(2.0) + (j - 1) * j / (2.0 * variance)
        chosen = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
        terms.append(j * math.log(rate) + float(chosen) + factor)
    return float(logsumexp(terms)) / (order - 1)


def _log_expm1(value: float) -> float:
    return value + math.log1p(-math.exp(-value))
