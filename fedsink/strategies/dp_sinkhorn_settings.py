"""Everything about a DP-Sinkhorn run that the server decides."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedsink.errors import ConfigError
from fedsink.privacy import LOCAL_NOISE, CentralPlan, NoiseShare, RecordClip, UnprotectedPlan
from fedsink.protocol import Objective
from fedsink.protocol.run import UNNAMED
from fedsink.strategies.self_term import SelfTermSettings
from fedsink.strategies.trainer import OptimizerSettings


@dataclass(frozen=True)
class DPSinkhornSettings:
    """Everything about a DP-Sinkhorn run; all of it is public.

    Attributes:
        plan: sampler, clip, noise, rounds and schedule, with their accounting; without clip and
            noise an `UnprotectedPlan`.
        objective: the transport problem each client solves against its batch.
        self_term: the data-independent half of the Sinkhorn divergence.
        view: coordinates of the gradient, as `View.to_dict()`.
        rows: n, generated images per class and round.
        optimizer: the generator's optimiser.
        clients: K.
        nominal_records: N/K, a public number that scales gradients; never read from data.
        uses_per_message: U, rounds of the plan that one exchange of messages holds.
        accountant: whose ε is reported, one of `fedsink.privacy.ACCOUNTANTS`.
        run: public name of the run, stated in every request.
        share: whether each reply holds all of the plan's noise, or the sum of a cohort's does.
    """

    plan: CentralPlan
    objective: Objective
    self_term: SelfTermSettings
    view: dict[str, Any]
    rows: int
    optimizer: OptimizerSettings
    clients: int
    nominal_records: float
    uses_per_message: int = 1
    accountant: str = "pld"
    run: str = UNNAMED
    share: NoiseShare = LOCAL_NOISE

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ConfigError(f"strategy.rows must be at least 1, not {self.rows}.")
        if self.uses_per_message < 1:
            raise ConfigError(
                f"strategy.uses_per_message must be at least 1, not {self.uses_per_message}."
            )
        if isinstance(self.plan.clip, RecordClip) and not self.objective.is_quadratic:
            raise ConfigError(
                "clip=record works with the squared Euclidean cost; "
                f"strategy.cost={self.objective.cost} with strategy.m={self.objective.m:g} "
                "needs clip=batch."
            )
        if isinstance(self.plan, UnprotectedPlan) and self.share != LOCAL_NOISE:
            raise ConfigError(
                f"noise.share={self.share.name} has nothing to share where eps=inf adds no noise: "
                "leave one of them out."
            )
        self.share.check(self.plan.schedule, self.clients)

    def sharers(self, client: int) -> int:
        """n, over how many clients the noise of this client's cohort is spread."""
        return self.share.sharers(self.plan.schedule, client, self.clients)

    def noise_std(self, client: int) -> float:
        """Standard deviation of the noise in one client's reply, σS/√n."""
        return self.plan.with_noise(1 / self.sharers(client)).noise_std

    @cached_property
    def mean_noise_variance(self) -> float:
        """The noise variance of a reply, (σS)²/n, averaged over the clients."""
        shares = [1 / self.sharers(client) for client in range(self.clients)]
        return self.plan.noise_std**2 * (sum(shares) / len(shares))

    @property
    def nominal_batch(self) -> float:
        """B = q·N/(K·C): records of one class expected in a client's batch."""
        return self.plan.rate * self.nominal_records / self.objective.classes
