"""What the server knows of a run's guarantee: the content of privacy.json."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fedsink.privacy import UnprotectedPlan
from fedsink.reporting.statement import central_statement, local_statement
from fedsink.reporting.unprotected import unprotected_statement
from fedsink.server.settings import ServerSettings
from fedsink.strategies import DPSinkhornSettings, ParameterGradientSettings

_OF_WEIGHTS = "Poisson-subsampled Gaussian on clipped gradients of the generator's weights"


def statement(settings: ServerSettings, noise: str) -> dict[str, Any]:
    """The content of privacy.json.

    Args:
        settings: the run.
        noise: kind of the clients' noise key, or "node" where each owner decides.
    """
    strategy = settings.strategy
    if isinstance(strategy, DPSinkhornSettings):
        if isinstance(strategy.plan, UnprotectedPlan):
            return unprotected_statement(strategy.plan, strategy.clients)
        stated = central_statement(
            strategy.plan, strategy.clients, noise, strategy.accountant, strategy.share
        )
        if isinstance(strategy, ParameterGradientSettings):
            stated["mechanism"] = _OF_WEIGHTS
        return stated
    training = {
        "loss": strategy.loss,
        "cost": strategy.effective_cost,
        "lam": strategy.effective_lam,
        "finite_batch_factor": strategy.finite_batch_factor,
        "matched": strategy.matched,
        "matched_cost": asdict(strategy.plan.matched_cost),
    }
    return local_statement(
        strategy.plan, strategy.clients, noise, training, shuffling=settings.shuffling
    )
