"""What a local-mode run is, in public numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedsink.errors import ConfigError
from fedsink.protocol import LocalPlan
from fedsink.protocol.run import UNNAMED
from fedsink.strategies.denoising import check_denoisable
from fedsink.strategies.trainer import OptimizerSettings
from fedsink.transport import cost_named

ENTROPIC = ("matched", "debiased")
EXACT = ("unregularised", "noisy_w1", "denoised")
LOSSES = ENTROPIC + EXACT
"""What the server may minimise; `fedsink.strategies.local_loss` says what each of them is."""


@dataclass(frozen=True)
class PrivatizeOnceSettings:
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
            "debiased", "denoised" (see `fedsink.strategies.local_loss`).
        cost, lam: override the matched cost and λ; need `unmatched`.
        unmatched: declares that cost and λ are not those of Theorem 1.
        max_iterations, tolerance: Sinkhorn iterations, L1 marginal error at which they stop.
        chunk_size: records per upload message.
        run: public name of the run, stated in every request.

    Raises:
        ConfigError: a value out of range, or two that contradict each other.
    """

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
    max_iterations: int = 30
    tolerance: float = 2e-2
    chunk_size: int = 4096
    run: str = UNNAMED

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
        cost_named(self.effective_cost)

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
    def effective_lam(self) -> float:
        """The λ trained with, finite-batch factor included; 0 for exact transport."""
        if self.loss in EXACT:
            return 0.0
        lam = self.plan.matched_cost.lam if self.lam is None else self.lam
        return lam * self.finite_batch_factor
