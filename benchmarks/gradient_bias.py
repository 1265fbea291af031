"""Bias and variance of the gradient of Ŝ for each debiasing fraction p at a fixed batch.

The gradient is that of the generator's weights θ: ∇_θ Ŝ_p(X, Y) with n generated rows, n′ = ⌊n·p⌋
extra ones (Cao et al. 2021, Def. 4.3) and n records, no clip and no noise. Over R draws of latents
and records, and for the reference g* = the mean of ∇_θ Ŝ_1 at batches of N ≫ n,

    bias = ‖mean ĝ − g*‖ / ‖g*‖,   deviation = (mean ‖ĝ − mean ĝ‖²)^½ / ‖g*‖.

A mean of R draws is itself off by its deviation/√R, and so is the reference: both squares are taken
out of the bias squared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsink.conf.acting import compose_config
from fedsink.data.labelled import LabelledData
from fedsink.data.sources import load
from fedsink.data.views import View, view_from_dict
from fedsink.errors import ConfigError
from fedsink.models import Generator
from fedsink.privacy import Stream
from fedsink.protocol.dp_sinkhorn import Objective
from fedsink.server.finished import open_run
from fedsink.server.running import build_generator
from fedsink.simulation.experiment import Experiment
from fedsink.simulation.run_identity import RunIdentity
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhornSettings
from fedsink.transport import append_labels, self_gradient, transport_gradient


class GradientOf:
    """∇_θ Ŝ of a configuration's loss, at its freshly initialised generator or a run's.

    Args:
        overrides: of a central configuration, for instance ``experiment=dp_sinkhorn_mnist_m1``.
        run: folder of a finished run that gives the generator.

    Raises:
        FedsinkError: the configuration or the run is not of the central mode.
    """

    def __init__(self, overrides: Sequence[str], run: str | None = None) -> None:
        config = compose_config(["engine=local", *overrides])
        settings = Experiment.of(config, RunIdentity.fresh(0))
        if not isinstance(settings.server.strategy, DPSinkhornSettings):
            raise ConfigError("The gradient's bias is that of mode=central: leave out mode=ldp.")
        self.objective: Objective = settings.server.strategy.objective
        self.view: View = view_from_dict(settings.server.strategy.view)
        self.data: LabelledData = load(settings.node.data, "train")
        self.generator: Generator = (
            build_generator(settings.server) if run is None else open_run(run).generator
        )

    def draws(self, n: int, p: float, repeats: int, purpose: str) -> Iterator[Tensor]:
        """Independent draws of ∇_θ Ŝ_p at n rows and n records, (parameters,)."""
        for number in range(repeats):
            yield self._gradient(n, int(n * p), Stream(b"bias", purpose, number))

    def _gradient(self, n: int, extra: int, stream: Stream) -> Tensor:
        classes, objective = self.objective.classes, self.objective
        first = torch.arange(n) % classes
        labels = torch.cat([first, first[:extra]])
        points = self.view(self.generator(self.generator.latent(n + extra, stream), labels))
        chosen = (stream.uniform(n) * len(self.data)).long()
        images, of_records = self.data.take(chosen)
        x, y = points.detach(), self.view(images)
        if objective.label_weight > 0:
            x = append_labels(x, labels, classes, objective.label_weight)
            y = append_labels(y, of_records, classes, objective.label_weight)
        cost, solver = objective.transport
        whole = self_gradient(x, n, cost, objective.lam, solver=solver).gradient
        half = transport_gradient(x[:n], y, cost, objective.lam, solver=solver)
        whole[:n] += 2.0 * half.gradient
        weights = [w for w in self.generator.parameters() if w.requires_grad]
        gradients = torch.autograd.grad(points, weights, whole[:, : points.shape[1]])
        # Rows have weight 1/n each in Ŝ, so batches of any size have gradients of one scale.
        return torch.cat([gradient.flatten() for gradient in gradients]).double()


@dataclass(frozen=True)
class Moments:
    """Mean of independent draws, E‖draw − mean‖², and how many there were."""

    mean: Tensor
    variance: float
    repeats: int

    @classmethod
    def of(cls, draws: Iterable[Tensor]) -> Moments:
        """The moments of at least two draws."""
        values = torch.stack(list(draws))
        mean = values.mean(0)
        return cls(mean, float((values - mean).square().sum()) / (len(values) - 1), len(values))

    @property
    def of_mean(self) -> float:
        """E‖mean − its expectation‖²."""
        return self.variance / self.repeats


def bias_and_deviation(
    gradient: GradientOf, p: float, *, n: int, repeats: int, reference: Moments
) -> dict[str, float]:
    """Relative bias and deviation of ∇_θ Ŝ_p at batches of n."""
    found = Moments.of(gradient.draws(n, p, repeats, f"p={p}"))
    scale, variance = float(reference.mean.norm()), found.variance
    squared = float((found.mean - reference.mean).square().sum())
    squared -= found.of_mean + reference.of_mean
    return {
        "p": p,
        "n": n,
        "repeats": repeats,
        "bias": math.sqrt(max(0.0, squared)) / scale,
        "deviation": math.sqrt(variance) / scale,
        "error": math.sqrt(max(0.0, squared) + variance) / scale,
    }


def reference_gradient(gradient: GradientOf, n: int, repeats: int) -> Moments:
    """g*: the mean of unbiased gradients at batches of n."""
    return Moments.of(gradient.draws(n, 1.0, repeats, "reference"))
