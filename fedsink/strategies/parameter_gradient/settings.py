"""Everything about a run with noise on the gradient of the generator's weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from fedsink.errors import ConfigError
from fedsink.protocol.parameter_gradient import ParameterReply
from fedsink.strategies.dp_sinkhorn.settings import DPSinkhornSettings

if TYPE_CHECKING:
    from flwr.app import RecordDict


@dataclass(frozen=True)
class ParameterGradientSettings(DPSinkhornSettings):
    """A DP-Sinkhorn run whose clip bound Δ and noise are in units of the weights' gradient."""

    name: ClassVar[str] = "parameter_gradient"
    mechanism: ClassVar[str] = (
        "Poisson-subsampled Gaussian on clipped gradients of the generator's weights"
    )

    leaves: ClassVar[str] = "clipped, noised gradients of the generator's weights"

    def reply(self, count: int, weights: int) -> RecordDict:
        """A gradient of the weights, for the only use that a message asks for."""
        return ParameterReply(torch.zeros(weights)).to_record()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.uses_per_message > 1:
            raise ConfigError(
                "strategy=parameter_gradient sends one generator a message: "
                f"strategy.uses_per_message is 1, not {self.uses_per_message}."
            )
        if self.self_term.tether is not None:
            raise ConfigError(
                "strategy=parameter_gradient has a gradient of the weights and none of the rows: "
                f"none is drawn back. Set strategy.tether=null, not {self.self_term.tether:g}."
            )
