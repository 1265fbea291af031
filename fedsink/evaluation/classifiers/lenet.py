"""LeNet, the convolutional network of GS-WGAN's public code."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from fedsink.errors import DataError
from fedsink.evaluation.classifiers.network import initialise, logits, train_epoch
from fedsink.evaluation.labelled import Classifier, Report

EPOCHS = 50
SMALLEST = 12
_MEAN, _SD = 0.1307, 0.3081  # MNIST's; the public code takes them for Fashion-MNIST too


def train_lenet(
    images: Tensor, labels: Tensor, *, classes: int, seed: int, report: Report | None = None
) -> Classifier:
    """Two 5×5 convolutions (6, 16 channels), each pooled, and linear layers of 120 and 84 units.

    Options of GS-WGAN's public code: stochastic gradient descent with momentum 0.9 and weight
    decay 1e-4, step 0.02 and after 40 epochs 0.002, batches of 128, pixels shifted by 0.1307 and
    divided by 0.3081. It trains for 50 epochs on all images: nothing is held out.

    Args:
        images: training images (N, C, H, W), H and W at least 12.
        labels: their labels (N,).
        classes: number of logits.
        seed: of the weights and the batches.
        report: receives a line after each epoch.

    Raises:
        DataError: images smaller than 12×12.
    """
    depth, height, width = images.shape[1:]
    if min(height, width) < SMALLEST:
        raise DataError(
            f"LeNet needs images of at least {SMALLEST}×{SMALLEST} pixels; "
            f"received {height}×{width}."
        )
    rows, columns = ((side // 2 - 4) // 2 for side in (height, width))
    network = nn.Sequential(
        skip_init(nn.Conv2d, depth, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        skip_init(nn.Conv2d, 6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        skip_init(nn.Linear, 16 * rows * columns, 120),
        nn.ReLU(),
        skip_init(nn.Linear, 120, 84),
        nn.ReLU(),
        skip_init(nn.Linear, 84, classes),
    )
    generator = torch.Generator().manual_seed(seed)
    initialise(network, generator)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [40], gamma=0.1)
    shifted = (images - _MEAN) / _SD
    for epoch in range(1, EPOCHS + 1):
        order = torch.randperm(len(images), generator=generator)
        train_epoch(network, optimiser, shifted, labels, order)
        schedule.step()
        if report is not None:
            report(f"lenet: epoch {epoch} of {EPOCHS}")
    return lambda new_images: logits(network, (new_images - _MEAN) / _SD).argmax(dim=1)
