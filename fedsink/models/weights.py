"""The weights of a generator: as one vector, with a gradient pulled back to them, and averaged."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call

from fedsink.errors import ModelError
from fedsink.models.generator_base import Generator

Pullback = Callable[[Tensor], Tensor]
"""The map v ↦ Jᵀv, from (R, D) to (P,)."""


def flat_weights(generator: Generator) -> Tensor:
    """Returns θ, all parameters in the module's order, (P,) float32; differentiable."""
    return torch.cat([parameter.flatten() for parameter in generator.parameters()])


def pullback(
    generator: Generator,
    weights: Tensor,
    z: Tensor,
    labels: Tensor,
    view: Callable[[Tensor], Tensor],
) -> Pullback:
    """Returns v ↦ Jᵀv with J = ∂X/∂θ and X = view(G_θ(z, labels)): one pass forward, one back each.

    It is the chain rule behind Cao et al. 2021, Algorithm 1, line 9, where X's gradient is
    backpropagated into the generator, whose own weights are neither read nor changed: θ (P,) is as
    of `flat_weights`. The function's operations depend on no value of v.
    """
    leaf = weights.detach().requires_grad_()
    named = dict(generator.named_parameters())
    parts = leaf.split([parameter.numel() for parameter in named.values()])
    shaped = {
        name: part.view(parameter.shape)
        for (name, parameter), part in zip(named.items(), parts, strict=True)
    }
    with torch.enable_grad():
        rows = view(functional_call(generator, shaped, (z, labels)))

    def pull(gradient: Tensor) -> Tensor:
        (pulled,) = torch.autograd.grad(rows, leaf, gradient.to(rows), retain_graph=True)
        return pulled

    return pull


class Ema:
    """A moving average θ̄ ← d_t θ̄ + (1 − d_t) θ, whose pictures are steadier than the last step's.

    The warm-up d_t = min(decay, (1 + t)/(10 + t)) forgets the initial weights fast; t counts the
    updates before this one. Parameters and floating-point buffers are averaged, other buffers
    copied.

    Attributes:
        model: a copy of the generator with the averaged weights; it does not require gradients.
        decay: upper limit of d_t, in [0, 1).
        updates: t.

    Raises:
        ModelError: for a decay outside [0, 1).
    """

    def __init__(self, generator: Generator, decay: float) -> None:
        """Starts the average at the generator's present weights."""
        if not 0.0 <= decay < 1.0:
            raise ModelError(f"the decay of a moving average must lie in [0, 1), got {decay}.")
        self.decay = decay
        self.updates = 0
        self.model = copy.deepcopy(generator).requires_grad_(False)

    def decay_at(self, updates: int) -> float:
        """Returns d_t after t = `updates` updates."""
        return min(self.decay, (1 + updates) / (10 + updates))

    @torch.no_grad()
    def update(self, generator: Generator) -> None:
        """Moves the average towards the generator's weights by one step."""
        decay = self.decay_at(self.updates)
        self.updates += 1
        present = generator.state_dict()
        averages, values = [], []
        for key, average in self.model.state_dict().items():
            if average.is_floating_point():
                averages.append(average)
                values.append(present[key])
            else:
                average.copy_(present[key])
        torch._foreach_lerp_(averages, values, 1.0 - decay)
