"""How the central mode spends ε: the plan that two of eps, sigma and rounds leave."""

from __future__ import annotations

import math
from dataclasses import replace

from fedsink.errors import ConfigError
from fedsink.privacy import CentralPlan, PrivacyPlan, UnprotectedPlan
from fedsink.privacy.accounting.capacity import capacity_for
from fedsink.privacy.mechanisms.clipping import Clip
from fedsink.privacy.sampling import Schedule
from fedsink.values import Config


def central_plan(
    config: Config, clip: Clip, schedule: Schedule, nominal_records: int
) -> CentralPlan:
    """Two of (eps, sigma, rounds) give the third; what is left out comes from the recipe.

    Args:
        config: the resolved configuration.
        clip: bounds what a unit can change.
        schedule: who is asked about what.
        nominal_records: ⌈N/K⌉, public; bounds a client's batch where there is a capacity.

    Raises:
        FedsinkError: a value is out of range, or the three contradict one another.
    """
    if config["eps"] == math.inf:
        return _unprotected(config, clip, schedule, nominal_records)
    eps, sigma, rounds = config["eps"], config["sigma"], config["rounds"]
    if sigma is None:
        eps = config["recipe"]["eps"] if eps is None else eps
    if rounds is None and (sigma is None or eps is None):
        rounds = config["recipe"]["rounds"]

    def solve(capacity: int | None) -> PrivacyPlan:
        return PrivacyPlan.solve(
            rate=config["rate"],
            clip=clip,
            schedule=schedule,
            delta=config["delta"],
            eps=eps,
            sigma=sigma,
            rounds=rounds,
            accountant=config["accountant"],
            adjacency=config["adjacency"],
            capacity=capacity,
            nominal_records=None if capacity is None else nominal_records,
        )

    if config["capacity"] == "auto":
        free = solve(None)  # with a capacity its rounds can only become fewer
        return solve(capacity_for(free.rate, nominal_records, free.uses, free.delta))
    return solve(_capacity(config))


def _capacity(config: Config) -> int | None:
    capacity = config["capacity"]
    if capacity is None:
        return None
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise ConfigError(
            f"capacity is null, auto or a whole number of at least 1, not {capacity!r}."
        )
    return capacity


def _unprotected(
    config: Config, clip: Clip, schedule: Schedule, nominal_records: int
) -> UnprotectedPlan:
    """eps=inf: the same rounds with neither clip nor noise."""
    if config["sigma"] is not None:
        raise ConfigError(
            f"eps=inf adds no noise, so sigma={config['sigma']} has no meaning: leave one out."
        )
    if config["engine"]["name"] == "deploy":
        raise ConfigError(
            "eps=inf protects nothing, and real nodes always refuse it: it is for fedsink simulate."
        )
    rounds = config["recipe"]["rounds"] if config["rounds"] is None else config["rounds"]
    plan = UnprotectedPlan(config["rate"], rounds, clip.name, schedule)
    if config["capacity"] == "auto":
        most: int | None = capacity_for(plan.rate, nominal_records, plan.uses, config["delta"])
    else:
        most = _capacity(config)
    limit = None if most is None else nominal_records
    return replace(plan, capacity=most, nominal_records=limit)
