"""Amplification by shuffling: local privacy where nobody knows who sent which report.

>>> round(shuffled_epsilon(5.0, 400_000, 1e-6), 3)
0.352
"""

from __future__ import annotations

import math
from typing import Any

from fedsink.errors import PrivacyError
from fedsink.values import privacy_checks as checks

_ASSUMPTION = (
    "A shuffler that all parties trust, and that does not collude with the server, removes the "
    "senders' identities and the order of {n} reports, one per record, before the server sees "
    "them. A Flower node identity is not anonymous: without such a shuffler the local ε counts."
)
_SOURCE = "Feldman, McMillan, Talwar 2023, Theorem 3.2"


def shuffled_epsilon(eps0: float, n: int, delta: float, *, delta0: float = 0.0) -> float:
    r"""Returns ε of n shuffled reports, each of them ε₀ locally private, under replace-one at δ.

    Feldman, McMillan and Talwar 2023, "Stronger privacy amplification by shuffling for Rényi and
    approximate differential privacy", Theorem 3.2:

    ``ε ≤ ln(1 + (e^ε₀ − 1)·(4√(2 ln(4/δ)) / √((e^ε₀ + 1)·n) + 4/n))``
    for ``ε₀ ≤ ln(n / (8 ln(2/δ)) − 1)``.

    It assumes a *trusted shuffler*: whoever sees the output learns the multiset of reports and
    neither their order nor their senders. A Flower identity is not anonymous, nor is a report
    that can be linked to another one of the same sender. The theorem is for pure ε₀.

    Guarantees:
        - The exact privacy loss of the shuffled reports at δ does not exceed the result.
        - The result does not exceed ε₀, which holds without a shuffler.
        - Outside the theorem's condition nothing is extrapolated.

    Args:
        eps0: ε₀ > 0 of one report (image and label of a record are one report: their sum).
        n: The number of reports that are shuffled together.
        delta: δ in (0, 1) of the result.
        delta0: δ₀ of one report; the theorem has none.

    Raises:
        PrivacyError: If a value is out of range, δ₀ > 0, or ε₀ is beyond the theorem's condition.
    """
    eps0 = checks.positive("eps0", eps0)
    largest = largest_local_epsilon(n, delta)
    if delta0 != 0:
        raise PrivacyError(
            f"the theorem is for pure ε₀, received delta0={delta0:g} (Gaussian noise has δ₀ > 0): "
            "use a Laplace mechanism, or report only the local (ε, δ)."
        )
    if eps0 > largest:
        valid = f"is valid up to ε₀ = {largest:.4g}" if largest > 0 else "has no valid ε₀"
        raise PrivacyError(
            f"shuffling {n} reports at delta={delta:g} {valid}, received eps0={eps0:g}: "
            "no amplification can be claimed, so report the local ε."
        )
    mixing = 4 * math.sqrt(2 * math.log(4 / delta) / ((math.exp(eps0) + 1) * n)) + 4 / n
    return min(eps0, math.log1p(math.expm1(eps0) * mixing))


def largest_local_epsilon(n: int, delta: float) -> float:
    """Returns the largest ε₀ that n reports amplify, ln(n/(8 ln(2/δ)) − 1); −∞ for none."""
    ratio = checks.count("n", n) / (8 * math.log(2 / checks.failure_probability(delta)))
    return math.log(ratio - 1) if ratio > 1 else -math.inf


def shuffling_statement(eps0: float, delta0: float, n: int, delta: float) -> dict[str, Any]:
    """Returns the entry "shuffling" of privacy.json, which stands beside the local (ε₀, δ₀).

    Arguments as in `shuffled_epsilon`.

    Guarantees:
        - ε is stated together with the assumption it rests on, or is None with the reason.
        - The local ε₀ and δ₀ are always in it.

    Raises:
        PrivacyError: If ε₀, n or δ is no valid number at all.
    """
    checks.positive("eps0", eps0)
    largest_local_epsilon(n, delta)
    statement: dict[str, Any] = {
        "local_epsilon": eps0,
        "local_delta": delta0,
        "reports": n,
        "delta": delta,
        "source": _SOURCE,
    }
    try:
        epsilon = shuffled_epsilon(eps0, n, delta, delta0=delta0)
    except PrivacyError as error:
        return {**statement, "epsilon": None, "reason": str(error)}
    return {
        **statement,
        "epsilon": epsilon,
        "adjacency": "replace-one",
        "unit": "record",
        "assumption": _ASSUMPTION.format(n=n),
    }
