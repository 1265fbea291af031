"""Everything about a DP-Sinkhorn run that the server decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

from fedsink.data.spec import DataSpec
from fedsink.data.views import view_from_dict
from fedsink.errors import ConfigError
from fedsink.privacy import (
    LOCAL_NOISE,
    CentralPlan,
    ClassSchedule,
    JointSchedule,
    NoiseShare,
    RecordClip,
    UnprotectedPlan,
)
from fedsink.privacy.mechanisms.clipping import CLIPS
from fedsink.protocol import Objective
from fedsink.protocol.run import UNNAMED
from fedsink.reporting.statement import OF_IMAGES, central_statement
from fedsink.reporting.unprotected import unprotected_statement
from fedsink.strategies.dp_sinkhorn.budget import central_plan
from fedsink.strategies.dp_sinkhorn.layout import Layout
from fedsink.strategies.self_term import SelfTermSettings
from fedsink.strategies.settings import (
    NODE_ENGINES,
    CentralSettings,
    check_central,
    noise_share,
    signal_to_noise,
)
from fedsink.strategies.trainer import OptimizerSettings
from fedsink.transport import solver_named
from fedsink.values import Config, choice, given, integer, number, positive


@dataclass(frozen=True)
class DPSinkhornSettings(CentralSettings):
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

    name: ClassVar[str] = "dp_sinkhorn"
    title: ClassVar[str] = "DP-Sinkhorn"
    engines: ClassVar[tuple[str, ...]] = (*NODE_ENGINES, "fused")
    mechanism: ClassVar[str] = OF_IMAGES

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
        super().__post_init__()
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

    @classmethod
    def from_config(cls, config: Config, data: DataSpec, clients: int, run: str) -> Self:
        """Settings of the central mode.

        Raises:
            FedsinkError: a value is unknown, out of range, or belongs to the other mode.
        """
        check_central(config)
        chosen = config["strategy"]
        classes = len(data.classes) if config["conditional"] else 1
        clip = CLIPS[choice(config, "clip", "record", "batch")](chosen["bound"])
        by_class = choice(chosen, "schedule", "class", "joint", where="strategy.") == "class"
        schedule = ClassSchedule(classes) if by_class and classes > 1 else JointSchedule()
        nominal = math.ceil(data.nominal_records / clients)
        view = {"shape": list(data.shape), **given(config["view"])}
        view_from_dict(view)  # refuse these now rather than in a client
        solver_named(str(chosen["solver"]))
        label_weight = number(chosen, "label_weight", minimum=0.0, where="strategy.")
        return cls(
            plan=central_plan(config, clip, schedule, nominal),
            objective=Objective(
                lam=positive(chosen, "lam", where="strategy."),
                classes=classes,
                m=number(chosen, "m", minimum=0.0, where="strategy."),
                label_weight=label_weight if classes > 1 else 0.0,
                solver=str(chosen["solver"]),
                cost=str(chosen["cost"]),
            ),
            self_term=SelfTermSettings(
                chosen["self_term"],
                integer(chosen, "history", minimum=1, where="strategy."),
                number(chosen, "p", minimum=0.0, where="strategy."),
            ),
            view=view,
            rows=integer(chosen, "rows", minimum=1, where="strategy."),
            optimizer=OptimizerSettings.from_config(chosen),
            clients=clients,
            nominal_records=data.nominal_records / clients,
            uses_per_message=integer(chosen, "uses_per_message", minimum=1, where="strategy."),
            accountant=str(config["accountant"]),
            run=run,
            share=noise_share(config),
        )

    def statement(self, noise: str) -> dict[str, Any]:
        """The content of privacy.json, with `mechanism` as what is noised."""
        if isinstance(self.plan, UnprotectedPlan):
            return unprotected_statement(self.plan, self.clients)
        return central_statement(
            self.plan, self.clients, noise, self.accountant, self.share, mechanism=self.mechanism
        )

    def check_sizes(self, sizes: Sequence[int]) -> None:
        """Refuse a client with more records than the plan's capacity counts on."""
        most = self.plan.nominal_records
        if most is not None and max(sizes) > most:
            raise ConfigError(
                f"capacity={self.plan.capacity} counts on at most {most} records at a client "
                f"(data.nominal_records/clients), and this partition deals {max(sizes)} to one: "
                "choose capacity=null, another partition, or a larger data.nominal_records."
            )

    @cached_property
    def mean_noise_variance(self) -> float:
        """The noise variance of a reply, (σS)²/n, averaged over the clients."""
        shares = [1 / self.sharers(client) for client in range(self.clients)]
        return self.plan.noise_std**2 * (sum(shares) / len(shares))

    @cached_property
    def layout(self) -> Layout:
        """Which rows a round generates, and who is asked about which of them."""
        schedule = self.plan.schedule
        by_class = schedule.classes > 1
        return Layout(
            clients=self.clients,
            classes=self.objective.classes,
            schedule=schedule,
            mixed=not (by_class or isinstance(self.plan.clip, RecordClip)),
            rows_per_class=self.rows,
            debiased=self.self_term.debiased,
        )

    @property
    def gradient_scale(self) -> float:
        """What the clients' mean is divided by: it is a sum over records with `clip=record`."""
        return self.nominal_batch if isinstance(self.plan.clip, RecordClip) else 1.0

    def signal_to_noise(self, energy: float, rounds: int = 1) -> dict[str, float]:
        """‖signal‖/‖noise‖ of the clients' mean gradients, from the release alone.

        Args:
            energy: their squared norm; each is a mean over those who are asked about one block.
            rounds: how many of the plan's rounds they are from.

        Returns:
            {} without noise.
        """
        blocks, rows = self.layout.blocks, self.layout.block_rows
        entries = rounds * blocks * rows * view_from_dict(self.view).dimension
        noise = entries * self.mean_noise_variance * blocks / self.clients
        return signal_to_noise(energy, noise)

    @property
    def nominal_batch(self) -> float:
        """B = q·N/(K·C): records of one class expected in a client's batch."""
        return self.plan.rate * self.nominal_records / self.objective.classes
