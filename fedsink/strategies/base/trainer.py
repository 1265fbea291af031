"""Steps of the generator's optimiser, from gradients of its output."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsink.errors import ConfigError, ModelError
from fedsink.models import Ema, Generator
from fedsink.values import checks


@dataclass(frozen=True)
class OptimizerSettings:
    """An optimiser with warm-up, cosine decay and an average of the weights.

    Attributes:
        lr: peak learning rate.
        betas: Adam's (β₁, β₂); SGD takes β₁ as its momentum, RMSprop β₂ as its decay.
        weight_decay: L2 penalty.
        warmup: steps of linear warm-up.
        schedule: "cosine" (towards zero behind the last step) or "constant".
        ema: decay of the exponential moving average of the weights; 0 keeps none.
        name: "adam", "sgd" (with heavy-ball momentum) or "rmsprop".
    """

    lr: float
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    warmup: int = 50
    schedule: str = "cosine"
    ema: float = 0.998
    name: str = "adam"

    def __post_init__(self) -> None:
        checks.choice("strategy.optimizer.name", self.name, "adam", "sgd", "rmsprop")
        checks.positive("strategy.optimizer.lr", self.lr)
        if len(self.betas) != 2:
            raise ConfigError(
                f"strategy.optimizer.betas must be two numbers in [0, 1), not {self.betas}."
            )
        for beta in self.betas:
            checks.within("strategy.optimizer.betas", beta, "[0, 1)")
        checks.number("strategy.optimizer.weight_decay", self.weight_decay)
        checks.choice("strategy.optimizer.schedule", self.schedule, "cosine", "constant")
        checks.count("strategy.optimizer.warmup", self.warmup, minimum=0)
        checks.within("strategy.optimizer.ema", self.ema, "[0, 1)")


class Trainer:
    """The generator's optimiser and averaged weights, with everything needed to resume.

    Args:
        generator: trained in place.
        settings: optimiser settings.
        steps: total number of steps, for the schedule.
    """

    def __init__(self, generator: Generator, settings: OptimizerSettings, steps: int) -> None:
        generator.register_forward_hook(_refuse_divergence)
        self.generator = generator
        self.settings = settings
        self.steps = steps
        self.optimizer = _optimizer(generator, settings)
        self.ema = Ema(generator, settings.ema) if settings.ema > 0 else None

    @property
    def averaged(self) -> Generator:
        """The generator to sample from."""
        return self.ema.model if self.ema else self.generator

    def step(self, output: Tensor, gradient: Tensor, number: int) -> None:
        """Backpropagates ∂L/∂output into the weights and takes step `number` (from 1)."""
        self.optimizer.zero_grad(set_to_none=True)
        output.backward(gradient.to(output))
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(number)
        self.optimizer.step()
        if self.ema:
            self.ema.update(self.generator)

    def rate(self, number: int) -> float:
        """Returns the learning rate of step `number` (from 1)."""
        factor = min(1.0, number / max(1, self.settings.warmup))
        if self.settings.schedule == "cosine":
            factor = factor * 0.5 * (1.0 + math.cos(math.pi * (number - 1) / self.steps))
        return self.settings.lr * factor

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Returns weights, the optimiser's moments and the average, by name."""
        tensors = {f"generator.{k}": v for k, v in self.generator.state_dict().items()}
        for name, parameter in self.generator.named_parameters():
            moments = self.optimizer.state.get(parameter, {})
            tensors |= {f"{self.settings.name}.{name}.{k}": v for k, v in moments.items()}
        if self.ema:
            tensors |= {f"ema.{k}": v for k, v in self.ema.model.state_dict().items()}
        values = {"ema_updates": self.ema.updates if self.ema else 0}
        return tensors, values

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        self.generator.load_state_dict(_part(tensors, "generator."))
        moments = _part(tensors, f"{self.settings.name}.")
        for name, parameter in self.generator.named_parameters():
            if of_parameter := _part(moments, f"{name}."):
                self.optimizer.state[parameter] = {
                    k: v.clone() if k == "step" else v.to(parameter.device, copy=True)
                    for k, v in of_parameter.items()
                }
        if self.ema:
            self.ema.model.load_state_dict(_part(tensors, "ema."))
            self.ema.updates = int(values["ema_updates"])


def _refuse_divergence(generator: torch.nn.Module, inputs: Any, output: Tensor) -> None:
    """Ends a training whose pictures are no numbers any more: no step repairs it."""
    if not bool(output.isfinite().all()):
        raise ModelError(
            "The training diverged: what the generator draws is not finite. Start it again with a "
            "lower strategy.optimizer.lr or a longer strategy.optimizer.warmup."
        )


def _optimizer(generator: Generator, settings: OptimizerSettings) -> torch.optim.Optimizer:
    weights, rate, decay = list(generator.parameters()), settings.lr, settings.weight_decay
    first, second = settings.betas
    if settings.name == "sgd":
        return torch.optim.SGD(weights, rate, momentum=first, weight_decay=decay)
    if settings.name == "rmsprop":
        return torch.optim.RMSprop(weights, rate, alpha=second, weight_decay=decay)
    # On a CPU one pass over the weights takes half the time of one per operation.
    fused = True if weights[0].device.type == "cpu" else None
    return torch.optim.Adam(weights, rate, (first, second), weight_decay=decay, fused=fused)


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
