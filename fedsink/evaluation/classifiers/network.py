"""Training a small network with early stopping on a hold-out of its own training set."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsink.evaluation.labelled import Classifier, Report

HOLD_OUT = 0.1
"""Share of the training set that only decides when to stop."""

PATIENCE = 10
"""Epochs without a better hold-out loss before training stops."""

BATCH = 128
PREDICTION_BATCH = 1000
MAX_EPOCHS = 200
MIN_EPOCHS = 10


def epoch_cap(images: int, budget: int | None) -> int:
    """Epochs that show about `budget` images in all, between 10 and 200; 200 without a budget."""
    if budget is None:
        return MAX_EPOCHS
    return min(MAX_EPOCHS, max(MIN_EPOCHS, math.ceil(budget / images)))


def fit(
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    generator: torch.Generator,
    split: torch.Generator,
    epochs: int,
    name: str,
    report: Report | None = None,
) -> Classifier:
    """Minimise the cross-entropy with Adam (defaults) and keep the best epoch's weights.

    A tenth of the images, drawn once, is held out; its cross-entropy after each epoch chooses the
    weights and stops training after 10 epochs without improvement (mathematics.md, section 5).

    Args:
        network: maps images (N, C, H, W) to logits (N, classes); trained in place.
        images: training images (N, C, H, W), N >= 2.
        labels: their labels (N,).
        generator: draws the batches.
        split: draws the hold-out; generators in the same state hold out the same images.
        epochs: the most epochs to train.
        name: of the network in the lines of `report`.
        report: receives a line after each epoch.

    Returns:
        The trained network as a classifier.
    """
    order = torch.randperm(len(images), generator=split)
    size = max(1, round(HOLD_OUT * len(images)))
    held_out, kept = order[:size], order[size:]
    optimiser = torch.optim.Adam(network.parameters())
    best, best_epoch, best_state = math.inf, 0, copy.deepcopy(network.state_dict())
    for epoch in range(1, epochs + 1):
        shuffled = kept[torch.randperm(len(kept), generator=generator)]
        train_epoch(network, optimiser, images, labels, shuffled)
        judged = logits(network, images[held_out])
        loss = float(functional.cross_entropy(judged, labels[held_out]))
        if loss < best:
            best, best_epoch, best_state = loss, epoch, copy.deepcopy(network.state_dict())
        if report is not None:
            report(f"{name}: epoch {epoch} of at most {epochs}, hold-out loss {loss:.4f}")
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
    """Show the images that `order` names once, a step of `optimiser` for every 128 of them."""
    network.train()
    for batch in order.split(BATCH):
        optimiser.zero_grad(set_to_none=True)
        functional.cross_entropy(network(images[batch]), labels[batch]).backward()
        optimiser.step()


def initialise(network: nn.Module, generator: torch.Generator) -> None:
    """Draw every weight and bias from U(-1/√fan_in, 1/√fan_in), PyTorch's default, in place.

    Modules draw from the global generator when they are built; this lets them be built without
    drawing (`torch.nn.utils.skip_init`) and be filled from `generator` instead.
    """
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            bound = 1 / math.sqrt(module.weight[0].numel())
            for parameter in module.parameters():
                nn.init.uniform_(parameter, -bound, bound, generator=generator)


def logits(network: nn.Module, images: Tensor) -> Tensor:
    """Logits (N, classes) of a network that rests, without gradients."""
    network.eval()
    with torch.inference_mode():
        return torch.cat([network(part) for part in images.split(PREDICTION_BATCH)])
