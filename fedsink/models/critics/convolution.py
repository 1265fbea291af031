"""Convolutional critics on pixels: grouped convolutions, one group a critic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import conv2d, leaky_relu

from fedsink.data.views import View
from fedsink.errors import ModelError
from fedsink.models.critics.base import GAIN, SLOPE, Critic

_KERNEL, _STRIDE, _PADDING = 5, 2, 2


@dataclass(frozen=True)
class ConvolutionCritic(Critic):
    """D(x, l) = ⟨h, w + V_l⟩ with two leaky convolutions h of the picture Aᵀx of a view A.

    The picture of coordinates x is the view's transpose of them: what the view keeps of a record.
    A gradient at the pixels so comes back through the view itself. Kernels are 5×5 with stride 2,
    of f and 2f features; the first layer has a bias for every label and feature. The gradient
    penalty is differentiated twice by autograd.

    Attributes:
        view: public coordinates of images.
        classes: L.
        features: f.

    Raises:
        ModelError: the view is of points.
    """

    name: ClassVar[str] = "convolution"
    view: View
    classes: int
    features: int = 8

    def __post_init__(self) -> None:
        if len(self.view.shape) != 3:
            raise ModelError(
                "a critic of pictures sees images (C, H, W), got the shape "
                f"{self.view.shape}: use a perceptron."
            )

    @property
    def dimension(self) -> int:  # type: ignore[override]
        """D, the view's."""
        return self.view.dimension

    @cached_property
    def _transpose(self) -> Tensor:
        pixels = math.prod(self.view.shape)
        # A view maps an image p to A(2p − 1), so these images give the columns of A.
        unit = 0.5 + 0.5 * torch.eye(pixels).reshape(pixels, *self.view.shape)
        return self.view(unit).T.contiguous()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Kernels and biases of both layers, w and V."""
        channels, height, width = self.view.shape
        f, classes, kernel = self.features, self.classes, (_KERNEL, _KERNEL)
        heads = 2 * f * _halved(_halved(height)) * _halved(_halved(width))
        return {
            "first": (f, channels, *kernel),
            "label_biases": (classes, f),
            "second": (2 * f, f, *kernel),
            "bias": (2 * f,),
            "head": (1, heads),
            "label_heads": (classes, heads),
        }

    @property
    def deviations(self) -> dict[str, float]:
        """As for layers whose inputs are of unit size."""
        shapes, area = self.shapes, _KERNEL * _KERNEL
        first = GAIN / math.sqrt(self.view.shape[0] * area)
        return {
            "first": first,
            "label_biases": first,
            "second": GAIN / math.sqrt(self.features * area),
            "bias": 0.0,
            "head": 1.0 / math.sqrt(shapes["head"][1]),
            "label_heads": 0.0,
        }

    def scores(self, weights: Tensor, points: Tensor, labels: Tensor) -> Tensor:
        """D_m(x_b, l_b), (M, B)."""
        critics, pairs, _ = points.shape
        arrays, kinds = self.arrays(weights), self.one_hot(labels, points)
        pictures = (points @ self._transpose.to(points)).unflatten(-1, self.view.shape)
        # A critic is a group of channels: (M, B, C, H, W) → (B, M·C, H, W).
        hidden = _convolved(pictures.transpose(0, 1).flatten(1, 2), arrays["first"], None)
        biases = torch.bmm(kinds, arrays["label_biases"]).transpose(0, 1).flatten(1)
        hidden = leaky_relu(hidden + biases[..., None, None], SLOPE)
        hidden = leaky_relu(_convolved(hidden, arrays["second"], arrays["bias"].flatten()), SLOPE)
        heads = torch.baddbmm(arrays["head"], kinds, arrays["label_heads"])
        return (hidden.reshape(pairs, critics, -1).transpose(0, 1) * heads).sum(-1)


def _convolved(images: Tensor, kernels: Tensor, bias: Tensor | None) -> Tensor:
    """Each critic's kernels (M, out, in, k, k) on its own group of channels (B, M·in, H, W)."""
    groups = len(kernels)
    return conv2d(images, kernels.flatten(0, 1), bias, _STRIDE, _PADDING, groups=groups)


def _halved(pixels: int) -> int:
    return (pixels + 2 * _PADDING - _KERNEL) // _STRIDE + 1
