"""Public settings of a DP-Sinkhorn run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from fedsink.configuration import Configuration
from fedsink.data.views import view_from_dict
from fedsink.errors import ConfigError
from fedsink.privacy import (
    LOCAL_NOISE,
    CentralPlan,
    ClassSchedule,
    JointSchedule,
    NoiseShare,
)
from fedsink.privacy.clips import CLIPS
from fedsink.protocol.dp_sinkhorn import GradientReply, Objective, pack_replies
from fedsink.protocol.requests import UNNAMED
from fedsink.strategies.central_statement import OF_IMAGES, SampleOfRecords
from fedsink.strategies.central_strategy import (
    CentralSettings,
    central_plan,
    common_settings,
    signal_to_noise,
)
from fedsink.strategies.dp_sinkhorn.rows import Layout
from fedsink.strategies.dp_sinkhorn.self_term import SelfTermSettings
from fedsink.strategies.trainer import OptimizerSettings
from fedsink.transport import check_backend
from fedsink.values import checks

if TYPE_CHECKING:
    from flwr.app import RecordDict


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
        accountant: of the reported ε, one of `fedsink.privacy.ACCOUNTANTS`.
        run: public name of the run, stated in every request.
        share: how much of the plan's noise a reply holds.
        quorum: number of the clients asked that must answer, as in `Quorum`.
    """

    name: ClassVar[str] = "dp_sinkhorn"
    title: ClassVar[str] = "DP-Sinkhorn"
    sample: ClassVar[SampleOfRecords] = OF_IMAGES
    leaves: ClassVar[str] = "clipped, noised gradients of generated records"

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
    quorum: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for count in ("rows", "uses_per_message"):
            checks.count(f"strategy.{count}", getattr(self, count))
        view_from_dict(self.view)  # refused here, not in a client
        if self.plan.clip.per_record and not self.objective.is_quadratic:
            raise ConfigError(
                "clip=record works with the squared Euclidean cost; "
                f"strategy.cost={self.objective.cost} with strategy.m={self.objective.m:g} "
                "needs clip=batch."
            )
        self.self_term.check_clip(self.plan.clip)
        self.objective.check_plan(self.plan)
        _ = self.integers  # bits that are too few are refused here

    @classmethod
    def from_config(cls, config: Configuration, run: str, **more: Any) -> Self:
        """Reads the settings of DP-Sinkhorn; `more` are fields of a subclass.

        Raises:
            FedsinkError: a value is unknown, out of range, or belongs to the ldp mode.
        """
        chosen = config.strategy
        classes, label_weight = len(config.classes), chosen["label_weight"]
        check_backend(chosen["backend"])
        clip = CLIPS[checks.choice("clip", config.clip, "record", "batch")](chosen["bound"])
        by_class = (
            checks.choice("strategy.schedule", chosen["schedule"], "class", "joint") == "class"
        )
        schedule = ClassSchedule(classes) if by_class and classes > 1 else JointSchedule()
        return cls(
            plan=central_plan(config, clip, schedule),
            objective=Objective(
                lam=chosen["lam"],
                classes=classes,
                m=chosen["m"],
                label_weight=label_weight if classes > 1 else 0.0,
                solver=chosen["solver"],
                cost=chosen["cost"],
                backend=chosen["backend"],
            ),
            self_term=SelfTermSettings(
                chosen["self_term"], chosen["history"], chosen["p"], chosen["tether"]
            ),
            nominal_records=config.data.nominal_records / config.clients,
            uses_per_message=chosen["uses_per_message"],
            **common_settings(config, run),
            **more,
        )

    def reply(self, count: int, weights: int) -> RecordDict:
        """Returns a gradient at the rows of a block for each use."""
        zeros = torch.zeros(self.layout.block_rows, view_from_dict(self.view).dimension)
        return pack_replies([GradientReply(zeros)] * count)

    def check_sizes(self, sizes: Sequence[int]) -> None:
        """Refuses a client with more records than the plan's capacity counts on."""
        most = self.plan.nominal_records
        if most is not None and max(sizes) > most:
            raise ConfigError(
                f"The capacity of a batch counts on at most {most} records at a client "
                f"(data.nominal_records/clients), and this partition deals {max(sizes)} to one: "
                "choose capacity=null, another partition, or a larger data.nominal_records."
            )

    @property
    def use_size(self) -> int:
        """d, coordinates of a block's rows."""
        return self.layout.block_rows * view_from_dict(self.view).dimension

    @property
    def most_sampled(self) -> int:
        """Bound on the sample of a client with 2N/K records: mean + 8 standard deviations + 32.

        A client that sampled more would have its total projected, which costs no privacy.
        """
        mean = 2.0 * self.plan.rate * self.nominal_records
        most = min(math.ceil(2.0 * self.nominal_records), math.ceil(mean + 8 * mean**0.5 + 32))
        return most if self.plan.capacity is None else min(most, self.plan.capacity)

    @cached_property
    def mean_noise_variance(self) -> float:
        """The noise variance of a reply, averaged over the clients."""
        if not self.integers:
            return self.plan.noise_std**2
        return sum(self.noise_std(client) ** 2 for client in range(self.clients)) / self.clients

    @cached_property
    def layout(self) -> Layout:
        """Sizes and labels of a round's rows, and the clients of each block."""
        schedule = self.plan.schedule
        return Layout(
            clients=self.clients,
            classes=self.objective.classes,
            schedule=schedule,
            mixed=not (schedule.classes > 1 or self.plan.clip.per_record),
            rows_per_class=self.rows,
            debiased=self.self_term.debiased,
        )

    @property
    def gradient_scale(self) -> float:
        """Divisor of the clients' mean, which is a sum over records with `clip=record`."""
        return self.nominal_batch if self.plan.clip.per_record else 1.0

    def signal_to_noise(self, energy: float, answers: Sequence[int]) -> dict[str, float]:
        """Estimates ‖signal‖/‖noise‖ of the clients' mean gradients, as `signal_to_noise`.

        Args:
            energy: squared norm of the mean gradients of all blocks.
            answers: number of answers about each block of each round.

        Returns:
            {} without noise.
        """
        means = sum(1 / count for count in answers if count)
        return signal_to_noise(energy, self.use_size * self.mean_noise_variance * means)

    @property
    def nominal_batch(self) -> float:
        """B = q·N/(K·C): records of one class expected in a client's batch."""
        return self.plan.rate * self.nominal_records / self.objective.classes
