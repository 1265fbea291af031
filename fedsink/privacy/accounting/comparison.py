"""The accountants side by side, for `fedsink account`.

>>> list(account_table(rate=0.2, sigma=2.0, rounds=3000, delta=1e-5, classes=10))
['pld', 'prv', 'rdp', 'rdp-opacus', 'rdp-classic']
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedsink.errors import PrivacyError
from fedsink.privacy.accounting.calibration import delta_for, rate_for, sigma_for, uses_for
from fedsink.privacy.accounting.cost import Cost
from fedsink.privacy.adjacency import ADD_REMOVE
from fedsink.privacy.clips import BatchClip, Clip, CriticClip, RecordClip, RowClip
from fedsink.privacy.sampling import ClassSchedule, Schedule, TurnSchedule
from fedsink.values import privacy_checks as checks

CLIP_NAMES = RecordClip.name, BatchClip.name, CriticClip.name
"""The clips that are accounted for here."""


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
    critics: int | None = None,
    turns: int | None = None,
    rows: int | None = None,
    clients: int = 1,
    accountants: Sequence[str] | None = None,
) -> dict[str, float]:
    """The one of (rate, sigma, rounds, eps, delta) that is left out, by each accountant.

    Args:
        delta: δ in (0, 1).
        rate: Sampling probability q in (0, 1]; 1 with the critic clip.
        sigma: Noise multiplier, noise std / the clip's sensitivity; with `rows` the published
            one, noise std / the sensitivity of a single row.
        rounds: T ≥ 1.
        eps: ε; what is solved for costs at most this much.
        classes: Number of public classes of a `ClassSchedule`; 1 for a joint one.
        clip: ``"record"``, ``"batch"`` or ``"critic"``; the first two differ under all adjacencies
            but add-remove.
        adjacency: ``"add-remove"``, ``"replace-one"``, ``"user"`` or ``"client"``.
        capacity: B or None.
        nominal_records: N or None.
        critics: M of a client, which matter under the client adjacency; None: 1. Like `turns` and
            `rows` for the critic clip alone.
        turns: P of a `TurnSchedule`; None: every client answers in every round.
        rows: n; each row of a critic's gradient is clipped by itself, as published (`RowClip`).
            None: the gradient is clipped as a whole.
        clients: At how many clients, running this same plan, one person has a record.
        accountants: Which to run; None: all that have a bound under the adjacency.

    Raises:
        PrivacyError: If not exactly one is left out, or a value is out of range.
    """
    applied, schedule = _mechanism(clip, classes, critics, turns, rows)
    cost = Cost(applied, schedule, adjacency, capacity, nominal_records)
    clients = checks.count("clients", clients)
    if not applied.sampled and rate is None:  # critics are asked in every round
        rate = 1.0
    per_row = 1.0 if rows is None else math.sqrt(rows)
    if sigma is not None:
        sigma = checks.positive("sigma", sigma) / per_row
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
            return per_row * sigma_for(eps, **how)
        if rate is None:
            return rate_for(eps, **how)
        return delta_for(eps, **how)

    bounding = cost.accountants(0.5 if rate is None else rate)  # without one it is solved for
    return {name: solve(name) for name in accountants or bounding}


def _mechanism(
    clip: str, classes: int, critics: int | None, turns: int | None, rows: int | None
) -> tuple[Clip, Schedule]:
    """The clip, with a bound of 1, and the schedule."""
    if clip not in CLIP_NAMES:
        raise PrivacyError(f"clip is {', '.join(CLIP_NAMES)}, received {clip!r}.")
    if clip != CriticClip.name:
        for name, value in (("critics", critics), ("turns", turns), ("rows", rows)):
            if value is not None:
                raise PrivacyError(
                    f"{name} belongs to clip=critic, received {name}={value} and clip={clip}: "
                    "leave one of them out."
                )
        kind = RecordClip if clip == RecordClip.name else BatchClip
        return kind(1.0), ClassSchedule(classes)
    schedule = ClassSchedule(classes) if turns is None or classes > 1 else TurnSchedule(turns)
    whole = CriticClip(1.0, 1 if critics is None else critics)
    if rows is None:
        return whole, schedule
    by_rows = RowClip(1.0, rows)
    by_rows.check_size(whole.critics, rows)
    return by_rows, schedule
