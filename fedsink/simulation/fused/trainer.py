"""The trainer's step with learning rate and averaging weight as tensors in fixed places."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedsink.errors import ConfigError
from fedsink.models import Generator
from fedsink.strategies.trainer import OptimizerSettings, Trainer


class StaticTrainer(Trainer):
    """`Trainer` whose step is the same operations in every round, and never looks at a value.

    Args:
        generator: trained in place.
        settings: optimiser settings.
        steps: total number of steps, for the schedule.

    Raises:
        ConfigError: another optimiser than Adam.
    """

    def __init__(self, generator: Generator, settings: OptimizerSettings, steps: int) -> None:
        super().__init__(generator, settings, steps)
        if settings.name != "adam":
            raise ConfigError(
                f"engine=fused steps with strategy.optimizer.name=adam, not {settings.name}: "
                "choose it, or engine=local."
            )
        device = next(generator.parameters()).device
        # A GPU's optimiser counts its steps there; on a CPU it reads them.
        self._counts_on_device = device.type == "cuda"
        self._rate = torch.zeros((), device=device)
        self.optimizer = torch.optim.Adam(
            generator.parameters(),
            lr=self._rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            capturable=self._counts_on_device,
            fused=self._counts_on_device,
        )
        averaged = {} if self.ema is None else self.ema.model.state_dict()
        present = generator.state_dict()
        floating = [key for key, value in averaged.items() if value.is_floating_point()]
        self._averages = [averaged[key] for key in floating]
        self._values = [present[key] for key in floating]

    def weight(self, number: int) -> float:
        """How far step `number` moves the average towards the weights."""
        return 0.0 if self.ema is None else 1.0 - self.ema.decay_at(number - 1)

    def apply(self, output: Tensor, gradient: Tensor, rate: Tensor, weight: Tensor) -> None:
        """Backpropagate ∂L/∂output into the weights, step, and move the average.

        Args:
            output: what the generator made, with its graph.
            gradient: of its shape.
            rate: learning rate, 0-dimensional, on the weights' device.
            weight: of the new weights in the average, likewise.
        """
        self.optimizer.zero_grad(set_to_none=True)
        output.backward(gradient.to(output))
        self._rate.copy_(rate)
        self.optimizer.step()
        with torch.no_grad():
            if self._averages:
                difference = torch._foreach_sub(self._values, self._averages)
                torch._foreach_mul_(difference, weight)
                torch._foreach_add_(self._averages, difference)

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        super().load_state(tensors, values)
        for parameter, state in self.optimizer.state.items():
            if self._counts_on_device:
                state["step"] = state["step"].to(parameter.device)
