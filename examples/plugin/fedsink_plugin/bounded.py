"""DP-Sinkhorn whose optimiser never sees a gradient longer than a bound.

If the noise of a round is large by chance, the gradient of the generator's weights is long, and
moments and weights remember it. The server shortens the gradient before the optimiser steps. The
replies were released before, so the guarantee is that of DP-Sinkhorn (post-processing).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch.nn.utils import clip_grad_norm_

from fedsink.configuration import Configuration
from fedsink.models import Generator
from fedsink.strategies.dp_sinkhorn.settings import DPSinkhornSettings
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhorn
from fedsink.values import checks


@dataclass(frozen=True)
class BoundedSinkhornSettings(DPSinkhornSettings):
    """Everything about such a run; all of it is public.

    Attributes:
        largest_norm: bound on the L2 norm of the gradient of all weights together.
    """

    name: ClassVar[str] = "bounded_sinkhorn"
    title: ClassVar[str] = "DP-Sinkhorn with bounded steps"

    largest_norm: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("strategy.largest_norm", self.largest_norm)

    @classmethod
    def from_config(cls, config: Configuration, run: str) -> Self:
        """Settings of DP-Sinkhorn, and the bound.

        Raises:
            FedsinkError: a value is unknown or out of range.
        """
        largest = config.strategy["largest_norm"]
        return replace(super().from_config(config, run), largest_norm=largest)


class BoundedSinkhorn(DPSinkhorn):
    """DP-Sinkhorn with the gradient of the weights shortened to at most `largest_norm`.

    Args:
        settings: public parameters.
        generator: trained in place.
        key: keys the server's latents (not secret).
    """

    Settings = BoundedSinkhornSettings

    def __init__(self, settings: BoundedSinkhornSettings, generator: Generator, key: bytes) -> None:
        super().__init__(settings, generator, key)

        def shorten(*_: Any) -> None:
            clip_grad_norm_(generator.parameters(), settings.largest_norm)

        self.trainer.optimizer.register_step_pre_hook(shorten)
