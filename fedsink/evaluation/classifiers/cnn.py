"""A small convolutional network."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from fedsink.errors import DataError
from fedsink.evaluation.classifiers.network import epoch_cap, fit, initialise
from fedsink.evaluation.labelled import Classifier, Report

CHANNELS = (32, 64)
DROPOUT = 0.5
IMAGE_BUDGET = 300_000
PADDED_BELOW = 16


class SeededDropout(nn.Module):
    """Dropout that draws from a generator of its own instead of the global one.

    `x·m/(1−p)` with m ~ Bernoulli(1−p) per element while training, x otherwise.
    """

    def __init__(self, probability: float, generator: torch.Generator) -> None:
        """Drop each element with `probability`, drawn from `generator`."""
        super().__init__()
        self.probability = probability
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        """Return x with elements dropped and the rest rescaled, or x itself in evaluation."""
        if not self.training:
            return x
        kept = torch.rand(x.shape, generator=self.generator) >= self.probability
        return x * kept / (1 - self.probability)


def convolutions(shape: tuple[int, ...]) -> tuple[list[nn.Module], int]:
    """The two pooled and rectified convolutions, flattened, and how many values come out.

    Their weights are not drawn yet (`initialise`).

    Raises:
        DataError: images (C, H, W) smaller than 4×4.
    """
    depth, height, width = shape
    if min(height, width) < 4:
        raise DataError(
            f"The convolutional classifier needs images of at least 4×4 pixels; "
            f"received {height}×{width}."
        )
    first, second = CHANNELS
    padding = 1 if min(height, width) < PADDED_BELOW else 0
    rows, columns = (_pooled(_pooled(side, padding), padding) for side in (height, width))
    layers: list[nn.Module] = [
        skip_init(nn.Conv2d, depth, first, 3, padding=padding),
        nn.MaxPool2d(2),
        nn.ReLU(),
        skip_init(nn.Conv2d, first, second, 3, padding=padding),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
    ]
    return layers, second * rows * columns


def train_cnn(
    images: Tensor,
    labels: Tensor,
    *,
    classes: int,
    seed: int,
    report: Report | None = None,
    budget: int | None = IMAGE_BUDGET,
) -> Classifier:
    """Two 3×3 convolutions (32, 64 channels), each max-pooled, dropout ½, one linear layer.

    Images under 16 pixels a side are padded before each convolution; larger ones have a margin to
    lose, and a third less to compute. The training batches are in channels-last order.

    Early stopping as in mathematics.md, section 5; the number of epochs is capped so that about
    `budget` images are shown (at least 10 epochs, at most 200).

    Args:
        images: training images (N, C, H, W), any C, H and W at least 4.
        labels: their labels (N,).
        classes: number of logits.
        seed: of the hold-out, the weights, the batches and the dropout.
        report: receives a line after each epoch.
        budget: images shown in all before training ends; None leaves that to early stopping.

    Raises:
        DataError: images smaller than 4×4.
    """
    layers, width = convolutions(tuple(images.shape[1:]))
    generator = torch.Generator().manual_seed(seed)
    network = nn.Sequential(
        *layers, SeededDropout(DROPOUT, generator), skip_init(nn.Linear, width, classes)
    )
    initialise(network, generator)
    return fit(
        network.to(memory_format=torch.channels_last),
        images.to(memory_format=torch.channels_last),
        labels,
        generator=generator,
        split=torch.Generator().manual_seed(seed),
        epochs=epoch_cap(len(images), budget),
        name="cnn",
        report=report,
    )


def _pooled(side: int, padding: int) -> int:
    # A 3×3 convolution takes one pixel off each end unless it is padded; pooling halves.
    return (side + 2 * padding - 2) // 2
