"""How the methods of the central mode spend ε, and who adds how much noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from fedsink.configuration import Configuration
from fedsink.errors import ConfigError
from fedsink.privacy import (
    LOCAL_NOISE,
    CentralPlan,
    NoiseShare,
    PrivacyPlan,
    UnprotectedPlan,
    capacity_for,
)
from fedsink.privacy.accounting.accountants import check_accountant
from fedsink.privacy.clips import Clip
from fedsink.privacy.sampling import Schedule
from fedsink.strategies.central.statement import central_statement, notice
from fedsink.strategies.central.unprotected import unprotected_statement
from fedsink.strategies.quorum import check_quorum
from fedsink.strategies.settings import StrategySettings
from fedsink.strategies.trainer import OptimizerSettings
from fedsink.values import given, integer, strictly


class CentralSettings(StrategySettings):
    """Everything public about a run of the central mode.

    Attributes:
        plan: what is clipped and noised in every round, with its accounting; without clip and
            noise an `UnprotectedPlan`.
        mechanism: what is noised, in the words of privacy.json.
        accountant: whose ε is reported, one of `fedsink.privacy.ACCOUNTANTS`.
        share: whether each reply holds all of the plan's noise, or the sum of a cohort's does.
        quorum: how many of the clients that are asked must answer, as in `Quorum`.
    """

    mode: ClassVar[str] = "central"
    mechanism: ClassVar[str]

    plan: CentralPlan
    accountant: str
    share: NoiseShare
    quorum: float | None

    def __post_init__(self) -> None:
        check_accountant(self.accountant)
        if not self.plan.protected and self.share != LOCAL_NOISE:
            raise ConfigError(
                f"noise.share={self.share.name} has nothing to share where eps=inf adds no noise: "
                "leave one of them out."
            )
        self.share.check(self.plan.schedule, self.clients)
        check_quorum(self.quorum, self.clients)
        if self.quorum is not None and self.share != LOCAL_NOISE:
            raise ConfigError(
                f"noise.share={self.share.name} leaves too little noise in a sum that a client is "
                f"missing from: leave strategy.quorum={self.quorum} out."
            )

    def statement(self, noise: str) -> dict[str, Any]:
        """The content of privacy.json."""
        if isinstance(self.plan, UnprotectedPlan):
            return unprotected_statement(self.plan, self.clients)
        return central_statement(
            self.plan, self.clients, noise, self.accountant, self.share, mechanism=self.mechanism
        )

    def notice(self, stated: Mapping[str, Any]) -> str | None:
        """What is promised, beside what is left of it without its assumptions."""
        return notice(stated, self.share, self.clients)

    def asked(self, client: int, rounds: int) -> int:
        """In how many of the first rounds the plan's schedule asks a client."""
        return self.plan.schedule.answered(client, rounds + 1)

    @property
    def exchanges(self) -> int:
        """As many as hold all rounds."""
        return -(-self.plan.rounds // self.uses_per_message)

    @property
    def messages(self) -> int:
        """As many as hold the rounds that the first client is asked in."""
        return -(-self.asked(0, self.plan.rounds) // self.uses_per_message)

    def sharers(self, client: int) -> int:
        """n, over how many clients the noise of this client's cohort is spread."""
        return self.share.sharers(self.plan.schedule, client, self.clients)

    def noise_std(self, client: int) -> float:
        """Standard deviation of the noise in one client's reply, σS/√n."""
        return self.plan.with_noise(1 / self.sharers(client)).noise_std


def common_settings(config: Configuration, run: str) -> dict[str, Any]:
    """What every method of the central mode takes from a configuration, by the name of its field.

    Raises:
        ConfigError: `strategy.optimizer` is malformed or out of range.
    """
    chosen = config.strategy
    return {
        "view": {"shape": list(config.data.shape), **given(config.view)},
        "rows": chosen["rows"],
        "optimizer": strictly(OptimizerSettings, chosen["optimizer"], "strategy.optimizer"),
        "clients": config.clients,
        "accountant": config.accountant,
        "run": run,
        "share": config.noise.shared,
        "quorum": chosen["quorum"],
    }


def central_plan(
    config: Configuration, clip: Clip, schedule: Schedule, sigma: float | None = None
) -> CentralPlan:
    """How ε is spent: two of (eps, sigma, rounds) give the third.

    What is left out comes from the recipe; eps=inf is the same rounds with neither clip nor noise.

    Args:
        config: of the central mode.
        clip: bounds what a unit can change.
        schedule: who is asked about what.
        sigma: the noise multiplier; None: the configuration's.

    Raises:
        FedsinkError: a value is out of range or belongs to the local mode, or the three contradict
            one another.
    """
    _check_mode(config)
    records = math.ceil(config.data.nominal_records / config.clients)
    eps = config.eps
    if sigma is None:
        sigma = config.sigma
    rounds: Any = config.rounds
    if eps is None and sigma is None:
        eps = config.recipe["eps"]
    if rounds is None and (sigma is None or eps is None):
        rounds = config.recipe["rounds"]
    if eps == math.inf and sigma is not None:
        raise ConfigError(f"eps=inf adds no noise, so sigma={sigma} has no meaning: leave one out.")

    def plan(capacity: int | None) -> CentralPlan:
        limit = None if capacity is None else records
        if eps == math.inf:
            return UnprotectedPlan(config.rate, rounds, clip.name, schedule, capacity, limit)
        return PrivacyPlan.solve(
            rate=config.rate,
            clip=clip,
            schedule=schedule,
            delta=config.delta,
            eps=eps,
            sigma=sigma,
            rounds=rounds,
            accountant=config.accountant,
            adjacency=config.adjacency,
            capacity=capacity,
            nominal_records=limit,
        )

    if config.capacity is None:
        return plan(None)
    if config.capacity == "auto":
        free = plan(None)  # with a capacity its rounds can only become fewer
        return plan(capacity_for(free.rate, records, free.uses, config.delta))
    return plan(integer(vars(config), "capacity", also="null, auto or "))


def signal_to_noise(energy: float, noise: float) -> dict[str, float]:
    """Estimate ‖signal‖/‖noise‖ of a release, from the release alone, as a metric.

    ‖release‖² is on average ‖signal‖² + ‖noise‖², so r = ‖release‖²/E‖noise‖² − 1 estimates the
    square without bias, and falls below 0 where the signal is less than one release can measure.
    The metric is sign(r)·√|r|: a negative one says that, and means of its signed squares over
    rounds are still without bias.

    Args:
        energy: squared norm of the release.
        noise: expected squared norm of the noise in it.

    Returns:
        {} without noise.
    """
    if noise <= 0.0:
        return {}
    square = energy / noise - 1.0
    return {"signal_to_noise": math.copysign(math.sqrt(abs(square)), square)}


def _check_mode(config: Configuration) -> None:
    mechanism = config.mechanism["name"]
    if mechanism != PrivacyPlan.mechanism:
        raise ConfigError(
            f"mode=central noises gradients with mechanism={PrivacyPlan.mechanism}, not "
            f"{mechanism!r}; mechanism={mechanism} belongs to mode=ldp."
        )
    if config.shuffler != "none":
        raise ConfigError(
            f"shuffler={config.shuffler} belongs to mode=ldp: a shuffler amplifies reports "
            "that are private one by one, and those of mode=central are sums over a batch."
        )
