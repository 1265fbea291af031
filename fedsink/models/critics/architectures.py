"""Architectures of stacked networks: two Wasserstein critics, and a generator to warm them up.

All M networks of a client are computed in one batch, one `baddbmm` or grouped convolution a layer.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import conv2d, leaky_relu

from fedsink.data.views import View
from fedsink.errors import ModelError
from fedsink.models.critics.stacked import Stacked

_SLOPE = 0.2  # of the leaky layers below zero
_GAIN = math.sqrt(2.0 / (1.0 + _SLOPE**2))  # keeps the size of activations from layer to layer
_KERNEL, _STRIDE, _PADDING = 5, 2, 2  # of convolutions


class Critic(Stacked):
    """An architecture of M critics D_m(x, l) = ⟨h_m(x, l), w_m + V_ml⟩ of points and labels."""

    name: ClassVar[str]

    @abstractmethod
    def scores(self, weights: Tensor, points: Tensor, labels: Tensor) -> Tensor:
        """Returns D_m(x_mb, l_mb), (M, B), for each critic's B points.

        Args:
            weights: (M, W).
            points: (M, B, D).
            labels: (M, B) int64 in 0..L−1.
        """

    def gradients(self, weights: Tensor, points: Tensor, labels: Tensor) -> Tensor:
        """Returns ∂D_m/∂x, (M, B, D): differentiable in the weights, not in the points."""
        with torch.enable_grad():
            inputs = points.detach().requires_grad_(True)
            total = self.scores(weights, inputs, labels).sum()
            (gradients,) = torch.autograd.grad(total, inputs, create_graph=weights.requires_grad)
        return gradients


@dataclass(frozen=True)
class PerceptronCritic(Critic):
    """D(x, l) = ⟨h, w + V_l⟩ with h = φ(B h' + b), h' = φ(A x/s + a_l), φ leaky with slope 0.2.

    V is zero at the start, so that all classes share one critic until records distinguish them;
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
        """Standard deviations for inputs of D, h and h coordinates of unit size."""
        wide = 1.0 / math.sqrt(self.hidden)
        return {
            "first": _GAIN / math.sqrt(self.dimension),
            "second": _GAIN * wide,
            "bias": 0.0,
            "head": wide,
            "label_heads": 0.0,
        }

    def scores(self, weights: Tensor, points: Tensor, labels: Tensor) -> Tensor:
        """Returns D_m(x_mb, l_mb), (M, B)."""
        arrays, kinds = self.arrays(weights), self.one_hot(labels, points)
        _, second = self._activations(arrays, points, kinds)
        heads = torch.baddbmm(arrays["head"], kinds, arrays["label_heads"])
        return (leaky_relu(second, _SLOPE) * heads).sum(-1)

    def gradients(self, weights: Tensor, points: Tensor, labels: Tensor) -> Tensor:
        """Returns ∂D_m/∂x at each point, (M, B, D)."""
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
        """Returns both layers before φ, (M, B, h)."""
        first = torch.bmm(torch.cat([points / self.scale, kinds], -1), arrays["first"])
        hidden = leaky_relu(first, _SLOPE)
        return first, torch.baddbmm(arrays["bias"], hidden, arrays["second"])


def _slopes(activations: Tensor) -> Tensor:
    return torch.where(activations > 0.0, 1.0, _SLOPE).to(activations)


@dataclass(frozen=True)
class ConvolutionCritic(Critic):
    """D(x, l) = ⟨h, w + V_l⟩ with two leaky convolutions h of the picture Aᵀx of a view A.

    The picture of coordinates x is the view's transpose of them, the part of a record that the view
    keeps. So a gradient at the pixels returns through the view itself. Kernels are 5×5 with stride
    2, of f and 2f features; the first layer has a bias for every label and feature. Autograd
    differentiates the gradient penalty twice.

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
                "a critic of kind=convolution sees images (C, H, W), got the shape "
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
        """Standard deviations for inputs of unit size."""
        shapes, area = self.shapes, _KERNEL * _KERNEL
        first = _GAIN / math.sqrt(self.view.shape[0] * area)
        return {
            "first": first,
            "label_biases": first,
            "second": _GAIN / math.sqrt(self.features * area),
            "bias": 0.0,
            "head": 1.0 / math.sqrt(shapes["head"][1]),
            "label_heads": 0.0,
        }

    def scores(self, weights: Tensor, points: Tensor, labels: Tensor) -> Tensor:
        """Returns D_m(x_mb, l_mb), (M, B)."""
        critics, pairs, _ = points.shape
        arrays, kinds = self.arrays(weights), self.one_hot(labels, points)
        pictures = (points @ self._transpose.to(points)).unflatten(-1, self.view.shape)
        # A critic is a group of channels: (M, B, C, H, W) → (B, M·C, H, W).
        hidden = _convolved(pictures.transpose(0, 1).flatten(1, 2), arrays["first"], None)
        biases = torch.bmm(kinds, arrays["label_biases"]).transpose(0, 1).flatten(1)
        hidden = leaky_relu(hidden + biases[..., None, None], _SLOPE)
        hidden = leaky_relu(_convolved(hidden, arrays["second"], arrays["bias"].flatten()), _SLOPE)
        heads = torch.baddbmm(arrays["head"], kinds, arrays["label_heads"])
        return (hidden.reshape(pairs, critics, -1).transpose(0, 1) * heads).sum(-1)


def _convolved(images: Tensor, kernels: Tensor, bias: Tensor | None) -> Tensor:
    """Convolves group m of channels (B, M·in, H, W) with critic m's kernels (M, out, in, k, k)."""
    groups = len(kernels)
    return conv2d(images, kernels.flatten(0, 1), bias, _STRIDE, _PADDING, groups=groups)


def _halved(pixels: int) -> int:
    return (pixels + 2 * _PADDING - _KERNEL) // _STRIDE + 1


@dataclass(frozen=True)
class LocalGenerator(Stacked):
    """G_m(z, l) = s·(A₃φ(A₂φ(A₁[z, l]) + b₂) + b₃)/√D, with φ leaky and z uniform in [−1, 1]⁸.

    A throw-away generator for each critic: critics learn against them before a run's first round.

    Attributes:
        dimension: D.
        classes: L.
        scale: s, about the norm of a record's coordinates.
    """

    dimension: int
    classes: int
    scale: float = 10.0
    latent: ClassVar[int] = 8
    hidden: ClassVar[int] = 64

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """A₁; A₂, b₂; A₃, b₃."""
        h = self.hidden
        return {
            "first": (self.latent + self.classes, h),
            "second": (h, h),
            "bias": (1, h),
            "last": (h, self.dimension),
            "last_bias": (1, self.dimension),
        }

    @property
    def deviations(self) -> dict[str, float]:
        """Standard deviations for inputs of unit size: a few latents and one label, then h."""
        wide = 1.0 / math.sqrt(self.hidden)
        return {
            "first": _GAIN / math.sqrt(self.latent / 3.0 + 1.0),
            "second": _GAIN * wide,
            "bias": 0.0,
            "last": wide,
            "last_bias": 0.0,
        }

    def points(self, weights: Tensor, uniform: Tensor, labels: Tensor) -> Tensor:
        """Returns G_m(z_mb, l_mb), (M, B, D), for each generator's B latents.

        Args:
            weights: (M, W).
            uniform: (z + 1)/2 in [0, 1], (M, B, 8).
            labels: (M, B) int64 in 0..L−1.
        """
        arrays = self.arrays(weights)
        latents = 2.0 * uniform.to(weights) - 1.0
        inputs = torch.cat([latents, self.one_hot(labels, weights)], -1)
        hidden = leaky_relu(torch.bmm(inputs, arrays["first"]), _SLOPE)
        hidden = leaky_relu(torch.baddbmm(arrays["bias"], hidden, arrays["second"]), _SLOPE)
        points = torch.baddbmm(arrays["last_bias"], hidden, arrays["last"])
        return points * (self.scale / math.sqrt(self.dimension))
