"""What a local-mode run is, in public numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from fedsink.configuration import Configuration
from fedsink.errors import ConfigError
from fedsink.privacy import LOCAL_NOISE
from fedsink.privacy.accounting.amplification import shuffling_statement
from fedsink.protocol.privatize_once import LocalPlan, PrivatizeReply
from fedsink.protocol.requests import UNNAMED
from fedsink.strategies.privatize_once.budget import local_plan
from fedsink.strategies.privatize_once.critic import NoisyCriticSettings
from fedsink.strategies.privatize_once.denoising import check_denoisable
from fedsink.strategies.privatize_once.statement import local_statement
from fedsink.strategies.quorum import check_quorum
from fedsink.strategies.settings import StrategySettings
from fedsink.strategies.trainer import OptimizerSettings
from fedsink.transport import (
    NATIVE,
    ConvergedSolver,
    Cost,
    Solver,
    by_backend,
    check_backend,
    cost_named,
    solver_named,
)
from fedsink.values import choice, flag, given, integer, number, positive, strictly, within

if TYPE_CHECKING:
    from flwr.app import RecordDict

ENTROPIC = ("matched", "debiased")
EXACT = ("unregularised", "noisy_w1", "denoised")
BY_CRITIC = ("noisy_wgan",)
NOISY = ("noisy_w1", "noisy_wgan")  # generated values go through the mechanism as well
LOSSES = ENTROPIC + EXACT + BY_CRITIC
"""What the server may minimise; `fedsink.strategies.privatize_once.loss` has the equations."""


@dataclass(frozen=True)
class PrivatizeOnceSettings(StrategySettings):
    """Everything about a local-mode run; all of it is public.

    Attributes:
        plan: what each client did to each record.
        rounds: training steps of the server. They cost no privacy (post-processing).
        batch: b, generated points and privatized records per step, divided evenly among the
            randomized labels.
        optimizer: the generator's optimiser.
        clients: K.
        finite_batch_factor: scales λ for minibatches (→ 1 as b grows); below 1 the matched
            channel is a narrower one, so it is reported.
        loss: "matched" (Theorem 1), or one of its comparisons: "unregularised", "noisy_w1",
            "noisy_wgan", "debiased", "denoised" (see `fedsink.strategies.privatize_once.loss`).
        critic: of "noisy_wgan"; None: `NoisyCriticSettings` as it stands.
        cost, lam: override the matched cost and λ; need `unmatched`.
        unmatched: declares that cost and λ are not those of Theorem 1.
        solver: "converged", or "annealed" for the schedule of DP-Sinkhorn.
        max_iterations, tolerance: of "converged": Sinkhorn iterations, L1 marginal error at which
            they stop.
        backend: who solves: "native", or the library "geomloss" or "keops".
        chunk_size: records per upload message.
        run: public name of the run, stated in every request.
        shuffling: what a trusted shuffler would add to the guarantee, for privacy.json; None
            where nobody shuffles.
        quorum: how many of the clients must upload their records, as in `Quorum`.

    Raises:
        ConfigError: a value out of range, or two that contradict each other.
    """

    name: ClassVar[str] = "privatize_once"
    mode: ClassVar[str] = "ldp"
    title: ClassVar[str] = "Sinkhorn GAN on LDP data"

    leaves: ClassVar[str] = "its records, each privatized, in random order"

    plan: LocalPlan
    rounds: int
    batch: int
    optimizer: OptimizerSettings
    clients: int
    finite_batch_factor: float = 1.0
    loss: str = "matched"
    cost: str | None = None
    lam: float | None = None
    unmatched: bool = False
    solver: str = "converged"
    max_iterations: int = 30
    tolerance: float = 2e-2
    backend: str = NATIVE
    chunk_size: int = 4096
    run: str = UNNAMED
    shuffling: dict[str, Any] | None = None
    quorum: float | None = None
    critic: NoisyCriticSettings | None = None

    def __post_init__(self) -> None:
        values, where = vars(self), "strategy."
        integer(values, "rounds")
        integer(values, "batch", minimum=2, where=where)
        within(values, "finite_batch_factor", "(0, 1]", where=where)
        choice(values, "loss", *LOSSES, where=where)
        flag(values, "unmatched", where=where)
        integer(values, "max_iterations", where=where)
        number(values, "tolerance", where=where)
        check_quorum(self.quorum, self.clients)
        integer(values, "chunk_size", where=where)
        if self.lam is not None:
            positive(values, "lam", where=where)
        _ = self.transport  # refuses cost, solver and backend
        self._check_loss()

    @classmethod
    def from_config(cls, config: Configuration, run: str) -> Self:
        """Settings of the local mode.

        Raises:
            FedsinkError: a value is unknown, out of range, or belongs to the other mode.
        """
        if config.noise.shared != LOCAL_NOISE:
            raise ConfigError(
                f"noise.share={config.noise.share} belongs to mode=central: in mode=ldp records "
                "are used one by one, and nothing adds them up."
            )
        for key, value, why in (
            ("adjacency", "replace-one", "a record is protected against any other value of it"),
            ("accountant", "pld", "image and label are summed, and nothing is accounted"),
            ("capacity", None, "there are no batches"),
        ):
            if getattr(config, key) != value:
                raise ConfigError(
                    f"{key}={getattr(config, key)} belongs to mode=central: in mode=ldp {why}."
                )
        if config.eps == math.inf:
            raise ConfigError(
                "eps=inf belongs to mode=central: in mode=ldp the loss is matched to the noise, "
                "and without noise there is none."
            )
        chosen = config.strategy
        check_backend(chosen["backend"])
        plan, factor = local_plan(
            config.recipe,
            mechanism=config.mechanism,
            chosen_map=given(config.map),
            shape=config.data.shape,
            classes=len(config.classes),
            eps=config.eps,
            sigma=config.sigma,
            delta=config.delta,
        )
        stated = chosen["finite_batch_factor"]
        return cls(
            plan=plan,
            rounds=config.recipe["rounds"] if config.rounds is None else config.rounds,
            batch=chosen["batch"],
            optimizer=strictly(OptimizerSettings, chosen["optimizer"], "strategy.optimizer"),
            clients=config.clients,
            finite_batch_factor=factor if stated is None else stated,
            loss=chosen["loss"],
            cost=chosen["cost"],
            lam=chosen["lam"],
            unmatched=chosen["unmatched"],
            solver=chosen["solver"],
            max_iterations=chosen["max_iterations"],
            tolerance=chosen["tolerance"],
            backend=chosen["backend"],
            chunk_size=chosen["chunk_size"],
            run=run,
            shuffling=_shuffling(config, plan),
            quorum=chosen["quorum"],
            critic=_critic(chosen["critic"]),
        )

    def check_sizes(self, sizes: Sequence[int]) -> None:
        """Refuse a client without records: a server sees how many pictures each one uploads.

        Raises:
            ConfigError: there is one.
        """
        if min(sizes) == 0:
            raise ConfigError(
                "mode=ldp shows a server how many records a client uploads, so that none can take "
                "part without any: leave out partition.keep."
            )

    def asked(self, client: int, rounds: int) -> int:
        """Once, before the first training step."""
        return 1

    def reply(self, count: int, weights: int) -> RecordDict:
        """A chunk of so many records."""
        values = torch.zeros(count, self.plan.map.dimension)
        return PrivatizeReply(values, torch.zeros(count, dtype=torch.int64), 1).to_record()

    def statement(self, noise: str) -> dict[str, Any]:
        """The content of privacy.json, with the loss that the server minimises."""
        training = {
            "loss": self.loss,
            "cost": "l2, by a critic" if self.loss in BY_CRITIC else self.effective_cost,
            "lam": self.effective_lam,
            "finite_batch_factor": self.finite_batch_factor,
            "matched": self.matched,
            "matched_cost": asdict(self.plan.matched_cost),
        }
        if self.loss in BY_CRITIC:
            training["critic"] = asdict(self.noisy_critic)
        return local_statement(self.plan, self.clients, noise, training, shuffling=self.shuffling)

    def identity(self) -> dict[str, Any]:
        """All except `shuffling`, which says something of the run and changes nothing in it."""
        identity = super().identity()
        del identity["shuffling"]
        return identity

    def _check_loss(self) -> None:
        own = self.cost is not None or self.lam is not None
        if own and self.loss != "matched":
            raise ConfigError(
                f"strategy.loss={self.loss} has a cost and λ of its own: leave strategy.cost and "
                "strategy.lam out."
            )
        if own and not self.unmatched:
            matched = self.plan.matched_cost
            raise ConfigError(
                f"The {self.plan.mechanism} mechanism is inverted by cost={matched.cost} and "
                f"λ={matched.lam:.4g} (Theorem 1); to train with strategy.cost or strategy.lam "
                "of your own, say strategy.unmatched=true, and the run will be reported so."
            )
        if self.loss == "denoised":
            check_denoisable(self.plan.map)
        if self.loss not in ENTROPIC and self.backend != NATIVE:
            way = "left to a critic" if self.loss in BY_CRITIC else "exact transport"
            raise ConfigError(
                f"strategy.loss={self.loss} is {way}, which strategy.backend={self.backend} does "
                "not solve: leave one of them out."
            )
        if self.critic is not None and self.loss not in BY_CRITIC:
            raise ConfigError(
                f"strategy.critic belongs to strategy.loss=noisy_wgan; strategy.loss={self.loss} "
                "trains none: leave it out."
            )
        if self.loss in BY_CRITIC and self.plan.classes > 1:
            raise ConfigError(
                f"strategy.loss={self.loss} compares records without labels: say "
                "conditional=false, or choose another loss."
            )

    @property
    def matched(self) -> bool:
        """Whether it is the loss of Theorem 1 (at a finite-batch factor of 1)."""
        return self.loss == "matched" and not self.unmatched

    @property
    def noisy_critic(self) -> NoisyCriticSettings:
        """The critic of `noisy_wgan`."""
        return self.critic or NoisyCriticSettings()

    @property
    def effective_cost(self) -> str:
        """The cost trained with."""
        if self.loss == "noisy_w1":
            return "l1"
        return self.cost or self.plan.matched_cost.cost

    @property
    def transport(self) -> tuple[Cost, Solver]:
        """The cost and the solver of an entropic loss, as the backend has them."""
        solver = solver_named(self.solver)
        if isinstance(solver, ConvergedSolver):
            solver = ConvergedSolver(self.max_iterations, self.tolerance)
        return by_backend(self.backend, cost_named(self.effective_cost), solver)

    @property
    def effective_lam(self) -> float:
        """The λ trained with, finite-batch factor included; 0 for exact transport."""
        if self.loss not in ENTROPIC:
            return 0.0
        lam = self.plan.matched_cost.lam if self.lam is None else self.lam
        return lam * self.finite_batch_factor


def _critic(stated: Mapping[str, Any] | None) -> NoisyCriticSettings | None:
    return None if stated is None else strictly(NoisyCriticSettings, stated, "strategy.critic")


def _shuffling(config: Configuration, plan: LocalPlan) -> dict[str, Any] | None:
    if config.shuffler == "none":
        return None
    return shuffling_statement(
        plan.total_epsilon, plan.delta, config.data.nominal_records, config.shuffler_delta
    )
