"""What every critic offers, and the loss that trains it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

if TYPE_CHECKING:
    from fedsink.privacy.randomness.noise import Stream

SLOPE = 0.2  # of the leaky layers below zero
GAIN = math.sqrt(2.0 / (1.0 + SLOPE**2))  # keeps the size of activations from layer to layer


class Stacked(ABC):
    """An architecture of M networks, whose weights are the rows of one matrix (M, W).

    An object holds no weights. Every method computes all networks in one batch, so that what it
    costs and which operations run depend on public sizes alone. Network m's results depend on row
    m alone.

    Attributes:
        dimension: D, coordinates of a point.
        classes: L, number of labels.
    """

    dimension: int
    classes: int

    @property
    @abstractmethod
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each of one network's arrays, in the order of a row of weights."""

    @property
    @abstractmethod
    def deviations(self) -> Mapping[str, float]:
        """The standard deviation of each array's initial normal weights; 0: it starts at zero."""

    @property
    def size(self) -> int:
        """W, how many weights one network has."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def initial(self, stream: Stream) -> Tensor:
        """The weights that every network starts with, float32 (W,): public where the stream is."""
        deviations = self.deviations
        arrays = [
            deviations[name] * stream.normal(math.prod(shape))
            for name, shape in self.shapes.items()
        ]
        return torch.cat(arrays).to(torch.float32)

    def arrays(self, weights: Tensor) -> dict[str, Tensor]:
        """The arrays of M networks by name, (M, *shape) each: views of the weights (M, W)."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        parts = weights.split(sizes, dim=1)
        return {
            name: part.unflatten(1, shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def one_hot(self, labels: Tensor, like: Tensor) -> Tensor:
        """The labels (M, B) as unit vectors (M, B, L), of the dtype of `like`."""
        return one_hot(labels, self.classes).to(like)


class Critic(Stacked):
    """An architecture of M critics D_m(x, l) = ⟨h_m(x, l), w_m + V_ml⟩ of points and labels."""

    name: ClassVar[str]

    @abstractmethod
    def scores(self, weights: Tensor, points: Tensor, labels: Tensor) -> Tensor:
        """D_m(x_b, l_b) for each critic's own B points.

        Args:
            weights: (M, W).
            points: (M, B, D).
            labels: (M, B) int64 in 0..L−1.

        Returns:
            (M, B).
        """

    def gradients(self, weights: Tensor, points: Tensor, labels: Tensor) -> Tensor:
        """∂D_m/∂x at each point, (M, B, D): differentiable in the weights, not in the points."""
        with torch.enable_grad():
            inputs = points.detach().requires_grad_(True)
            total = self.scores(weights, inputs, labels).sum()
            (gradients,) = torch.autograd.grad(total, inputs, create_graph=weights.requires_grad)
        return gradients


def wgan_gp_losses(
    critic: Critic,
    weights: Tensor,
    fakes: Tensor,
    records: Tensor,
    shares: Tensor,
    labels: Tensor,
    *,
    penalty: float,
    drift: float,
    mismatch: float = 0.0,
    others: Tensor | None = None,
) -> Tensor:
    """The loss of each critic, (M,), to be minimised over its weights.

    mean D(x', l) − mean D(x, l) + penalty·mean (‖∇D(x̂, l)‖ − 1)² + drift·mean D(x, l)² with
    generated x', records x and x̂ = x + u(x' − x) (WGAN-GP: Gulrajani et al. 2017, equation 3; the
    drift term: Karras et al. 2018, appendix A.1). With a mismatch w > 0 the first term is
    (1 − w)·mean D(x', l) + w·mean D(x, l̃): a record under another label l̃ counts as generated
    (matching-aware critics: Reed et al. 2016, algorithm 1).

    Args:
        critic: the architecture.
        weights: (M, W).
        fakes: x', (M, B, D).
        records: x, (M, B, D).
        shares: u in [0, 1], (M, B).
        labels: of both points of each pair, (M, B) int64.
        penalty: weight of the gradient penalty.
        drift: weight of the drift term.
        mismatch: w in [0, 1].
        others: l̃, (M, B) int64; without them w counts as 0.
    """
    pairs = fakes.shape[1]
    scores = critic.scores(weights, torch.cat([fakes, records], 1), torch.cat([labels, labels], 1))
    fake, real = scores.split(pairs, dim=1)
    if others is not None:
        fake = torch.lerp(fake, critic.scores(weights, records, others), mismatch)
    between = torch.lerp(records, fakes, shares.unsqueeze(-1).to(fakes))
    slopes = torch.linalg.vector_norm(critic.gradients(weights, between, labels), dim=-1)
    return (fake - real + penalty * (slopes - 1.0).square() + drift * real.square()).mean(1)
