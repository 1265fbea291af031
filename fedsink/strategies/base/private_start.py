"""A private start: a generator that the same records have trained begins another run.

Both runs see the records, so that a promise names the plans of both and states their total. In
privacy.json `start` holds the plan of the start, and the `start` that it had itself: a chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedsink.configuration import ADDED, COMPOSED, noise_entries
from fedsink.errors import ConfigError
from fedsink.privacy import CentralPlan, PrivacyPlan, composed_epsilon, plan_from_dict
from fedsink.privacy.accounting.composition import trade_off
from fedsink.values import read_json

STARTED = "start"
"""Name of the sub-folder of a run that holds its start, and of the entry of privacy.json."""

_LONGEST = 16  # starts of one run
_MEANING = {
    COMPOSED: (
        "The same records trained the weights before round 1. ε is the total of all plans, of the "
        "start and of this run, by privacy loss distributions. Such a total is no filter: it holds "
        "where this run's plan was fixed without looking at the start's generator. For a plan "
        "chosen after a look, add up ε and δ of the plans (start_plan=added)."
    ),
    ADDED: (
        "The same records trained the weights before round 1. ε and δ are the sums of those of all "
        "plans, of the start and of this run, and hold for any choice of a plan, also after a look "
        "at an earlier generator."
    ),
}


def private_entry(source: Path) -> dict[str, Any] | None:
    """Returns the entry `start` of the runs that a generator begins; None for one of public data.

    Raises:
        ConfigError: its records have no protection whose ε could be counted.
    """
    try:
        privacy: Any = read_json((source / "privacy.json").read_bytes())
        of_public = isinstance(privacy.get("public"), Mapping)
    except (OSError, ValueError, RecursionError, AttributeError):
        raise ConfigError(
            f"start={source} has no readable privacy.json, so that nothing says what its generator "
            "was trained on: name the folder of a finished run."
        ) from None
    if of_public:
        return None
    if privacy.get("model") != "central" or privacy.get("noise_share") or not privacy.get("plan"):
        raise ConfigError(
            f"start={source} was trained on private data, and its ε composes with no other: a "
            "private start is a run of mode=central in which every client adds its whole noise."
        )
    names = ("method", "noise", "plan", "start")
    entry = {name: privacy[name] for name in names if name in privacy}
    if any(plan.published for plan in plans_of(entry, f"start={source}, on private data,")):
        raise ConfigError(f"start={source} repeats a published form, which composes with nothing.")
    return entry


def plans_of(start: Mapping[str, Any] | None, where: str = "start") -> list[PrivacyPlan]:
    """Returns the plans that trained a start, the first one first; none for a public start."""
    plans: list[PrivacyPlan] = []
    for one in _chain(start):
        values = one.get("plan")
        if not isinstance(values, Mapping):
            raise ConfigError(f"{where} names neither the plan of private records nor public data.")
        if len(plans) == _LONGEST:
            raise ConfigError(f"{where} is a chain of more than {_LONGEST} starts.")
        plan = plan_from_dict({name: value for name, value in values.items() if name != "mode"})
        if values.get("mode") != "central" or not isinstance(plan, PrivacyPlan):
            raise ConfigError(
                f"{where} names a plan that protects nothing, or none of mode=central."
            )
        plans.insert(0, plan)
    return plans


def _chain(start: Any) -> Iterator[Mapping[str, Any]]:
    """Yields the private starts of a run, the last one first."""
    while start is not None and not is_public(start):
        yield start
        start = start.get("start")


def is_public(start: Mapping[str, Any]) -> bool:
    """True for the entry of a start that public data have trained."""
    return "data_sha256" in start and "plan" not in start


def with_start(
    promise: Mapping[str, Any], plan: CentralPlan, start: Mapping[str, Any], start_plan: str
) -> dict[str, Any]:
    """Returns the promise of privacy.json of a run that began with a private start.

    Guarantees:
        - ε is the total of all plans by privacy loss distributions, at their one δ; or, added, the
          sum of their ε, at the sum of their δ.
        - All plans have one adjacency.
        - The noise is reproducible where that of any run is.

    Args:
        promise: of the run's own plan.
        plan: the run's own.
        start: the entry `start`, with the plans that trained it.
        start_plan: one of `fedsink.configuration.START_PLANS`.
    """
    if start_plan == COMPOSED and any(one.get("start_plan") == ADDED for one in _chain(start)):
        raise ConfigError(
            "the start has a start of its own whose ε was added, for its plan may have been chosen "
            "after a look: no total of loss distributions holds. Say start_plan=added."
        )
    said: dict[str, Any] = {**start, "start_plan": start_plan}
    if not isinstance(plan, PrivacyPlan):
        return {**promise, "start": said}
    plans = [*plans_of(start), plan]
    if "noise_share" in promise or promise["accountant"] != "pld" or plan.published:
        raise ConfigError(
            "a private start composes with a run whose clients add their whole noise, whose ε is "
            "by accountant=pld, and whose clip and schedule are fedsink's own: leave noise.share, "
            "accountant and published forms out, or begin with a public start."
        )
    if len({one.adjacency for one in plans}) > 1:
        raise ConfigError(f"the start has adjacency={plans[0].adjacency}, not {plan.adjacency}.")
    alone, deltas = [one.epsilon() for one in plans], [one.delta for one in plans]
    total: dict[str, Any] = {"epsilon": sum(alone), "delta": sum(deltas)}
    unamplified = sum(one.epsilon_unamplified() for one in plans)
    kept = {k: v for k, v in promise.items() if k not in ("adjacencies", "trade_off")}
    if start_plan == COMPOSED:
        total = {"epsilon": composed_epsilon(plans), "delta": plan.delta}
        total["trade_off"] = trade_off([one.spent() for one in plans])
        unamplified = composed_epsilon(plans, amplified=False)
    if any(one.capacity is None for one in plans):
        total["epsilon_unamplified"] = unamplified
    if "reproducible" in [one.get("noise") for one in (promise, *_chain(start))]:
        total |= noise_entries("start")
    clients = [{**entry, "epsilon": total["epsilon"]} for entry in promise["clients"]]
    return {
        **kept,
        **total,
        "clients": clients,
        "protected": f"{promise['protected']} {_MEANING[start_plan]}",
        "start": {**said, "epsilons": alone, "deltas": deltas},
    }
