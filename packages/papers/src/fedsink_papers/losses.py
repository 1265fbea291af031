"""The losses that Reshetova, Chen, Özgür (2024) compare theirs with.

X = f(G(z)), Y the privatized records, M their mechanism; c and λ are those of Theorem 1
(`fedsink.strategies.losses`):

| loss | minimised over G | what becomes of the noise |
|---|---|---|
| unregularised | W_{c,0}(X, Y) | learnt: the minimiser is the distribution of Y |
| denoised | W_{c,0}(X, Ỹ), Ỹ the records after wavelet thresholding | what the threshold left |
| noisy_w1 | W_{‖·‖₁,0}(M(X), Y) (equation 15) | on both sides |
| noisy_wgan | W_{‖·‖₂,0}(M(X), Y) by a critic | on both sides |

M(X) is X plus fresh noise of the mechanism's law in every step: the gradient at M(X) is the
gradient at X. M(X) and Y have one law where X has the law before the noise, so the last two remove
the noise as well; but a batch of each, spread over all D coordinates, tells little of the distance.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedsink.data.maps import L1Ball, L2Ball, PixelRange
from fedsink.errors import ConfigError
from fedsink.privacy import Stream
from fedsink.strategies.losses import LocalLoss, LossGradient
from fedsink.strategies.privatize_once import PrivatizeOnceSettings
from fedsink.transport import cost_named
from fedsink.transport.losses import assignment_gradient
from fedsink.values import strictly
from fedsink_papers.noisy_critic import NoisyCritic, NoisyCriticSettings
from fedsink_papers.wavelets import denoised_values


class Unregularised(LocalLoss):
    """Exact transport to the records."""

    instead: ClassVar[str | None] = "exact transport"

    def __call__(self, points: Tensor, targets: Tensor, stream: Stream) -> LossGradient:
        """Returns the transport costs of the strata, and their gradient."""
        x, y = points.detach(), targets.to(points.device)
        cost = cost_named(self.cost(self.settings))
        strata = [assignment_gradient(x_s, y_s, cost) for x_s, y_s in zip(x, y, strict=True)]
        values = torch.stack([stratum.value for stratum in strata])
        gradients = torch.stack([stratum.gradient for stratum in strata])
        return LossGradient(float(values.mean()), gradients / len(x), 0)


class Denoised(Unregularised):
    """Exact transport to the records after wavelet thresholding."""

    @classmethod
    def check(cls, settings: PrivatizeOnceSettings) -> None:
        """Refuses maps that do not release whole pictures."""
        if not isinstance(settings.plan.map, PixelRange | L1Ball | L2Ball):
            raise ConfigError(
                f"strategy.loss=denoised needs records that are whole pictures, and the map "
                f"{settings.plan.map.name} releases something else: choose map=pixel_range, "
                "l1_ball or l2_ball."
            )

    def targets(self, values: Tensor) -> Tensor:
        """Returns the records with their wavelets' details soft-thresholded."""
        return denoised_values(values, self.settings.plan)


class NoisyW1(Unregularised):
    """Exact transport in L1 from generated values with noise to the records."""

    @classmethod
    def cost(cls, settings: PrivatizeOnceSettings) -> str:
        """Returns "l1"."""
        return "l1"

    def __call__(self, points: Tensor, targets: Tensor, stream: Stream) -> LossGradient:
        """Returns the costs from M(X)."""
        return super().__call__(noisy(self.settings, points.detach(), stream), targets, stream)


class NoisyWGAN(LocalLoss):
    """A critic's distance from generated values with noise to the records.

    Attributes:
        critic: begins once there are records to tell from.
    """

    instead: ClassVar[str | None] = "left to a critic"
    by_critic: ClassVar[bool] = True

    def __init__(self, settings: PrivatizeOnceSettings) -> None:
        super().__init__(settings)
        self._options = critic_settings(settings)
        self.critic_steps = self._options.steps
        self.critic: NoisyCritic | None = None

    @classmethod
    def check(cls, settings: PrivatizeOnceSettings) -> None:
        """Refuses labels, and options that a critic does not have."""
        critic_settings(settings)
        if settings.plan.classes > 1:
            raise ConfigError(
                "strategy.loss=noisy_wgan compares records without labels: say "
                "conditional=false, or choose another loss."
            )

    @classmethod
    def statement(cls, settings: PrivatizeOnceSettings) -> dict[str, Any]:
        """Returns the cost and the critic's options."""
        return {"cost": "l2, by a critic", "critic": asdict(critic_settings(settings))}

    def begin(self, targets: Tensor, stream: Stream) -> None:
        """Starts the critic."""
        self.critic = NoisyCritic(self._options, targets, stream)

    def train(self, points: Tensor, targets: Tensor, stream: Stream) -> None:
        """Takes one step of the critic."""
        values = noisy(self.settings, points.detach(), stream)
        self._begun.train(values.flatten(0, 1), targets.to(points.device).flatten(0, 1), stream)

    def __call__(self, points: Tensor, targets: Tensor, stream: Stream) -> LossGradient:
        """Returns the distance that the critic tells, and its slopes."""
        x = noisy(self.settings, points.detach(), stream)
        y = targets.to(points.device)
        value, slopes = self._begun.distance(x.flatten(0, 1), y.flatten(0, 1))
        return LossGradient(float(value), slopes.reshape(x.shape), 0)

    def state(self) -> dict[str, Tensor]:
        """Returns the critic's weights and moments."""
        return self.critic.state() if self.critic else {}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restores what `state` returned."""
        if self.critic:
            self.critic.load_state(tensors)

    @property
    def _begun(self) -> NoisyCritic:
        if self.critic is None:
            raise RuntimeError("The critic begins with the records: call begin first.")
        return self.critic


def critic_settings(settings: PrivatizeOnceSettings) -> NoisyCriticSettings:
    """Returns the critic's options; raises ConfigError where one is unknown or out of range."""
    options = {} if settings.critic is None else settings.critic
    return strictly(NoisyCriticSettings, options, "strategy.critic")


def noisy(settings: PrivatizeOnceSettings, points: Tensor, stream: Stream) -> Tensor:
    """Returns M(X): the points with fresh noise of the mechanism of the records."""
    return settings.plan.image_mechanism.privatize(points, stream)
