"""Public settings of a run of the ldp mode."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from fedsink.configuration import Configuration, noise_entries
from fedsink.errors import ConfigError
from fedsink.privacy import LOCAL_NOISE
from fedsink.privacy.accounting.amplification import shuffling_statement
from fedsink.protocol.privatize_once import LocalPlan, PrivatizeReply
from fedsink.protocol.requests import UNNAMED
from fedsink.strategies.privatize_once.budget import local_plan
from fedsink.strategies.privatize_once.loss import loss_named
from fedsink.strategies.strategy_settings import StrategySettings, check_quorum
from fedsink.strategies.trainer import OptimizerSettings
from fedsink.transport import (
    NATIVE,
    ConvergedSolver,
    GroundCost,
    Solver,
    by_backend,
    check_backend,
    cost_named,
    solver_named,
)
from fedsink.values import checks, given, strictly

if TYPE_CHECKING:
    from flwr.app import RecordDict


@dataclass(frozen=True)
class PrivatizeOnceSettings(StrategySettings):
    """Everything about a run of the ldp mode; all of it is public.

    Attributes:
        plan: releases each record of a client once.
        rounds: training steps of the server. They cost no privacy (post-processing).
        batch: b, generated points and privatized records per step, divided evenly among the
            randomized labels.
        optimizer: the generator's optimiser.
        clients: K.
        finite_batch_factor: scales λ for minibatches (→ 1 as b grows); below 1 the matched
            channel is a narrower one, so it is reported.
        loss: name of a `LocalLoss`; "matched" is that of Theorem 1.
        critic: options of a loss with a critic; None: its defaults.
        cost, lam: replace the matched cost and λ; need `unmatched`.
        unmatched: declares that cost and λ are not those of Theorem 1.
        solver: "converged", or "annealed" for the schedule of DP-Sinkhorn.
        max_iterations, tolerance: of "converged": Sinkhorn iterations, L1 marginal error at which
            they stop.
        backend: solves the problems: "native", or the library "geomloss" or "keops".
        chunk_size: records per upload message.
        run: public name of the run, stated in every request.
        shuffling: the addition of a trusted shuffler to the guarantee, for privacy.json; None
            where nobody shuffles.
        quorum: number of clients that must upload their records, as in `Quorum`.

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
    critic: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        checks.count("rounds", self.rounds)
        checks.count("strategy.batch", self.batch, minimum=2)
        checks.within("strategy.finite_batch_factor", self.finite_batch_factor, "(0, 1]")
        checks.flag("strategy.unmatched", self.unmatched)
        checks.count("strategy.max_iterations", self.max_iterations)
        checks.number("strategy.tolerance", self.tolerance)
        check_quorum(self.quorum, self.clients)
        if self.shuffled_reports and self.quorum is not None:
            raise ConfigError(
                f"shuffler=trusted states ε for the reports of all clients, and strategy.quorum="
                f"{self.quorum} lets some of them be missing: leave one of them out."
            )
        checks.count("strategy.chunk_size", self.chunk_size)
        if self.lam is not None:
            checks.positive("strategy.lam", self.lam)
        _ = self.transport  # refuses cost, solver and backend
        self._check_loss()

    @classmethod
    def from_config(cls, config: Configuration, run: str) -> Self:
        """Reads the settings of the ldp mode.

        Raises:
            FedsinkError: a value is unknown, out of range, or belongs to the central mode.
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
            shuffling=None
            if config.shuffler == "none"
            else shuffling_statement(
                plan.total_epsilon, plan.delta, config.data.nominal_records, config.shuffler_delta
            ),
            quorum=chosen["quorum"],
            critic=chosen["critic"],
        )

    def check_sizes(self, sizes: Sequence[int]) -> None:
        """Refuses a client without records, and fewer records than ε is stated for.

        A server sees how many records a client uploads.
        """
        if min(sizes) == 0:
            raise ConfigError(
                "mode=ldp shows a server how many records a client uploads, so that none can take "
                "part without any: leave out partition.keep."
            )
        self.check_reports(sum(sizes))

    def check_reports(self, count: int) -> None:
        """Refuses fewer reports than the stated ε behind a shuffler is for: fewer hide less.

        Raises:
            ConfigError: naming both numbers.
        """
        if count < self.shuffled_reports:
            raise ConfigError(
                f"shuffler=trusted states ε for {self.shuffled_reports} shuffled reports, and "
                f"there are {count}: set data.nominal_records={count}, or leave the shuffler out."
            )

    def asked(self, client: int, rounds: int) -> int:
        """Returns 1: a client uploads its records once, before the first training step."""
        return 1

    def reply(self, count: int, weights: int) -> RecordDict:
        """Returns a chunk of so many records."""
        values = torch.zeros(count, self.plan.map.dimension)
        return PrivatizeReply(values, torch.zeros(count, dtype=torch.int64), 1).to_record()

    def statement(self, noise: str) -> dict[str, Any]:
        """Returns the content of privacy.json, with the loss that the server minimises."""
        training = {
            "loss": self.loss,
            "cost": None,  # its place; the loss states it
            "lam": self.effective_lam,
            "finite_batch_factor": self.finite_batch_factor,
            "matched": self.matched,
            "matched_cost": asdict(self.plan.matched_cost),
            **loss_named(self.loss).statement(self),
        }
        return {
            **local_statement(self.plan, noise),
            "clients": self.clients,
            "training": training,
            # Beside the local ε and never instead of it.
            **({} if self.shuffling is None else {"shuffling": self.shuffling}),
        }

    def identity(self) -> dict[str, Any]:
        """Returns all values except `shuffling`, which changes nothing in the run."""
        identity = super().identity()
        del identity["shuffling"]
        return identity

    def _check_loss(self) -> None:
        replaced = self.cost is not None or self.lam is not None
        if replaced and self.loss != "matched":
            raise ConfigError(
                f"strategy.loss={self.loss} fixes its cost and λ: leave strategy.cost and "
                "strategy.lam out."
            )
        if replaced and not self.unmatched:
            matched = self.plan.matched_cost
            raise ConfigError(
                f"The {self.plan.mechanism} mechanism is inverted by cost={matched.cost} and "
                f"λ={matched.lam:.4g} (Theorem 1); to train with another strategy.cost or "
                "strategy.lam, set strategy.unmatched=true, and the run will be reported so."
            )
        loss = loss_named(self.loss)
        if loss.instead is not None and self.backend != NATIVE:
            raise ConfigError(
                f"strategy.loss={self.loss} is {loss.instead}, which strategy.backend="
                f"{self.backend} does not solve: leave one of them out."
            )
        if self.critic is not None and not loss.by_critic:
            raise ConfigError(
                "strategy.critic belongs to a loss with a critic, as noisy_wgan of fedsink-papers; "
                f"strategy.loss={self.loss} trains none: leave it out."
            )
        loss.check(self)

    @property
    def shuffled_reports(self) -> int:
        """Number of reports that the ε behind a shuffler is stated for; 0 where none is stated."""
        stated = self.shuffling or {}
        return 0 if stated.get("epsilon") is None else int(stated["reports"])

    @property
    def matched(self) -> bool:
        """Tells whether the loss is that of Theorem 1 (at a finite-batch factor of 1)."""
        return self.loss == "matched" and not self.unmatched

    @property
    def effective_cost(self) -> str:
        """Name of the cost trained with."""
        return loss_named(self.loss).cost(self)

    @property
    def transport(self) -> tuple[GroundCost, Solver]:
        """The cost and the solver of an entropic loss, as the backend has them."""
        solver = solver_named(self.solver)
        if isinstance(solver, ConvergedSolver):
            solver = ConvergedSolver(self.max_iterations, self.tolerance)
        return by_backend(self.backend, cost_named(self.effective_cost), solver)

    @property
    def effective_lam(self) -> float:
        """λ trained with, finite-batch factor included; 0 without Sinkhorn's iterations."""
        if loss_named(self.loss).instead is not None:
            return 0.0
        lam = self.plan.matched_cost.lam if self.lam is None else self.lam
        return lam * self.finite_batch_factor


def local_statement(plan: LocalPlan, noise: str) -> dict[str, Any]:
    """Returns the entries of privacy.json that follow from the plan of the local mode.

    Args:
        plan: releases each record once.
        noise: kind of the clients' noise key, or "node" where each owner decides.
    """
    image, label = plan.image_mechanism, plan.label_mechanism
    return {
        "model": "ldp",
        "epsilon": plan.total_epsilon,
        "delta": plan.delta,
        "unit": "record",
        "adjacency": "replace-one",
        "mechanism": plan.mechanism + (" + randomized response on the label" if label else ""),
        "accountant": "summation of image and label (basic composition)",
        "epsilon_image": image.epsilon,
        "epsilon_label": None if label is None else label.epsilon,
        "map": plan.map.to_dict(),
        "sensitivity": plan.map.sensitivity,
        "sensitivity_norm": plan.map.norm,
        "sigma": image.scale,
        "rounds": 1,
        "rounds_per_record": 1,
        **noise_entries(noise),
        "protected": (
            "Every single record, before it leaves its client, against everybody, the server "
            "included: whatever is computed from the uploads later, for however long, costs "
            "nothing more. The guarantee holds between any two values of the record."
        ),
        "not_protected": (
            "That a client takes part and how many records it holds; a person with several "
            "records (their ε add up); records that are strongly correlated with one another."
        ),
    }
