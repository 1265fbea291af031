"""DPImageBench's classifiers: three residual networks, with the epoch chosen by noised counts.

Gong et al., "DPImageBench" (2025), with the options of its public code for pictures of 28×28 (its
CIFAR options are another set): 50 epochs of Adam with batches of 256, step 0.01, a fifth of it
after every 20 epochs, pixels in [−1, 1], the exponential average of the weights (0.9999). A twelfth
of the synthetic images is left out, as 5000 of 60000 there. After every epoch the average's correct
answers on real validation images are counted, noised, and the best count chooses the epoch.

>>> tuple(residual_network("resnet", (1, 8, 8), 10)(torch.zeros(2, 1, 8, 8)).shape)
(2, 10)
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel

from fedsink.errors import ConfigError
from fedsink.reporting.displays import duration
from fedsink.results.evaluation.networks import logits
from fedsink.results.evaluation.sets import Classifier, Labelled, Report, TrainingSet
from fedsink.results.evaluation.suites import ClassifierChoice, ClassifierSet

EPOCHS, BATCH, RATE, EVERY, FACTOR, DECAY = 50, 256, 0.01, 20, 0.2, 0.9999
LEFT_OUT = 1 / 12
"""Share of the synthetic images that is not trained on, and of the real ones that validate."""

DROPOUT = 0.3
NAMES = ("resnet", "wrn", "resnext")
CORE_SECONDS = 0.013 + 0.053 + 0.235
"""Of one core for a picture of 28×28 in an epoch of all three networks (docs/papers.md)."""


class SelectedByNoisedCounts:
    """`ClassifierTrainer` of one network, whose epoch is chosen on noised validation counts.

    The chosen epoch has the largest c_t + Laplace(1/ε), c_t of the validation images being
    classified correctly. One image more changes every c_t by 0 or 1 in one direction, so that the
    choice costs ε for the validation images (report noisy max of monotone counts, Dwork and Roth
    2014, Claim 3.9); where the generator was trained on them as well, that adds up.

    Args:
        name: one of `NAMES`.
        validation: real images (M, C, H, W) in [0, 1] and labels (M,), none of the test set.
        epsilon: ε of the noise; infinity for none.
        epochs: 50 in the benchmark.
    """

    def __init__(
        self, name: str, validation: Labelled, epsilon: float, epochs: int = EPOCHS
    ) -> None:
        self.name, self.epsilon, self.epochs = name, epsilon, epochs
        self._images, self._targets = validation

    def __call__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        classes: int,
        seed: int,
        report: Report | None = None,
    ) -> Classifier:
        """Returns the classifier of the chosen epoch; it draws from `seed`, then restores torch's.

        It computes on a GPU where there is one.
        """
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        size = max(2, len(images) - round(LEFT_OUT * len(images)))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            order = torch.randperm(len(images))[:size]
            network = residual_network(self.name, tuple(images.shape[1:]), classes).to(device)
            best, winner = -math.inf, network
            pictures, targets = (2.0 * images[order] - 1.0).to(device), labels[order].to(device)
            started = time.monotonic()

            def tell(epoch: int, fraction: float) -> None:
                if report is not None:
                    left = duration((time.monotonic() - started) / fraction * (1 - fraction))
                    report(f"{self.name}: epoch {epoch} of {self.epochs}, about {left} left")

            for _, average in _epochs(network, pictures, targets, self.epochs, tell):
                count = self._correct(average, device)
                noised = count + self._noise()
                if noised >= best:
                    best, winner = noised, copy.deepcopy(average)
        return lambda new: logits(winner, (2.0 * new - 1.0).to(device)).argmax(dim=1).cpu()

    def _correct(self, network: nn.Module, device: torch.device) -> int:
        predicted = logits(network, (2.0 * self._images - 1.0).to(device)).argmax(dim=1).cpu()
        return int((predicted == self._targets).sum())

    def _noise(self) -> float:
        if math.isinf(self.epsilon):
            return 0.0
        return float(torch.distributions.Laplace(0.0, 1.0 / self.epsilon).sample())


def dpimagebench_set(
    real: TrainingSet, seed: int, epsilon: float
) -> tuple[dict[str, SelectedByNoisedCounts], TrainingSet]:
    """Returns the three trainers, and the real training images without those that validate.

    Raises:
        ConfigError: pictures smaller than 8×8.
    """
    if min(real.images.shape[2:]) < 8:
        raise ConfigError(
            "classifiers=dpimagebench needs pictures of at least 8×8 pixels; received "
            f"{tuple(real.images.shape[2:])}."
        )
    order = torch.randperm(len(real), generator=torch.Generator().manual_seed(seed))
    size = max(1, round(LEFT_OUT * len(real)))
    held = real.at(order[:size])
    validation = held.images, held.labels
    trainers = {name: SelectedByNoisedCounts(name, validation, epsilon) for name in NAMES}
    return trainers, real.at(order[size:])


def _choice(real: TrainingSet, seed: int, epsilon: float) -> ClassifierChoice:
    trainers, rest = dpimagebench_set(real, seed, epsilon)
    return ClassifierChoice(trainers, {}, rest)


DPIMAGEBENCH = ClassifierSet(
    _choice,
    "DPImageBench's networks, the epoch chosen on noised counts of real images",
    suites=("paper",),
    seconds=EPOCHS * (1 - LEFT_OUT) * CORE_SECONDS,
    by_gpu=True,
    runs=1,
    reference=False,
    of_run=True,
)


def _epochs(
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    epochs: int,
    tell: Callable[[int, float], None],
) -> Iterator[tuple[int, nn.Module]]:
    """Trains `network` in place; yields the number of each epoch and the average after it.

    `tell` gets the epoch and the fraction of the whole that is done, after every batch.
    """
    optimiser = torch.optim.Adam(network.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, EVERY, FACTOR)
    average = AveragedModel(
        network, avg_fn=lambda old, new, t: old + (new - old) * (1 - _decay(float(t)))
    )
    average.update_parameters(network)  # the first call copies
    for epoch in range(1, epochs + 1):
        network.train()
        batches = torch.randperm(len(images)).split(BATCH)
        for number, batch in enumerate(batches, 1):
            if len(batch) == 1:  # of which batch normalisation knows no variance
                continue
            optimiser.zero_grad(set_to_none=True)
            functional.cross_entropy(network(images[batch]), labels[batch]).backward()
            optimiser.step()
            average.update_parameters(network)
            tell(epoch, (epoch - 1 + number / len(batches)) / epochs)
        schedule.step()
        yield epoch, average.module


def _decay(updates: float) -> float:
    return min(DECAY, (1 + updates) / (10 + updates))


def residual_network(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Builds ResNet-110, WideResNet-40-4 or ResNeXt-29 (8 groups) for pictures (C, H, W).

    Convolutions are drawn from N(0, 2/fan_out), the linear layer as PyTorch draws it (resnext:
    N(0, 2/fan_in)); biases of wrn and resnext are 0.

    Args:
        name: "resnet" (He et al. 2016), "wrn" (Zagoruyko and Komodakis 2016), "resnext" (Xie et al.
            2017).
        shape: (C, H, W).
        classes: number of classes.
    """
    block, widths, depth, stem = _BUILDS[name]
    layers: list[nn.Module] = [_conv(shape[0], stem, 3)]
    if name != "wrn":
        layers += [nn.BatchNorm2d(stem), nn.ReLU()]
    before = stem
    for stage, width in enumerate(widths):
        for number in range(depth):
            layers.append(block(before, width, 2 if stage and not number else 1))
            before = width
    if name == "wrn":
        layers += [nn.BatchNorm2d(before), nn.ReLU()]
    head = nn.Linear(before, classes)
    if name == "resnext":
        nn.init.kaiming_normal_(head.weight)
    if name != "resnet":
        nn.init.zeros_(head.bias)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


class _Residual(nn.Module):
    """y = last(skip(x) + body(first(x))); the skip is of x, or of first(x) where widths differ."""

    def __init__(
        self, first: nn.Module, body: nn.Module, skip: nn.Module | None, last: nn.Module
    ) -> None:
        super().__init__()
        self.first, self.body, self.skip, self.last = first, body, skip, last

    def forward(self, x: Tensor) -> Tensor:
        inner = self.first(x)
        beside = x if self.skip is None else self.skip(inner)
        return self.last(beside + self.body(inner))


def _basic(before: int, width: int, stride: int) -> nn.Module:
    body = nn.Sequential(
        _conv(before, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU(),
        _conv(width, width, 3), nn.BatchNorm2d(width),
    )  # fmt: skip
    return _Residual(nn.Identity(), body, _projected(before, width, stride), nn.ReLU())


def _wide(before: int, width: int, stride: int) -> nn.Module:
    body = nn.Sequential(
        _conv(before, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout(DROPOUT),
        _conv(width, width, 3),
    )  # fmt: skip
    skip = None if before == width else _conv(before, width, 1, stride)
    first = nn.Sequential(nn.BatchNorm2d(before), nn.ReLU())
    return _Residual(first, body, skip, nn.Identity())


def _grouped(before: int, width: int, stride: int) -> nn.Module:
    inner = 2 * width  # cardinality 8 · width / widening 4
    body = nn.Sequential(
        _conv(before, inner, 1), nn.BatchNorm2d(inner), nn.ReLU(),
        _conv(inner, inner, 3, stride, groups=8), nn.BatchNorm2d(inner), nn.ReLU(),
        _conv(inner, width, 1), nn.BatchNorm2d(width),
    )  # fmt: skip
    return _Residual(nn.Identity(), body, _projected(before, width, stride), nn.ReLU())


def _projected(before: int, width: int, stride: int) -> nn.Module | None:
    if before == width and stride == 1:
        return None
    return nn.Sequential(_conv(before, width, 1, stride), nn.BatchNorm2d(width))


def _conv(before: int, width: int, side: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    layer = nn.Conv2d(before, width, side, stride, side // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


_Block = Callable[[int, int, int], nn.Module]
_BUILDS: dict[str, tuple[_Block, tuple[int, ...], int, int]] = {
    # name: (block, widths of the three stages, blocks of a stage, width of the first convolution)
    "resnet": (_basic, (16, 32, 64), 18, 16),
    "wrn": (_wide, (64, 128, 256), 6, 16),
    "resnext": (_grouped, (256, 512, 1024), 3, 64),
}
