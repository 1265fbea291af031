"""Many networks of one architecture as rows of one matrix of weights, and Adam for such rows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import one_hot

if TYPE_CHECKING:
    from fedsink.privacy.randomness.noise import Stream

_BETAS = (0.5, 0.9)
_EPSILON = 1e-8


class Stacked(ABC):
    """An architecture of M networks, whose weights are the rows of one matrix (M, W).

    An object holds no weights. Every method computes all networks in one batch, so that its cost
    and its operations depend only on public sizes. Network m's results depend only on row m.

    Attributes:
        dimension: D, coordinates of a point.
        classes: L, number of labels.
    """

    dimension: int
    classes: int

    @property
    @abstractmethod
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of one network's arrays, in the order of a row of weights."""

    @property
    @abstractmethod
    def deviations(self) -> Mapping[str, float]:
        """Standard deviations of the arrays' initial normal weights; 0 starts at zero."""

    @property
    def size(self) -> int:
        """W, number of weights of one network."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def initial(self, stream: Stream) -> Tensor:
        """Returns the first weights of every network, float32 (W,): public where the stream is."""
        deviations = self.deviations
        arrays = [
            deviations[name] * stream.normal(math.prod(shape))
            for name, shape in self.shapes.items()
        ]
        return torch.cat(arrays).to(torch.float32)

    def arrays(self, weights: Tensor) -> dict[str, Tensor]:
        """Returns the arrays of M networks by name, (M, *shape): views of the weights (M, W)."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        parts = weights.split(sizes, dim=1)
        return {
            name: part.unflatten(1, shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def one_hot(self, labels: Tensor, like: Tensor) -> Tensor:
        """Returns the labels (M, B) as unit vectors (M, B, L), of the dtype of `like`."""
        return one_hot(labels, self.classes).to(like)


@dataclass
class Adam:
    """Adam with (β₁, β₂) = (0.5, 0.9), WGAN-GP's, on M rows of weights.

    Attributes:
        mean: running mean of the gradients, (M, W).
        square: running mean of their squares, (M, W).
        steps: number of steps that each row has taken, (M,) float32.
    """

    mean: Tensor
    square: Tensor
    steps: Tensor

    @classmethod
    def start(cls, weights: Tensor) -> Adam:
        """Returns the state before the first step of weights (M, W)."""
        zeros = torch.zeros_like(weights)
        return cls(zeros, zeros.clone(), weights.new_zeros(len(weights)))

    @torch.no_grad()
    def step(self, weights: Tensor, gradient: Tensor, rate: float, active: Tensor) -> None:
        """Takes one step of the active rows, in place, at the same work whichever are active.

        Args:
            weights: (M, W).
            gradient: row m is that of network m's loss, (M, W).
            rate: learning rate.
            active: rows that take the step, (M,) bool; the others keep weights and state.
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
