"""Critics on the coordinates of a view: two leaky layers, one `baddbmm` a layer for all critics."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from fedsink.models.critics.base import GAIN, SLOPE, Critic


@dataclass(frozen=True)
class PerceptronCritic(Critic):
    """D(x, l) = ⟨h, w + V_l⟩ with h = φ(B h' + b), h' = φ(A x/s + a_l), φ leaky with slope 0.2.

    V is zero at the start, so that all classes share one critic until records tell them apart;
    the random a_l let them differ from the first step on.

    The gradient of the input, (Aᵀ(m' ⊙ Bᵀ(m ⊙ (w + V_l))))/s with the slopes m', m of both
    layers, is computed as this product. The slopes are constant almost everywhere, and so the
    gradient penalty is differentiated by ordinary autograd through it, with the slopes detached.

    Attributes:
        dimension: D.
        classes: L.
        hidden: width of both layers.
        scale: s, about the norm of a record's coordinates: without it the penalty and Adam's
            rate do not suit the problem.
    """

    name: ClassVar[str] = "perceptron"
    dimension: int
    classes: int
    hidden: int = 32
    scale: float = 10.0

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """A above the a_l; B, b; w, V."""
        h, classes = self.hidden, self.classes
        return {
            "first": (self.dimension + classes, h),
            "second": (h, h),
            "bias": (1, h),
            "head": (1, h),
            "label_heads": (classes, h),
        }

    @property
    def deviations(self) -> dict[str, float]:
        """As for layers whose inputs have D, h and h coordinates of unit size."""
        wide = 1.0 / math.sqrt(self.hidden)
        return {
            "first": GAIN / math.sqrt(self.dimension),
            "second": GAIN * wide,
            "bias": 0.0,
            "head": wide,
            "label_heads": 0.0,
        }

    def scores(self, weights: Tensor, points: Tensor, labels: Tensor) -> Tensor:
        """D_m(x_b, l_b), (M, B)."""
        arrays, kinds = self.arrays(weights), self.one_hot(labels, points)
        _, second = self._activations(arrays, points, kinds)
        heads = torch.baddbmm(arrays["head"], kinds, arrays["label_heads"])
        return (leaky_relu(second, SLOPE) * heads).sum(-1)

    def gradients(self, weights: Tensor, points: Tensor, labels: Tensor) -> Tensor:
        """∂D_m/∂x at each point, (M, B, D)."""
        arrays, kinds = self.arrays(weights), self.one_hot(labels, points)
        with torch.no_grad():
            first, second = (_slopes(a) for a in self._activations(arrays, points, kinds))
        heads = torch.baddbmm(arrays["head"], kinds, arrays["label_heads"])
        inner = torch.bmm(heads * second, arrays["second"].mT)
        outer = arrays["first"][:, : self.dimension].mT
        return torch.bmm(inner * first, outer) / self.scale

    def _activations(
        self, arrays: dict[str, Tensor], points: Tensor, kinds: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Both layers before φ, (M, B, h)."""
        first = torch.bmm(torch.cat([points / self.scale, kinds], -1), arrays["first"])
        hidden = leaky_relu(first, SLOPE)
        return first, torch.baddbmm(arrays["bias"], hidden, arrays["second"])


def _slopes(activations: Tensor) -> Tensor:
    return torch.where(activations > 0.0, 1.0, SLOPE).to(activations)
