"""The accountants side by side, for `fedsink account`.

>>> sorted(account_table(rate=0.2, sigma=2.0, rounds=300, delta=1e-5))
['pld', 'prv', 'rdp']
"""

from __future__ import annotations

from fedsink.errors import PrivacyError
from fedsink.privacy import checks
from fedsink.privacy.accounting import ACCOUNTANTS, poisson_gaussian_epsilon
from fedsink.privacy.calibration import rate_for, sigma_for, uses_for
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
    delta: float,
    rate: float | None = None,
    sigma: float | None = None,
    rounds: int | None = None,
    eps: float | None = None,
    classes: int = 1,
) -> dict[str, float]:
    """The one of (rate, sigma, rounds, eps) that is left out, by each accountant.

    Arguments as in `account_table`; what is solved for costs at most `eps`.

    Raises:
        PrivacyError: If not exactly one is left out, or a value is out of range.
    """
    schedule = ClassSchedule(classes)

    def solve(accountant: str) -> float:
        if rate is not None and sigma is not None and rounds is not None and eps is None:
            uses = schedule.uses(checks.count("rounds", rounds))
            return poisson_gaussian_epsilon(rate, sigma, uses, delta, accountant)
        if rate is not None and sigma is not None and rounds is None and eps is not None:
            most = uses_for(eps, rate=rate, sigma=sigma, delta=delta, accountant=accountant)
            return schedule.rounds_within(most)
        if rate is not None and sigma is None and rounds is not None and eps is not None:
            uses = schedule.uses(checks.count("rounds", rounds))
            return sigma_for(eps, rate=rate, uses=uses, delta=delta, accountant=accountant)
        if rate is None and sigma is not None and rounds is not None and eps is not None:
            uses = schedule.uses(checks.count("rounds", rounds))
            return rate_for(eps, sigma=sigma, uses=uses, delta=delta, accountant=accountant)
        raise PrivacyError(
            "exactly one of rate, sigma, rounds and eps is left out and solved for, received "
            f"rate={rate}, sigma={sigma}, rounds={rounds}, eps={eps}."
        )

    return {accountant: solve(accountant) for accountant in ACCOUNTANTS}
