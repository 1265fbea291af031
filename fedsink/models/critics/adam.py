"""Adam for stacked weights, whose rows take their steps or skip them one by one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_BETAS = (0.5, 0.9)
_EPSILON = 1e-8


@dataclass
class Adam:
    """Adam with (β₁, β₂) = (0.5, 0.9), WGAN-GP's, on M rows of weights.

    Attributes:
        mean: running mean of the gradients, (M, W).
        square: running mean of their squares, (M, W).
        steps: how many steps each row has taken, (M,) float32.
    """

    mean: Tensor
    square: Tensor
    steps: Tensor

    @classmethod
    def start(cls, weights: Tensor) -> Adam:
        """The state before the first step of weights (M, W)."""
        zeros = torch.zeros_like(weights)
        return cls(zeros, zeros.clone(), weights.new_zeros(len(weights)))

    @torch.no_grad()
    def step(self, weights: Tensor, gradient: Tensor, rate: float, active: Tensor) -> None:
        """One step of the active rows, in place; the others stay as they are, at the same work.

        Args:
            weights: (M, W).
            gradient: of each row's own loss, (M, W).
            rate: learning rate.
            active: which rows take the step, (M,) bool.
        """
        first, second = _BETAS
        self.steps += active
        taken = self.steps.clamp(min=1.0)
        moves = active.to(weights).unsqueeze(1)
        gradient = torch.where(active.unsqueeze(1), gradient, 0.0)
        self.mean.lerp_(gradient, (1.0 - first) * moves)
        self.square.lerp_(gradient.square_(), (1.0 - second) * moves)
        unbiased = (1.0 - second**taken).sqrt_().unsqueeze(1)
        factors = (-rate * unbiased / (1.0 - first**taken).unsqueeze(1)) * moves
        weights.addcdiv_(self.mean * factors, self.square.sqrt().add_(_EPSILON * unbiased))
