"""Wasserstein critics: many of one architecture at once, as functions of stacked weights.

All M networks of a client are the rows of one matrix of weights, and are computed in one batch, one
`baddbmm` or grouped convolution a layer: two critics, a generator to warm them up, Adam for such
rows, and the loss of WGAN-GP with the public numbers of a training.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import conv2d, leaky_relu, one_hot

from fedsink.data.views import View
from fedsink.errors import ModelError
from fedsink.values import Checks

if TYPE_CHECKING:
    from fedsink.privacy.randomness.noise import Stream

_SLOPE = 0.2  # of the leaky layers below zero
_GAIN = math.sqrt(2.0 / (1.0 + _SLOPE**2))  # keeps the size of activations from layer to layer
_KERNEL, _STRIDE, _PADDING = 5, 2, 2  # of convolutions
_BETAS, _EPSILON = (0.5, 0.9), 1e-8  # of Adam, WGAN-GP's
_checks = Checks(ModelError)


class Stacked(ABC):
    """An architecture of M networks, whose weights are the rows of one matrix (M, W)."""

    # Every method computes all networks in one batch: its cost and operations depend only on public
    # sizes, network m's results only on row m.

    dimension: int  # D, coordinates of a point
    classes: int  # L, number of labels

    @property
    @abstractmethod
    def layout(self) -> Mapping[str, tuple[tuple[int, ...], float]]:
        """Each array's shape, and the deviation of its first weights for inputs of unit size."""

    @property
    def size(self) -> int:
        """W, number of weights of one network."""
        return sum(math.prod(shape) for shape, _ in self.layout.values())

    def initial(self, stream: Stream) -> Tensor:
        """Returns the first weights of every network, float32 (W,): public where the stream is."""
        arrays = [std * stream.normal(math.prod(shape)) for shape, std in self.layout.values()]
        return torch.cat(arrays).to(torch.float32)

    def arrays(self, weights: Tensor) -> dict[str, Tensor]:
        """Returns the arrays of M networks by name, (M, *shape): views of the weights (M, W)."""
        shapes = {name: shape for name, (shape, _) in self.layout.items()}
        parts = weights.split([math.prod(shape) for shape in shapes.values()], dim=1)
        return {
            name: part.unflatten(1, shape)
            for (name, shape), part in zip(shapes.items(), parts, strict=True)
        }

    def one_hot(self, labels: Tensor, like: Tensor) -> Tensor:
        """Returns the labels (M, B) as unit vectors (M, B, L), of the dtype of `like`."""
        return one_hot(labels, self.classes).to(like)


class Critic(Stacked):
    """An architecture of M critics D_m(x, l) = ⟨h_m(x, l), w_m + V_ml⟩ of points and labels."""

    name: ClassVar[str]

    @abstractmethod
    def scores(self, weights: Tensor, points: Tensor, labels: Tensor) -> Tensor:
        """Returns D_m(x_mb, l_mb), (M, B), of weights (M, W), points (M, B, D), labels (M, B)."""

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
    The scale s is about the norm of a record's coordinates; without it the penalty and Adam's rate
    do not suit the problem.
    """

    name: ClassVar[str] = "perceptron"
    dimension: int
    classes: int
    hidden: int = 32  # width of both layers
    scale: float = 10.0

    @property
    def layout(self) -> dict[str, tuple[tuple[int, ...], float]]:
        """A above the a_l; B, b; w, V."""
        h, classes, wide = self.hidden, self.classes, 1.0 / math.sqrt(self.hidden)
        return {
            "first": ((self.dimension + classes, h), _GAIN / math.sqrt(self.dimension)),
            "second": ((h, h), _GAIN * wide),
            "bias": ((1, h), 0.0),
            "head": ((1, h), wide),
            "label_heads": ((classes, h), 0.0),
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
            first, second = (
                torch.where(activations > 0.0, 1.0, _SLOPE).to(activations)
                for activations in self._activations(arrays, points, kinds)
            )
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


@dataclass(frozen=True)
class ConvolutionCritic(Critic):
    """D(x, l) = ⟨h, w + V_l⟩ with two leaky convolutions h of the picture Aᵀx of a view A.

    The picture of coordinates x is the view's transpose of them, the part of a record that the view
    keeps. So a gradient at the pixels returns through the view itself. Kernels are 5×5 with stride
    2, of f and 2f features; the first layer has a bias for every label and feature. Autograd
    differentiates the gradient penalty twice.
    """

    name: ClassVar[str] = "convolution"
    view: View  # public coordinates of images
    classes: int
    features: int = 8  # f

    def __post_init__(self) -> None:
        if len(self.view.shape) != 3:
            raise ModelError(
                "a critic of kind=convolution sees images (C, H, W), got the shape "
                f"{self.view.shape}: use a perceptron."
            )

    @property
    def dimension(self) -> int:  # type: ignore[override]
        return self.view.dimension

    @cached_property
    def _transpose(self) -> Tensor:
        pixels = math.prod(self.view.shape)
        # A view maps an image p to A(2p − 1), so these images give the columns of A.
        unit = 0.5 + 0.5 * torch.eye(pixels).reshape(pixels, *self.view.shape)
        return self.view(unit).T.contiguous()

    @property
    def layout(self) -> dict[str, tuple[tuple[int, ...], float]]:
        """Kernels and biases of both layers, w and V."""
        channels, height, width = self.view.shape
        f, classes, area = self.features, self.classes, _KERNEL * _KERNEL
        heads = 2 * f * _halved(_halved(height)) * _halved(_halved(width))
        first = _GAIN / math.sqrt(channels * area)
        return {
            "first": ((f, channels, _KERNEL, _KERNEL), first),
            "label_biases": ((classes, f), first),
            "second": ((2 * f, f, _KERNEL, _KERNEL), _GAIN / math.sqrt(f * area)),
            "bias": ((2 * f,), 0.0),
            "head": ((1, heads), 1.0 / math.sqrt(heads)),
            "label_heads": ((classes, heads), 0.0),
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
    """G_m(z, l) = s·(A₃φ(A₂φ(A₁[z, l]) + b₂) + b₃)/√D, with φ leaky and z uniform in [−1, 1]⁸."""

    # Thrown away: critics learn against one each before a run's first round. s is about the norm of
    # a record's coordinates.

    dimension: int
    classes: int
    scale: float = 10.0
    latent: ClassVar[int] = 8
    hidden: ClassVar[int] = 64

    @property
    def layout(self) -> dict[str, tuple[tuple[int, ...], float]]:
        """A₁, which sees a few latents and one label; A₂, b₂; A₃, b₃."""
        h, wide = self.hidden, 1.0 / math.sqrt(self.hidden)
        first = _GAIN / math.sqrt(self.latent / 3.0 + 1.0)
        return {
            "first": ((self.latent + self.classes, h), first),
            "second": ((h, h), _GAIN * wide),
            "bias": ((1, h), 0.0),
            "last": ((h, self.dimension), wide),
            "last_bias": ((1, self.dimension), 0.0),
        }

    def points(self, weights: Tensor, uniform: Tensor, labels: Tensor) -> Tensor:
        """Returns G_m(z_mb, l_mb), (M, B, D), for `uniform` = (z + 1)/2 in [0, 1], (M, B, 8)."""
        arrays = self.arrays(weights)
        latents = 2.0 * uniform.to(weights) - 1.0
        inputs = torch.cat([latents, self.one_hot(labels, weights)], -1)
        hidden = leaky_relu(torch.bmm(inputs, arrays["first"]), _SLOPE)
        hidden = leaky_relu(torch.baddbmm(arrays["bias"], hidden, arrays["second"]), _SLOPE)
        points = torch.baddbmm(arrays["last_bias"], hidden, arrays["last"])
        return points * (self.scale / math.sqrt(self.dimension))


@dataclass
class Adam:
    """Adam with (β₁, β₂) = (0.5, 0.9), WGAN-GP's, on M rows of weights."""

    mean: Tensor  # running mean of the gradients, (M, W)
    square: Tensor  # running mean of their squares, (M, W)
    steps: Tensor  # that each row has taken, (M,) float32

    @classmethod
    def start(cls, weights: Tensor) -> Adam:
        """Returns the state before the first step of weights (M, W)."""
        zeros = torch.zeros_like(weights)
        return cls(zeros, zeros.clone(), weights.new_zeros(len(weights)))

    @torch.no_grad()
    def step(self, weights: Tensor, gradient: Tensor, rate: float, active: Tensor) -> None:
        """Takes a step of the rows that are `active`, (M,) bool, at the same work whichever are."""
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


@dataclass(frozen=True)
class CriticTraining:
    """Steps, batches and loss of the M critics of a client."""

    critics: int  # M, among which a client deals its records
    steps: int = 5  # of every critic in a round
    warm: int = 20  # further steps in a critic's first round
    batch: int = 4  # b, records of a critic in a step, drawn with replacement
    history: int = 4  # messages whose generated rows a client keeps to train against
    lr: float = 2e-3  # of Adam
    late: float = 0.3  # fraction of the rounds that is left when the learning rate is halved
    penalty: float = 10.0  # weight of the gradient penalty
    drift: float = 1e-3  # weight of the drift term
    mismatch: float = 0.0  # w, fraction of records under another label among the generated points
    warm_generator: int = 0  # steps of a `LocalGenerator`, each after `steps` against it; 0: none

    def __post_init__(self) -> None:
        for name, least in (
            ("critics", 1), ("steps", 0), ("warm", 0), ("batch", 1), ("history", 1),
            ("warm_generator", 0),
        ):  # fmt: skip
            _checks.count(name, getattr(self, name), minimum=least)
        for name in ("lr", "penalty", "drift"):
            object.__setattr__(self, name, _checks.number(name, getattr(self, name)))
        for name in ("late", "mismatch"):
            object.__setattr__(self, name, _checks.within(name, getattr(self, name), "[0, 1]"))
        if self.warm_generator and not self.steps:
            raise ModelError(
                f"warm_generator={self.warm_generator} trains a generator against a critic that "
                "takes no steps: choose steps of at least 1, or leave it out."
            )

    def rate(self, round: int, rounds: int) -> float:
        """Returns the learning rate of round 1 ≤ `round` ≤ `rounds`."""
        whole = (1.0 - self.late) * rounds + 1e-9  # (1 − 0.8)·5 is 0.9999999999999998
        return self.lr / 2.0 if round > whole else self.lr

    def steps_after(self, trained: int) -> int:
        """Returns the steps against the server's rows, after `trained` rounds of a critic."""
        return self.steps if trained else self.steps + self.warm

    @property
    def first_steps(self) -> int:
        """Number of all steps of a critic's first round, those of its local generator included."""
        return self.steps_after(0) + self.warm_generator * (self.steps + 1)


def wgan_gp_losses(
    critic: Critic,
    weights: Tensor,
    fakes: Tensor,
    records: Tensor,
    mixing: Tensor,
    labels: Tensor,
    *,
    penalty: float,
    drift: float,
    mismatch: float = 0.0,
    others: Tensor | None = None,
) -> Tensor:
    """Returns the loss of each critic, (M,), to be minimised over its weights.

    mean D(x', l) − mean D(x, l) + penalty·mean (‖∇D(x̂, l)‖ − 1)² + drift·mean D(x, l)² with
    generated x', records x and x̂ = x + u(x' − x) (WGAN-GP: Gulrajani et al. 2017, equation 3; the
    drift term: Karras et al. 2018, appendix A.1). With a mismatch w > 0 the first term is
    (1 − w)·mean D(x', l) + w·mean D(x, l̃): a record under another label l̃ counts as generated
    (matching-aware critics: Reed et al. 2016, algorithm 1).

    `fakes` are x' and `records` x, (M, B, D), `mixing` u in [0, 1], `labels` l and `others` l̃,
    (M, B); without `others` w counts as 0.
    """
    pairs = fakes.shape[1]
    scores = critic.scores(weights, torch.cat([fakes, records], 1), torch.cat([labels, labels], 1))
    fake, real = scores.split(pairs, dim=1)
    if others is not None:
        fake = torch.lerp(fake, critic.scores(weights, records, others), mismatch)
    between = torch.lerp(records, fakes, mixing.unsqueeze(-1).to(fakes))
    slopes = torch.linalg.vector_norm(critic.gradients(weights, between, labels), dim=-1)
    return (fake - real + penalty * (slopes - 1.0).square() + drift * real.square()).mean(1)
