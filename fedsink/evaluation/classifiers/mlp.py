"""A multilayer perceptron with one hidden layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from fedsink.evaluation.classifiers.network import epoch_cap, fit, initialise
from fedsink.evaluation.labelled import Classifier, Report

HIDDEN = 100
IMAGE_BUDGET = 1_600_000


def train_mlp(
    images: Tensor,
    labels: Tensor,
    *,
    classes: int,
    seed: int,
    report: Report | None = None,
    budget: int | None = IMAGE_BUDGET,
) -> Classifier:
    """Pixels to 100 rectified units to logits, early stopping (mathematics.md, section 5).

    Args:
        images: training images (N, C, H, W).
        labels: their labels (N,).
        classes: number of logits.
        seed: of the hold-out, the weights and the batches.
        report: receives a line after each epoch.
        budget: images shown in all before training ends; None leaves that to early stopping.
    """
    generator = torch.Generator().manual_seed(seed)
    network = nn.Sequential(
        nn.Flatten(),
        skip_init(nn.Linear, images[0].numel(), HIDDEN),
        nn.ReLU(),
        skip_init(nn.Linear, HIDDEN, classes),
    )
    initialise(network, generator)
    return fit(
        network,
        images,
        labels,
        generator=generator,
        split=torch.Generator().manual_seed(seed),
        epochs=epoch_cap(len(images), budget),
        name="mlp",
        report=report,
    )
