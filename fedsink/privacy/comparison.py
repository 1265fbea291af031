"""The accountants side by side, for `fedsink account`.

>>> sorted(account_table(rate=0.2, sigma=2.0, rounds=300, delta=1e-5))
['pld', 'prv', 'rdp']
"""

from __future__ import annotations

from typing import Any

from fedsink.errors import PrivacyError
from fedsink.privacy import checks
from fedsink.privacy.accounting import ACCOUNTANTS, poisson_gaussian_epsilon
from fedsink.privacy.calibration import delta_for, rate_for, sigma_for, uses_for
from fedsink.privacy.sampling import ClassSchedule


def account_table(
    rate: float, sigma: float, rounds: int, delta: float, classes: int = 1
) -> dict[str, float]:
    """ε by each accountant for T rounds, of which a record takes part in ⌈T/classes⌉.

    Args:
        rate: Sampling probability q in (0, 1].
        sigma: Noise multiplier, noise std / sensitivity.
        rounds: T ≥ 1.
        delta: δ in (0, 1).
        classes: Number of public classes of a `ClassSchedule`; 1 for a `JointSchedule`.
    """
    uses = ClassSchedule(classes).uses(checks.count("rounds", rounds))
    return {
        accountant: poisson_gaussian_epsilon(rate, sigma, uses, delta, accountant)
        for accountant in ACCOUNTANTS
    }


def solve_account(
    *,
    delta: float | None = None,
    rate: float | None = None,
    sigma: float | None = None,
    rounds: int | None = None,
    eps: float | None = None,
    classes: int = 1,
) -> dict[str, float]:
    """The one of (rate, sigma, rounds, eps, delta) that is left out, by each accountant.

    Arguments as in `account_table`; what is solved for costs at most `eps`.

    Raises:
        PrivacyError: If not exactly one is left out, or a value is out of range.
    """
    schedule = ClassSchedule(classes)
    every = {"rate": rate, "sigma": sigma, "rounds": rounds, "eps": eps, "delta": delta}
    known = {name: value for name, value in every.items() if value is not None}
    if len(known) != len(every) - 1:
        received = ", ".join(f"{name}={value}" for name, value in every.items())
        raise PrivacyError(
            "exactly one of rate, sigma, rounds, eps and delta is left out and solved for, "
            f"received {received}."
        )
    given: dict[str, Any] = {
        name: known[name] for name in ("rate", "sigma", "delta") if name in known
    }
    if rounds is not None:
        given["uses"] = schedule.uses(checks.count("rounds", rounds))

    def solve(accountant: str) -> float:
        if eps is None:
            return poisson_gaussian_epsilon(**given, accountant=accountant)
        if rounds is None:
            return schedule.rounds_within(uses_for(eps, **given, accountant=accountant))
        if sigma is None:
            return sigma_for(eps, **given, accountant=accountant)
        if rate is None:
            return rate_for(eps, **given, accountant=accountant)
        return delta_for(eps, **given, accountant=accountant)

    return {accountant: solve(accountant) for accountant in ACCOUNTANTS}
