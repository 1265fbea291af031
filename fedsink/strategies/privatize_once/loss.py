"""The server's loss on privatized records: that of Theorem 1, and its comparisons.

Theorem 1 (Reshetova, Chen, Özgür 2024). Let Y = f(x) + noise of density p(y | x), and take the cost
c(x, y) = −λ log p(y | x) + const. Then the minimiser over generators G of

    W_{c,λ}(f(G(z)), Y) = min_π ∫ c dπ + λ KL(π ‖ P_{f(G)} ⊗ P_Y)

is the law of f(x), before the noise. The entropic bias removes the noise, so there is no
debiasing term. The cost and λ of a mechanism are `LocalPlan.matched_cost`:

    Laplace of scale σ:   c = ‖x − y‖₁,  λ = σ        (Corollary 1, with σ = Δ₁/ε)
    Gaussian of std σ:    c = ‖x − y‖₂², λ = 2σ²      (Corollary 2)

X = f(G(z)), M the mechanism; c and λ are those above:

| loss | minimised over G | what becomes of the noise |
|---|---|---|
| matched | W_{c,λ}(X, Y) | removed: the minimiser is the distribution before the noise |
| unregularised | W_{c,0}(X, Y) | learnt: the minimiser is the distribution of Y |
| noisy_w1 | W_{‖·‖₁,0}(M(X), Y) (equation 15) | on both sides |
| noisy_wgan | W_{‖·‖₂,0}(M(X), Y) by a critic | on both sides |
| debiased | W_{c,λ}(X, Y) − ½W_{c,λ}(X, X) − ½W_{c,λ}(Y, Y) | learnt, at any λ (Feydy 2019, 3) |
| denoised | W_{c,0}(X, Ỹ), Ỹ the records after wavelet thresholding | what the threshold left |

M(X) is X plus fresh noise of the mechanism's law in every step: the gradient at M(X) is the
gradient at X. M(X) and Y have one law where X has the law before the noise, so these two remove
the noise as well; but a batch of each, spread over all D coordinates, tells little of the distance.

With labels the loss is the mean over the strata of `LabelStrata`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsink.data import dct
from fedsink.data.maps import L1Ball
from fedsink.privacy import RandomizedResponse, Stream
from fedsink.protocol.privatize_once import LocalPlan
from fedsink.strategies.privatize_once.critic import NoisyCritic
from fedsink.strategies.privatize_once.settings import (
    BY_CRITIC,
    EXACT,
    NOISY,
    PrivatizeOnceSettings,
)
from fedsink.transport import TransportGradient, transport_gradient
from fedsink.transport.losses import assignment_gradient


@dataclass(frozen=True)
class LossGradient:
    """A loss at the generated points.

    Attributes:
        value: in units of cost, up to terms that do not depend on the generator.
        gradient: ∂/∂X, shape (S, n, D).
        iterations: Sinkhorn iterations of the term that sees the records; 0 for exact transport.
    """

    value: float
    gradient: Tensor
    iterations: int


class LocalLoss:
    """The loss that the settings name.

    Args:
        settings: public parameters of the run.

    Attributes:
        critic: of `noisy_wgan`, which begins once there are records to tell from; else None.
    """

    def __init__(self, settings: PrivatizeOnceSettings) -> None:
        self.critic: NoisyCritic | None = None
        self._settings = settings
        self._cost, self._solver = settings.transport

    def targets(self, values: Tensor) -> Tensor:
        """Returns the records (N, D) that the generator is compared with."""
        if self._settings.loss == "denoised":
            return denoised_values(values, self._settings.plan)
        return values

    def begin(self, targets: Tensor, stream: Stream) -> None:
        """Starts the critic, where the loss has one.

        Args:
            targets: all records (N, D), as `targets` returned them.
            stream: public randomness.
        """
        if self._settings.loss in BY_CRITIC:
            self.critic = NoisyCritic(self._settings.noisy_critic, targets, stream)

    @property
    def critic_steps(self) -> int:
        """Number of batches that a critic is trained on before each step of the generator."""
        return self._settings.noisy_critic.steps if self.critic else 0

    def train_critic(self, points: Tensor, targets: Tensor, stream: Stream) -> None:
        """Takes one step of the critic on a batch as `__call__` takes it."""
        if self.critic is None:
            raise RuntimeError(f"strategy.loss={self._settings.loss} trains no critic.")
        noisy = self.noisy(points.detach(), stream)
        self.critic.train(noisy.flatten(0, 1), targets.to(points.device).flatten(0, 1), stream)

    def noisy(self, points: Tensor, stream: Stream) -> Tensor:
        """Returns M(X): the points with fresh noise of the mechanism of the records."""
        return self._settings.plan.image_mechanism.privatize(points, stream)

    def __call__(self, points: Tensor, targets: Tensor, stream: Stream) -> LossGradient:
        """Returns value and gradient at the points, the mean over S strata.

        Args:
            points: X, (S, n, D).
            targets: privatized records, as `targets` returned them, (S, n, D).
            stream: public randomness of M.
        """
        x, y = points.detach(), targets.to(points.device)
        if self._settings.loss in NOISY:
            x = self.noisy(x, stream)
        if self.critic is not None:
            value, slopes = self.critic.distance(x.flatten(0, 1), y.flatten(0, 1))
            return LossGradient(float(value), slopes.reshape(x.shape), 0)
        if self._settings.loss in EXACT:
            strata = [
                assignment_gradient(x_s, y_s, self._cost) for x_s, y_s in zip(x, y, strict=True)
            ]
            values = torch.stack([stratum.value for stratum in strata])
            gradients, iterations = torch.stack([stratum.gradient for stratum in strata]), 0
        else:
            # Theorem 1: W_{c,λ}(X, Y) and ∂/∂x_i = Σ_j P_ij ∂c(x_i, y_j), by the envelope theorem.
            entropic = self._entropic(x, y)
            values, gradients = entropic.value, entropic.gradient
            iterations = int(entropic.solution.iterations.max())
        if self._settings.loss == "debiased":
            # X is both marginals of W(X, X), so half of its gradient is that of one side.
            itself = self._entropic(x, x)
            values, gradients = values - 0.5 * itself.value, gradients - itself.gradient
        return LossGradient(float(values.mean()), gradients / len(x), iterations)

    def _entropic(self, x: Tensor, y: Tensor) -> TransportGradient:
        lam = self._settings.effective_lam
        return transport_gradient(x, y, self._cost, lam, solver=self._solver)


class LabelStrata:
    """Privatized records by their randomized label ỹ, and the law of the true label l given ỹ.

    Given ỹ = c, the labels follow P(l | c) ∝ Q(c | l)·π_l, and the image's channel is what it
    was: so Theorem 1 holds within every stratum, and the minimiser of
    Σ_c P(ỹ = c) W_{c,λ}(P_{f(G) | c}, P_{Y | c}) is the labelled distribution before both
    channels. It needs Q to be invertible and the prior π. A step of b records in C strata solves C
    problems of b/C points instead of one of b: the points of a class lie as densely as with a
    batch of C·b, and b²/C pairs are compared instead of b².

    Without labels there is one stratum.

    A step has C strata, drawn systematically with probabilities P(ỹ = c): with balanced labels
    each stratum comes about once a step, and a batch has the classes in the proportions of π.

    Args:
        labels: randomized labels ỹ, int64 (N,), N > 0.
        prior: π, (C,).
        mechanism: Q; None where clients send no labels.
    """

    def __init__(self, labels: Tensor, prior: Tensor, mechanism: RandomizedResponse | None) -> None:
        self.number = len(prior)
        self._counts = torch.bincount(labels, minlength=self.number)
        self._starts = self._counts.cumsum(0) - self._counts
        self._order = labels.argsort(stable=True)
        likelihood = torch.ones(1, 1) if mechanism is None else mechanism.log_likelihood().exp()
        posterior = likelihood.to(prior) * prior
        self._cumulated = (posterior / posterior.sum(1, keepdim=True)).cumsum(1)

    def draw(self, batch: int, stream: Stream) -> tuple[Tensor, Tensor]:
        """Draws the records of a step, and labels for the generator by the law of theirs.

        Args:
            batch: b, of which every stratum gets ⌊b/C⌋, at least 2.
            stream: public randomness.

        Returns:
            Places of records, int64 (C, n), and labels, int64 (C, n).
        """
        n = max(2, batch // self.number)
        shares = self._counts.cumsum(0) / len(self._order)
        places = (torch.arange(self.number) + stream.uniform(1)) / self.number
        answers = torch.searchsorted(shares, places.to(shares), right=True)
        answers = answers.clamp(max=int(self._counts.nonzero().max()))  # a place may round up to 1
        counts = self._counts[answers].unsqueeze(1)
        steps = torch.minimum((stream.uniform(self.number, n) * counts).long(), counts - 1)
        records = self._order[self._starts[answers].unsqueeze(1) + steps]
        labels = torch.searchsorted(
            self._cumulated[answers], stream.uniform(self.number, n).to(self._cumulated)
        )
        return records, labels.clamp(max=self.number - 1)


def denoised_values(values: Tensor, plan: LocalPlan) -> Tensor:
    """Returns privatized values (N, D) with their wavelet details soft-thresholded.

    The maps of `loss=denoised` have pixels as coordinates, or an orthonormal transform of them, in
    which the noise has the same standard deviation. Post-processing of what arrived.
    """
    f = plan.map
    channels, height, width = f.record_shape
    std = plan.image_mechanism.noise_std
    planes = values.reshape(len(values), channels, height * width)
    if not (isinstance(f, L1Ball) and f.dct):
        return denoised(planes.unflatten(2, (height, width)), std).flatten(1)
    band = dct.block(height, width, max(height, width))
    basis = dct.basis(height, width, band).to(values)
    pixels = denoised((planes @ basis).unflatten(2, (height, width)), std)
    return (pixels.flatten(2) @ basis.T).flatten(1)


def haar(images: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Returns the coarsest average and the details of each level, finest first.

    One level turns every 2×2 square (a, b; c, d) into (a+b+c+d)/2 and the three details
    (a−b+c−d)/2, (a+b−c−d)/2, (a−b−c+d)/2: a rotation, so white noise stays white of the same
    strength. Levels continue while both sides are even: 28×28 has two, down to 7×7.

    Args:
        images: (N, C, H, W).

    Returns:
        The average (N, C, h, w), and one tensor (N, C, 3, h·2^l, w·2^l) per level.
    """
    average, details = images, []
    while average.shape[-1] % 2 == 0 and average.shape[-2] % 2 == 0:
        a, b = average[..., ::2, ::2], average[..., ::2, 1::2]
        c, d = average[..., 1::2, ::2], average[..., 1::2, 1::2]
        details.append(torch.stack([a - b + c - d, a + b - c - d, a - b - c + d], 2) / 2)
        average = (a + b + c + d) / 2
    return average, details


def inverse_haar(average: Tensor, details: list[Tensor]) -> Tensor:
    """Returns the images (N, C, H, W) that `haar` took apart."""
    for level in reversed(details):
        across, down, diagonal = level.unbind(2)
        squares = average.new_empty(*average.shape[:2], 2 * average.shape[2], 2 * average.shape[3])
        squares[..., ::2, ::2] = average + across + down + diagonal
        squares[..., ::2, 1::2] = average - across + down - diagonal
        squares[..., 1::2, ::2] = average + across - down - diagonal
        squares[..., 1::2, 1::2] = average - across - down + diagonal
        average = squares / 2
    return average


def denoised(images: Tensor, std: float) -> Tensor:
    """Returns images with every detail d replaced by sign(d)·max(|d| − t, 0), t = std·√(2 ln n).

    The universal threshold of Donoho and Johnstone (1994) for n pixels (channels included) with
    white noise of standard deviation `std`. Of pictures of pure Gaussian noise, five in six of 784
    pixels keep no detail; Laplace noise passes more often. The averages are kept. The threshold is
    public, so this is post-processing.

    Args:
        images: (N, C, H, W).
        std: standard deviation of the noise per pixel.
    """
    threshold = std * math.sqrt(2.0 * math.log(max(2, images[0].numel()))) if len(images) else 0.0
    average, details = haar(images)
    kept = [torch.nn.functional.softshrink(level, threshold) for level in details]
    return inverse_haar(average, kept)
