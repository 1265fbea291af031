"""ε of a `dp_accounting.DpEvent`: a mechanism's description, read by an accountant.

Multipliers are noise std (or scale) over the *sensitivity under the adjacency*: the largest
distance of two neighbouring totals. dp_accounting's own replace-one reads them against the radius
and would count local noise twice over.
"""

from __future__ import annotations

import math
from typing import Any

from fedsink.errors import PrivacyError
from fedsink.privacy.accounting.accountants import (
    check_accountant,
    poisson_gaussian_epsilon,
    quiet_absl,
)
from fedsink.privacy.adjacency import ADD_REMOVE, REPLACE_ONE, check_adjacency
from fedsink.values import privacy_checks as checks

_GRID = 1e-4


def epsilon(
    event: Any, delta: float, accountant: str = "pld", adjacency: str = ADD_REMOVE
) -> float:
    """Returns ε(δ) of a `dp_accounting.DpEvent`.

    Args:
        event: For example `poisson_gaussian(...)` or a mechanism's `.event`.
        delta: δ in (0, 1).
        accountant: One of `ACCOUNTANTS`; all but ``"pld"`` and ``"rdp"`` bound
            Poisson-subsampled Gaussians only.
        adjacency: The adjacency that the event's multipliers are stated for. Under
            ``"replace-one"`` local mechanisms and their compositions are bounded; a sampled one
            needs to know its clip and schedule, which `PrivacyPlan.epsilon` does.

    Raises:
        PrivacyError: For a bad δ, an unknown accountant, or an event the accountant cannot bound
            under the adjacency.
    """
    checks.failure_probability(delta)
    check_accountant(accountant)
    if check_adjacency(adjacency) == REPLACE_ONE:
        if accountant != "pld":
            raise PrivacyError(
                f"the {accountant} accountant has no bound under replace-one: use accountant='pld'."
            )
        return float(_replace_one_pld(event).get_epsilon_for_delta(delta))
    events = checks.require("dp_accounting")
    parameters = _as_poisson_gaussian(event, events)
    if parameters is not None:
        return poisson_gaussian_epsilon(*parameters, delta, accountant)
    if accountant not in ("pld", "rdp"):
        raise PrivacyError(
            f"the {accountant} accountant bounds Poisson-subsampled Gaussians only, received "
            f"{type(event).__name__}: use accountant='pld'."
        )
    library = checks.require(f"dp_accounting.{accountant}")
    ledger = library.PLDAccountant() if accountant == "pld" else library.RdpAccountant()
    try:
        with quiet_absl():
            return max(0.0, float(ledger.compose(event).get_epsilon(delta)))
    except events.UnsupportedEventError:
        raise PrivacyError(
            f"the {accountant} accountant cannot bound {type(event).__name__} under {adjacency}: "
            "use another accountant or a supported event."
        ) from None


def _replace_one_pld(event: Any) -> Any:
    """Loss distribution between the two values of a record that are furthest apart."""
    events = checks.require("dp_accounting")
    pld = checks.require("dp_accounting.pld.privacy_loss_distribution")
    if isinstance(event, events.ComposedDpEvent):
        composed = pld.identity(value_discretization_interval=_GRID)
        for part in event.events:
            composed = composed.compose(_replace_one_pld(part))
        return composed
    if isinstance(event, events.SelfComposedDpEvent):
        if isinstance(event.event, events.GaussianDpEvent):
            once = events.GaussianDpEvent(event.event.noise_multiplier / math.sqrt(event.count))
            return _replace_one_pld(once)
        return _replace_one_pld(event.event).self_compose(event.count)
    if isinstance(event, events.GaussianDpEvent):
        return pld.from_gaussian_mechanism(event.noise_multiplier)
    if isinstance(event, events.LaplaceDpEvent):
        return pld.from_laplace_mechanism(event.noise_multiplier)
    if isinstance(event, events.RandomizedResponseDpEvent):
        return pld.from_randomized_response(
            event.noise_parameter,
            event.num_buckets,
            neighboring_relation=events.NeighboringRelation.REPLACE_ONE,
        )
    raise PrivacyError(
        f"no dominating pair of {type(event).__name__} is known under replace-one from only the "
        "event: ask PrivacyPlan.epsilon, which knows clip and schedule, or use add-remove."
    )


def _as_poisson_gaussian(event: Any, events: Any) -> tuple[float, float, int] | None:
    """Returns (rate, σ, uses) if the event is that mechanism, else None."""
    uses = 1
    if isinstance(event, events.SelfComposedDpEvent):
        event, uses = event.event, event.count
    rate = 1.0
    if isinstance(event, events.PoissonSampledDpEvent):
        event, rate = event.event, event.sampling_probability
    if isinstance(event, events.GaussianDpEvent) and event.noise_multiplier > 0 and uses >= 1:
        return rate, event.noise_multiplier, uses
    return None
