"""The critic of the noisy WGAN: it tells generated values from privatized records."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsink.models.critics import Adam, PerceptronCritic, wgan_gp_losses
from fedsink.privacy import Stream
from fedsink.values import checks


@dataclass(frozen=True)
class NoisyCriticSettings:
    """Public options of the critic of `strategy.loss=noisy_wgan`.

    Attributes:
        hidden: width of its two layers.
        steps: of the critic before each step of the generator.
        lr: learning rate of Adam.
        penalty: weight of the gradient penalty.

    Raises:
        ConfigError: a value is out of range.
    """

    hidden: int = 128
    steps: int = 5
    lr: float = 3e-3
    penalty: float = 10.0

    def __post_init__(self) -> None:
        for name in ("hidden", "steps"):
            checks.count(f"strategy.critic.{name}", getattr(self, name))
        for name in ("lr", "penalty"):
            checks.positive(f"strategy.critic.{name}", getattr(self, name))


class NoisyCritic:
    """D of W₁(P, Q) = max E_Q D − E_P D over D of slope 1, learnt by WGAN-GP.

    P is the law of generated values after the mechanism and Q that of the privatized records, both
    without labels. Values are divided by `unit`, the root mean square of the records' coordinates,
    so that the layers see numbers of unit size; W₁ is multiplied by it again.

    Args:
        settings: public options.
        targets: the privatized records, (N, D).
        stream: public randomness of the first weights.
    """

    def __init__(self, settings: NoisyCriticSettings, targets: Tensor, stream: Stream) -> None:
        self._settings = settings
        self._critic = PerceptronCritic(targets.shape[1], 1, settings.hidden, scale=1.0)
        self.unit = max(float(targets.double().square().mean().sqrt()), math.ulp(1.0))
        self._weights = self._critic.initial(stream).unsqueeze(0)
        self._adam = Adam.start(self._weights)

    def train(self, noisy: Tensor, targets: Tensor, stream: Stream) -> None:
        """Takes one step of Adam on equally many generated values and records.

        Args:
            noisy: generated values after the mechanism, (n, D).
            targets: records, (n, D).
            stream: public randomness.
        """
        fakes, records = (values.detach()[None] / self.unit for values in (noisy, targets))
        self._to(fakes.device)
        mixing = stream.uniform(1, len(noisy)).to(fakes)
        weights = self._weights.requires_grad_(True)
        losses = wgan_gp_losses(
            self._critic,
            weights,
            fakes,
            records,
            mixing,
            self._labels(fakes),
            penalty=self._settings.penalty,
            drift=0.0,
        )
        (gradient,) = torch.autograd.grad(losses.sum(), weights)
        self._weights = weights.detach()
        active = torch.ones(1, dtype=torch.bool, device=fakes.device)
        self._adam.step(self._weights, gradient, self._settings.lr, active)

    @torch.no_grad()
    def distance(self, noisy: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Returns E_Q D − E_P D in units of the values, and its gradient at `noisy` (n, D)."""
        fakes, records = (values[None] / self.unit for values in (noisy, targets))
        self._to(fakes.device)
        labels = self._labels(fakes)
        fake, real = (self._critic.scores(self._weights, x, labels) for x in (fakes, records))
        slopes = self._critic.gradients(self._weights, fakes, labels)[0]
        return self.unit * (real.mean() - fake.mean()), -slopes / len(noisy)

    def state(self) -> dict[str, Tensor]:
        """Returns weights and moments, by name."""
        adam = self._adam
        return {
            "critic.weights": self._weights,
            "critic.mean": adam.mean,
            "critic.square": adam.square,
            "critic.steps": adam.steps,
        }

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restores what `state` returned."""
        names = ("weights", "mean", "square", "steps")
        self._weights, *moments = (tensors[f"critic.{name}"].clone() for name in names)
        self._adam = Adam(*moments)

    def _to(self, device: torch.device) -> None:
        if self._weights.device != device:
            self._weights, adam = self._weights.to(device), self._adam
            self._adam = Adam(*(t.to(device) for t in (adam.mean, adam.square, adam.steps)))

    def _labels(self, values: Tensor) -> Tensor:
        return torch.zeros(values.shape[:2], dtype=torch.int64, device=values.device)
