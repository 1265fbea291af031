"""All accountants side by side, for `fedsink account`.

`solve_account` gets all but one of (rate, sigma, rounds, eps, delta) and solves for the other one.

>>> list(solve_account(rate=0.2, sigma=2.0, rounds=3000, delta=1e-5, classes=10))[:3]
['pld', 'prv', 'rdp']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedsink.errors import PrivacyError
from fedsink.privacy.accounting.calibration import (
    MOST_USES,
    delta_for,
    rate_for,
    sigma_for,
    uses_for,
)
from fedsink.privacy.accounting.cost import Cost
from fedsink.privacy.adjacency import ADD_REMOVE
from fedsink.privacy.clips import CLIPS, Clip
from fedsink.privacy.sampling import ClassSchedule, Schedule, TurnSchedule
from fedsink.values import privacy_checks as checks

MANY_POINTS = 1e6
"""Points of PRV's grids, of all evaluations of a search, that take it seconds."""

CLIP_NAMES = tuple(name for name, clip in CLIPS.items() if not clip.published)
"""Names of the clips that are accounted for here."""


class Solutions(dict[str, float]):
    """The number that is solved for, by each accountant.

    `left_out` gives the reasons of accountants that would bound ε and were not run, or found none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left_out: dict[str, str] = {}


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
    **options: int | None,
) -> Solutions:
    """Returns the number of (rate, sigma, rounds, eps, delta) that is left out, by each accountant.

    Args:
        delta: δ in (0, 1).
        rate: Sampling probability q in (0, 1]; 1 unless given where the clip samples no records.
        sigma: Noise multiplier, noise std / the clip's `claimed_sensitivity`.
        rounds: T, from 1 to 10⁹.
        eps: ε; the solution costs at most this much.
        classes: Number of public classes of a `ClassSchedule`; 1 for a joint one.
        clip: one of `CLIP_NAMES`.
        adjacency: ``"add-remove"``, ``"replace-one"``, ``"user"`` or ``"client"``.
        capacity: B or None.
        nominal_records: N or None.
        clients: Number of clients, all running this plan, at which one person has a record.
        accountants: Names of those to run; None: all that have a bound under the adjacency, an
            answer at these values, and do not take long for it (PRV beyond 10⁶ points).
        options: options that only some clips have, by the names in `Clip.account_options`, among
            them ``turns``, P of a `TurnSchedule`. None: not given.

    Raises:
        PrivacyError: If not exactly one is left out, a value is out of range, or the clip has no
            such option.
    """
    applied, schedule = _mechanism(clip, classes, options)
    cost = Cost(applied, schedule, adjacency, capacity, nominal_records)
    clients = checks.count("clients", clients)
    if not applied.sampled and rate is None:
        rate = 1.0
    claimed = applied.sensitivity / applied.claimed_sensitivity
    if sigma is not None:
        sigma = checks.positive("sigma", sigma) / claimed
    parameters = {"rate": rate, "sigma": sigma, "rounds": rounds, "eps": eps, "delta": delta}
    values = {name: value for name, value in parameters.items() if value is not None}
    if len(values) != len(parameters) - 1:
        received = ", ".join(f"{name}={value}" for name, value in parameters.items())
        raise PrivacyError(
            "exactly one of rate, sigma, rounds, eps and delta is left out and solved for, "
            f"received {received}."
        )
    given: dict[str, Any] = {n: values[n] for n in ("rate", "sigma", "delta") if n in values}
    if rounds is not None:
        if checks.count("rounds", rounds) > MOST_USES:
            raise PrivacyError(f"rounds must be at most {MOST_USES:g}, received {rounds:g}.")
        given["uses"] = clients * cost.uses(rounds)

    def solve(accountant: str) -> float:
        how: dict[str, Any] = {**given, "accountant": accountant}
        if eps is None:
            cost.check_overflow(values["rate"], given["uses"], values["delta"])
            return cost.epsilon(**how)
        how["cost"] = cost
        if rounds is None:
            uses = uses_for(eps, **how) // clients
            if uses == 0:
                raise PrivacyError(
                    f"eps={eps:g} pays for less than one use at each of clients={clients}: raise "
                    "sigma or eps, or lower the rate."
                )
            return cost.rounds_within(uses)
        if sigma is None:
            return claimed * sigma_for(eps, **how)
        if rate is None:
            return rate_for(eps, **how)
        return delta_for(eps, **how)

    bounding = cost.accountants(0.5 if rate is None else rate)  # without one it is solved for
    found = Solutions()
    if accountants:
        found.update((name, solve(name)) for name in accountants)
        return found
    # The one that claims rest on; what it finds tells how far the others have to go.
    found["pld"] = solved = solve("pld")
    at = (
        solved if rate is None else rate,
        solved / claimed if sigma is None else sigma,
        clients * cost.uses(int(solved)) if rounds is None else given["uses"],
        solved if delta is None else delta,
    )
    for name in bounding[1:]:
        searches = 1 if eps is None else 200 if delta is None else 8  # evaluations of ε, about
        points = searches * cost.prv_points(*at) if name == "prv" else 0.0
        if points > MANY_POINTS:
            found.left_out[name] = (
                f"left out, as its {points:.1e} points take long: accountant={name} runs it alone"
            )
            continue
        try:
            found[name] = solve(name)
        except PrivacyError as error:
            found.left_out[name] = f"left out: {str(error).rstrip('.')}"
    return found


def _mechanism(clip: str, classes: int, options: Mapping[str, int | None]) -> tuple[Clip, Schedule]:
    """Returns the clip, with a bound of 1, and the schedule."""
    if clip not in CLIP_NAMES:
        raise PrivacyError(f"clip is {', '.join(CLIP_NAMES)}, received {clip!r}.")
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if name not in CLIPS[clip].account_options:
            having = [f"clip={kind}" for kind in CLIPS if name in CLIPS[kind].account_options]
            raise PrivacyError(
                f"{name} belongs to {' or '.join(having) or 'no clip'}, received {name}={value} "
                f"and clip={clip}: leave one of them out."
            )
    turns = given.get("turns")
    schedule = ClassSchedule(classes) if turns is None or classes > 1 else TurnSchedule(turns)
    return CLIPS[clip].for_account(given), schedule
