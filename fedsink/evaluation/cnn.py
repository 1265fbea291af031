"""A small convolutional network."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from fedsink.errors import DataError
from fedsink.evaluation.labelled import Classifier, Report
from fedsink.evaluation.network import epoch_cap, fit, initialise

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


def train_cnn(
    images: Tensor, labels: Tensor, *, classes: int, seed: int, report: Report | None = None
) -> Classifier:
    """Two 3×3 convolutions (32, 64 channels), each max-pooled, dropout ½, one linear layer.

    Images under 16 pixels a side are padded before each convolution; larger ones have a margin to
    lose, and a third less to compute. The training batches are in channels-last order.

    Early stopping as in mathematics.md, section 5; the number of epochs is capped so that about
    300,000 images are shown (at least 10 epochs, at most 200).

    Args:
        images: training images (N, C, H, W), any C, H and W at least 4.
        labels: their labels (N,).
        classes: number of logits.
        seed: of the hold-out, the weights, the batches and the dropout.
        report: receives a line after each epoch.

    Raises:
        DataError: images smaller than 4×4.
    """
    _, depth, height, width = images.shape
    if min(height, width) < 4:
        raise DataError(
            f"The convolutional classifier needs images of at least 4×4 pixels; "
            f"received {height}×{width}."
        )
    generator = torch.Generator().manual_seed(seed)
    first, second = CHANNELS
    padding = 1 if min(height, width) < PADDED_BELOW else 0
    rows, columns = (_pooled(_pooled(side, padding), padding) for side in (height, width))
    network = nn.Sequential(
        skip_init(nn.Conv2d, depth, first, 3, padding=padding),
        nn.MaxPool2d(2),
        nn.ReLU(),
        skip_init(nn.Conv2d, first, second, 3, padding=padding),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        SeededDropout(DROPOUT, generator),
        skip_init(nn.Linear, second * rows * columns, classes),
    )
    initialise(network, generator)
    return fit(
        network.to(memory_format=torch.channels_last),
        images.to(memory_format=torch.channels_last),
        labels,
        generator=generator,
        split=torch.Generator().manual_seed(seed),
        epochs=epoch_cap(len(images), IMAGE_BUDGET),
        name="cnn",
        report=report,
    )


def _pooled(side: int, padding: int) -> int:
    # A 3×3 convolution takes one pixel off each end unless it is padded; pooling halves.
    return (side + 2 * padding - 2) // 2
