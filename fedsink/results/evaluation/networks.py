"""Neural classifiers: a multilayer perceptron and a small convolutional network.

Both stop early, by a hold-out of the training set, and draw from generators of `seed` only, never
from PyTorch's global one.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import skip_init

from fedsink.errors import DataError
from fedsink.models.layers import initialise
from fedsink.reporting.displays import duration
from fedsink.results.evaluation.sets import Classifier, Report, shuffled

HOLD_OUT = 0.1
"""Share of the training set that only decides when to stop."""

PATIENCE = 10
"""Epochs without a better hold-out loss before training stops."""

BATCH = 128
PREDICTION_BATCH = 1000
MAX_EPOCHS = 200
MIN_EPOCHS = 10
MNIST_VALUES = 28 * 28

HIDDEN = 100
MLP_BUDGET = 1_600_000
CHANNELS = (32, 64)
DROPOUT = 0.5
CNN_BUDGET = 300_000
PADDED_BELOW = 16


def train_mlp(
    images: Tensor,
    labels: Tensor,
    *,
    classes: int,
    seed: int,
    report: Report | None = None,
    budget: int | None = MLP_BUDGET,
) -> Classifier:
    """Trains pixels to 100 rectified units to logits; `budget` is that of `epoch_cap`."""
    generator = torch.Generator().manual_seed(seed)
    network = nn.Sequential(
        nn.Flatten(),
        skip_init(nn.Linear, images[0].numel(), HIDDEN),
        nn.ReLU(),
        skip_init(nn.Linear, HIDDEN, classes),
    )
    initialise(network, generator)
    epochs = epoch_cap(images, budget)
    return fit(network, images, labels, generator, seed, epochs=epochs, name="mlp", report=report)


def train_cnn(
    images: Tensor,
    labels: Tensor,
    *,
    classes: int,
    seed: int,
    report: Report | None = None,
    budget: int | None = CNN_BUDGET,
) -> Classifier:
    """Trains two 3×3 convolutions (32, 64 channels), max-pooled, dropout ½ and one linear layer."""
    # Images under 16 pixels a side are padded before each convolution; larger ones have a margin to
    # lose, and a third less to compute. The training batches are in channels-last order.
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
        generator,
        seed,
        epochs=epoch_cap(images, budget),
        name="cnn",
        report=report,
    )


class SeededDropout(nn.Module):
    """x·m/(1−p), m ~ Bernoulli(1−p) per element, from a given generator, while training."""

    def __init__(self, probability: float, generator: torch.Generator) -> None:
        super().__init__()
        self.probability = probability
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        mask = torch.rand(x.shape, generator=self.generator) >= self.probability
        return x * mask / (1 - self.probability)


def convolutions(shape: tuple[int, ...]) -> tuple[list[nn.Module], int]:
    """Returns the CNN's layers up to the flattened ones, weights not drawn, and their width."""
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


def _pooled(side: int, padding: int) -> int:
    # A 3×3 convolution takes one pixel off each end unless it is padded; pooling halves.
    return (side + 2 * padding - 2) // 2


def epoch_cap(images: Tensor, budget: int | None) -> int:
    """Returns the epochs that show about `budget` images in all, from 10 to 200; 200 for None."""
    # An image of more than MNIST's 784 values counts in proportion to them: its time does.
    if budget is None:
        return MAX_EPOCHS
    shown = max(len(images), images.numel() / MNIST_VALUES)
    return min(MAX_EPOCHS, max(MIN_EPOCHS, math.ceil(budget / shown)))


def fit(
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    generator: torch.Generator,
    seed: int,
    *,
    epochs: int,
    name: str,
    report: Report | None = None,
) -> Classifier:
    """Minimises the cross-entropy with Adam (defaults) and keeps the best epoch's weights."""
    # A tenth of the images is held out, the same for all networks of one `seed`; its cross-entropy
    # chooses the weights and stops after 10 epochs without improvement (mathematics.md, section 5).
    order = shuffled(len(images), seed)
    size = max(1, round(HOLD_OUT * len(images)))
    held_out, training = order[:size], order[size:]
    optimiser = torch.optim.Adam(network.parameters())
    best, best_epoch, best_state = math.inf, 0, copy.deepcopy(network.state_dict())
    started = time.monotonic()
    for epoch in range(1, epochs + 1):
        shown = training[torch.randperm(len(training), generator=generator)]
        train_epoch(network, optimiser, images, labels, shown)
        judged = logits(network, images[held_out])
        loss = float(functional.cross_entropy(judged, labels[held_out]))
        if loss < best:
            best, best_epoch, best_state = loss, epoch, copy.deepcopy(network.state_dict())
        if report is not None:
            left = duration((time.monotonic() - started) / epoch * (epochs - epoch))
            report(
                f"{name}: epoch {epoch} of at most {epochs}, hold-out loss {loss:.4f}, "
                f"at most {left} left"
            )
        if epoch - best_epoch >= PATIENCE:
            break
    network.load_state_dict(best_state)
    return lambda new_images: logits(network, new_images).argmax(dim=1)


def train_epoch(
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    images: Tensor,
    labels: Tensor,
    order: Tensor,
) -> None:
    """Shows the images that `order` names once, a step of `optimiser` for every 128 of them."""
    network.train()
    for batch in order.split(BATCH):
        optimiser.zero_grad(set_to_none=True)
        functional.cross_entropy(network(images[batch]), labels[batch]).backward()
        optimiser.step()


def logits(network: nn.Module, images: Tensor) -> Tensor:
    """Returns logits (N, classes) of a network in evaluation mode, without gradients."""
    network.eval()
    with torch.inference_mode():
        return torch.cat([network(part) for part in images.split(PREDICTION_BATCH)])


@contextmanager
def limit_threads(threads: int | None) -> Iterator[None]:
    """Runs the body with at most `threads` threads in PyTorch and in NumPy's linear algebra."""
    if threads is None:
        yield
        return
    if threads < 1:
        raise ValueError(f"threads must be at least 1 or None; received {threads}.")
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    with threadpool_limits(limits=threads):
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)
