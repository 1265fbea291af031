"""The accountants side by side, for `fedsink account`.

>>> list(account_table(rate=0.2, sigma=2.0, rounds=3000, delta=1e-5, classes=10))
['pld', 'prv', 'rdp', 'rdp-opacus', 'rdp-classic']
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedsink.errors import PrivacyError
from fedsink.privacy import checks
from fedsink.privacy.accounting.calibration import delta_for, rate_for, sigma_for, uses_for
from fedsink.privacy.accounting.cost import Cost
from fedsink.privacy.adjacency import ADD_REMOVE
from fedsink.privacy.mechanisms.clipping import CLIPS
from fedsink.privacy.sampling import ClassSchedule


def account_table(
    rate: float, sigma: float, rounds: int, delta: float, classes: int = 1, **options: Any
) -> dict[str, float]:
    """ε by each accountant for T rounds, of which a record takes part in ⌈T/classes⌉.

    Arguments as in `solve_account`.
    """
    return solve_account(
        rate=rate, sigma=sigma, rounds=rounds, delta=delta, classes=classes, **options
    )


def solve_account(
    *,
    delta: float | None = None,
    rate: float | None = None,
    sigma: float | None = None,
    rounds: int | None = None,
    eps: float | None = None,
    classes: int = 1,
    clip: str = "record",
    adjacency: str = ADD_REMOVE,
    capacity: int | None = None,
    nominal_records: int | None = None,
    clients: int = 1,
    accountants: Sequence[str] | None = None,
) -> dict[str, float]:
    """The one of (rate, sigma, rounds, eps, delta) that is left out, by each accountant.

    Args:
        delta: δ in (0, 1).
        rate: Sampling probability q in (0, 1].
        sigma: Noise multiplier, noise std / the clip's sensitivity.
        rounds: T ≥ 1.
        eps: ε; what is solved for costs at most this much.
        classes: Number of public classes of a `ClassSchedule`; 1 for a joint one.
        clip: ``"record"`` or ``"batch"``; matters for all adjacencies but add-remove.
        adjacency: ``"add-remove"``, ``"replace-one"`` or ``"client"``.
        capacity: B or None.
        nominal_records: N or None.
        clients: At how many clients, running this same plan, one person has a record.
        accountants: Which to run; None: all that have a bound under the adjacency.

    Raises:
        PrivacyError: If not exactly one is left out, or a value is out of range.
    """
    if clip not in CLIPS or not CLIPS[clip].sampled:
        raise PrivacyError(f"clip is record or batch, received {clip!r}.")
    cost = Cost(CLIPS[clip](1.0), ClassSchedule(classes), adjacency, capacity, nominal_records)
    clients = checks.count("clients", clients)
    parameters = {"rate": rate, "sigma": sigma, "rounds": rounds, "eps": eps, "delta": delta}
    known = {name: value for name, value in parameters.items() if value is not None}
    if len(known) != len(parameters) - 1:
        received = ", ".join(f"{name}={value}" for name, value in parameters.items())
        raise PrivacyError(
            "exactly one of rate, sigma, rounds, eps and delta is left out and solved for, "
            f"received {received}."
        )
    given: dict[str, Any] = {
        name: known[name] for name in ("rate", "sigma", "delta") if name in known
    }
    if rounds is not None:
        given["uses"] = clients * cost.uses(checks.count("rounds", rounds))

    def solve(accountant: str) -> float:
        how: dict[str, Any] = {**given, "accountant": accountant}
        if eps is None:
            cost.check_overflow(known["rate"], given["uses"], known["delta"])
            return cost.epsilon(**how)
        how["cost"] = cost
        if rounds is None:
            return cost.rounds_within(uses_for(eps, **how) // clients)
        if sigma is None:
            return sigma_for(eps, **how)
        if rate is None:
            return rate_for(eps, **how)
        return delta_for(eps, **how)

    return {name: solve(name) for name in accountants or cost.accountants}
