"""What a local-mode run is, in public numbers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError
from fedsink.privacy import LOCAL_NOISE
from fedsink.privacy.accounting.amplification import shuffling_statement
from fedsink.protocol import LocalPlan
from fedsink.protocol.run import UNNAMED
from fedsink.reporting.statement import local_statement
from fedsink.strategies.privatize_once.budget import local_plan
from fedsink.strategies.privatize_once.denoising import check_denoisable
from fedsink.strategies.settings import StrategySettings, noise_share
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
from fedsink.values import Config, flag, given, integer, number, positive

ENTROPIC = ("matched", "debiased")
EXACT = ("unregularised", "noisy_w1", "denoised")
LOSSES = ENTROPIC + EXACT
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
            "debiased", "denoised" (see `fedsink.strategies.privatize_once.loss`).
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

    Raises:
        ConfigError: a value out of range, or two that contradict each other.
    """

    name: ClassVar[str] = "privatize_once"
    mode: ClassVar[str] = "ldp"
    title: ClassVar[str] = "Sinkhorn GAN on LDP data"

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

    def __post_init__(self) -> None:
        self._check_loss()
        if not 0.0 < self.finite_batch_factor <= 1.0:
            raise ConfigError(
                f"strategy.finite_batch_factor must be in (0, 1], not {self.finite_batch_factor}."
            )
        if self.batch < 2:
            raise ConfigError(f"strategy.batch must be at least 2, not {self.batch}.")
        if self.lam is not None and not 0.0 < self.lam < math.inf:
            raise ConfigError(f"strategy.lam must be a positive number, not {self.lam}.")
        _ = self.transport  # refuses cost, solver and backend
        if self.loss in EXACT and self.backend != NATIVE:
            raise ConfigError(
                f"strategy.loss={self.loss} is exact transport, which strategy.backend="
                f"{self.backend} does not solve: leave one of them out."
            )

    @classmethod
    def from_config(cls, config: Config, data: DataSpec, clients: int, run: str) -> Self:
        """Settings of the local mode.

        Raises:
            FedsinkError: a value is unknown, out of range, or belongs to the other mode.
        """
        chosen = config["strategy"]
        if (share := noise_share(config)) != LOCAL_NOISE:
            raise ConfigError(
                f"noise.share={share.name} belongs to mode=central: in mode=ldp records are used "
                "one by one, and nothing adds them up."
            )
        for key, value, why in (
            ("adjacency", "replace-one", "a record is protected against any other value of it"),
            ("accountant", "pld", "image and label are summed, and nothing is accounted"),
            ("capacity", None, "there are no batches"),
        ):
            if config[key] != value:
                raise ConfigError(
                    f"{key}={config[key]} belongs to mode=central: in mode=ldp {why}."
                )
        if config["eps"] == math.inf:
            raise ConfigError(
                "eps=inf belongs to mode=central: in mode=ldp the loss is matched to the noise, "
                "and without noise there is none."
            )
        check_backend(str(chosen["backend"]))
        plan, factor = local_plan(
            config["recipe"],
            mechanism=config["mechanism"],
            chosen_map=given(config["map"]),
            shape=data.shape,
            classes=len(data.classes) if config["conditional"] else 1,
            eps=config["eps"],
            sigma=config["sigma"],
            delta=config["delta"],
        )
        if chosen["finite_batch_factor"] is not None:
            factor = number(chosen, "finite_batch_factor", minimum=0.0, where="strategy.")
        return cls(
            plan=plan,
            rounds=integer(config if config["rounds"] is not None else config["recipe"], "rounds"),
            batch=integer(chosen, "batch", minimum=2, where="strategy."),
            optimizer=OptimizerSettings.from_config(chosen),
            clients=clients,
            finite_batch_factor=factor,
            loss=str(chosen["loss"]),
            cost=chosen["cost"],
            lam=None if chosen["lam"] is None else positive(chosen, "lam", where="strategy."),
            unmatched=flag(chosen, "unmatched", where="strategy."),
            solver=str(chosen["solver"]),
            max_iterations=integer(chosen, "max_iterations", minimum=1, where="strategy."),
            tolerance=number(chosen, "tolerance", minimum=0.0, where="strategy."),
            backend=str(chosen["backend"]),
            chunk_size=integer(chosen, "chunk_size", minimum=1, where="strategy."),
            run=run,
            shuffling=_shuffling(config, data, plan),
        )

    def statement(self, noise: str) -> dict[str, Any]:
        """The content of privacy.json, with the loss that the server minimises."""
        training = {
            "loss": self.loss,
            "cost": self.effective_cost,
            "lam": self.effective_lam,
            "finite_batch_factor": self.finite_batch_factor,
            "matched": self.matched,
            "matched_cost": asdict(self.plan.matched_cost),
        }
        return local_statement(self.plan, self.clients, noise, training, shuffling=self.shuffling)

    def identity(self) -> dict[str, Any]:
        """All except `shuffling`, which says something of the run and changes nothing in it."""
        identity = super().identity()
        del identity["shuffling"]
        return identity

    def _check_loss(self) -> None:
        own = self.cost is not None or self.lam is not None
        if self.loss not in LOSSES:
            *most, last = LOSSES
            raise ConfigError(f"strategy.loss is {', '.join(most)} or {last}, not {self.loss!r}.")
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

    @property
    def matched(self) -> bool:
        """Whether it is the loss of Theorem 1 (at a finite-batch factor of 1)."""
        return self.loss == "matched" and not self.unmatched

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
        if self.loss in EXACT:
            return 0.0
        lam = self.plan.matched_cost.lam if self.lam is None else self.lam
        return lam * self.finite_batch_factor


def _shuffling(config: Config, data: DataSpec, plan: LocalPlan) -> dict[str, Any] | None:
    if config["shuffler"] == "none":
        return None
    delta = number(config, "shuffler_delta", minimum=0.0)
    return shuffling_statement(plan.total_epsilon, plan.delta, data.nominal_records, delta)
