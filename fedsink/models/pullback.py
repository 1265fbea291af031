"""From a gradient of a generator's output to the gradient of its weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call

from fedsink.models.base import Generator

Pullback = Callable[[Tensor], Tensor]
"""The map v ↦ Jᵀv, from (R, D) to (P,)."""


def flat_weights(generator: Generator) -> Tensor:
    """θ, every parameter in the module's order, (P,) float32; differentiable."""
    return torch.cat([parameter.flatten() for parameter in generator.parameters()])


def pullback(
    generator: Generator,
    weights: Tensor,
    z: Tensor,
    labels: Tensor,
    view: Callable[[Tensor], Tensor],
) -> Pullback:
    """Return v ↦ Jᵀv with J = ∂X/∂θ and X = view(G_θ(z, labels)): one pass forward, one back each.

    Source: the chain rule behind Cao et al. 2021, Algorithm 1, line 9, where X's gradient is
    backpropagated into the generator.

    Args:
        generator: the architecture; its own weights are neither read nor changed.
        weights: θ, (P,), as of `flat_weights`.
        z: latents, (R, latent_dim).
        labels: (R,) int64.
        view: maps images to rows of D coordinates; differentiable.

    Returns:
        A function of v, (R, D), that returns (P,) float32 on the weights' device. Its operations
        depend on no value of v.
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
