"""What the server of local mode minimises: the matched loss and its comparisons.

X = f(G(z)), Y the privatized records, M the mechanism; c and λ are those of Theorem 1,
c(x, y) = ‖x − y‖₁, λ = σ (Laplace) or ‖x − y‖₂², λ = 2σ² (Gaussian).

| loss | minimised over G | what becomes of the noise |
|---|---|---|
| matched | W_{c,λ}(X, Y) | removed: the minimiser is the distribution before the noise |
| unregularised | W_{c,0}(X, Y) | learnt: the minimiser is the distribution of Y |
| noisy_w1 | W_{‖·‖₁,0}(M(X), Y) (Reshetova et al. 2024, equation 15) | on both sides |
| noisy_wgan | W_{‖·‖₂,0}(M(X), Y) by a critic | on both sides |
| debiased | W_{c,λ}(X, Y) − ½W_{c,λ}(X, X) − ½W_{c,λ}(Y, Y) | learnt, at any λ (Feydy 2019, 3) |
| denoised | W_{c,0}(X, Ỹ), Ỹ the records after wavelet thresholding | what the threshold left |

M(X) is X plus fresh noise of the mechanism's own law in every step: the gradient at M(X) is the
gradient at X. M(X) and Y have one law where X has the law before the noise, so these two remove
the noise as well; but a batch of each, spread over all D coordinates, tells little of the distance.

With labels it is the mean over the strata of `fedsink.strategies.privatize_once.strata`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsink.privacy import Stream
from fedsink.strategies.privatize_once.critic import NoisyCritic
from fedsink.strategies.privatize_once.denoising import denoised_values
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
        value: in units of cost, up to what does not depend on the generator.
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
        """The records (N, D) that the generator is compared with."""
        if self._settings.loss == "denoised":
            return denoised_values(values, self._settings.plan)
        return values

    def begin(self, targets: Tensor, stream: Stream) -> None:
        """Start the critic, where the loss has one.

        Args:
            targets: all records (N, D), as `targets` returned them.
            stream: public randomness.
        """
        if self._settings.loss in BY_CRITIC:
            self.critic = NoisyCritic(self._settings.noisy_critic, targets, stream)

    @property
    def critic_steps(self) -> int:
        """How many batches a critic is trained on before each step of the generator."""
        return self._settings.noisy_critic.steps if self.critic else 0

    def train_critic(self, points: Tensor, targets: Tensor, stream: Stream) -> None:
        """One step of the critic on a batch as `__call__` takes it."""
        if self.critic is None:
            raise RuntimeError(f"strategy.loss={self._settings.loss} trains no critic.")
        noisy = self.noisy(points.detach(), stream)
        self.critic.train(noisy.flatten(0, 1), targets.to(points.device).flatten(0, 1), stream)

    def noisy(self, points: Tensor, stream: Stream) -> Tensor:
        """M(X): the points after fresh noise of the mechanism that the records went through."""
        return self._settings.plan.image_mechanism.privatize(points, stream)

    def __call__(self, points: Tensor, targets: Tensor, stream: Stream) -> LossGradient:
        """Value and gradient at the points, the mean over S strata.

        Args:
            points: X, (S, n, D).
            targets: privatized records, as `targets` returned them, (S, n, D).
            stream: public randomness of M.
        """
        points, targets = points.detach(), targets.to(points.device)
        if self._settings.loss in NOISY:
            points = self.noisy(points, stream)
        if self.critic is not None:
            value, slopes = self.critic.distance(points.flatten(0, 1), targets.flatten(0, 1))
            return LossGradient(float(value), slopes.reshape(points.shape), 0)
        if self._settings.loss in EXACT:
            exact = [
                assignment_gradient(x, y, self._cost) for x, y in zip(points, targets, strict=True)
            ]
            values = torch.stack([each.value for each in exact])
            gradients, iterations = torch.stack([each.gradient for each in exact]), 0
        else:
            gradient = self._entropic(points, targets)
            values, gradients = gradient.value, gradient.gradient
            iterations = int(gradient.solution.iterations.max())
        if self._settings.loss == "debiased":
            # X is both marginals of W(X, X), so half of its gradient is that of one side.
            itself = self._entropic(points, points)
            values, gradients = values - 0.5 * itself.value, gradients - itself.gradient
        return LossGradient(float(values.mean()), gradients / len(points), iterations)

    def _entropic(self, x: Tensor, y: Tensor) -> TransportGradient:
        return transport_gradient(
            x, y, self._cost, self._settings.effective_lam, solver=self._solver
        )
