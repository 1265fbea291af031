"""What the server of local mode minimises: the matched loss and its comparisons.

X = f(G(z)), Y the privatized records; c and λ are those of Theorem 1,
c(x, y) = ‖x − y‖₁, λ = σ (Laplace) or ‖x − y‖₂², λ = 2σ² (Gaussian).

| loss | minimised over G | what becomes of the noise |
|---|---|---|
| matched | W_{c,λ}(X, Y) | removed: the minimiser is the distribution before the noise |
| unregularised | W_{c,0}(X, Y) | learnt: the minimiser is the distribution of Y |
| noisy_w1 | W_{‖·‖₁,0}(X, Y), Wasserstein-1 | learnt; with Laplace noise the same as above |
| debiased | W_{c,λ}(X, Y) − ½W_{c,λ}(X, X) − ½W_{c,λ}(Y, Y) | learnt, at any λ (Feydy 2019, 3) |
| denoised | W_{c,0}(X, Ỹ), Ỹ the records after wavelet thresholding | what the threshold left |

With labels it is the mean over the strata of `fedsink.strategies.privatize_once.strata`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsink.strategies.privatize_once.denoising import denoised_values
from fedsink.strategies.privatize_once.settings import EXACT, PrivatizeOnceSettings
from fedsink.transport import TransportGradient, transport_gradient
from fedsink.transport.solvers.exact import assignment_gradient


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
    """

    def __init__(self, settings: PrivatizeOnceSettings) -> None:
        self._settings = settings
        self._cost, self._solver = settings.transport

    def targets(self, values: Tensor) -> Tensor:
        """The records (N, D) that the generator is compared with."""
        if self._settings.loss == "denoised":
            return denoised_values(values, self._settings.plan)
        return values

    def __call__(self, points: Tensor, targets: Tensor) -> LossGradient:
        """Value and gradient at the points, the mean over S strata.

        Args:
            points: X, (S, n, D).
            targets: privatized records, as `targets` returned them, (S, n, D).
        """
        points, targets = points.detach(), targets.to(points.device)
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
