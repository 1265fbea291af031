"""Layers whose initial weights come from a given torch.Generator, never from the global one."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """Return an uninitialised nn.Linear."""
    return _skip(nn.Linear, inputs, outputs, bias=bias)


def batch_norm_1d(features: int) -> nn.BatchNorm1d:
    """Return a BatchNorm that always normalises by the batch at hand."""
    return nn.BatchNorm1d(features, track_running_stats=False)


def batch_norm_2d(features: int) -> nn.BatchNorm2d:
    """Return a BatchNorm that always normalises by the batch at hand."""
    return nn.BatchNorm2d(features, track_running_stats=False)


def convolution(inputs: int, outputs: int, kernel: int, padding: int) -> nn.Conv2d:
    """Return an uninitialised nn.Conv2d of stride 1."""
    return _skip(nn.Conv2d, inputs, outputs, kernel, padding=padding)


def deconvolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0
) -> nn.ConvTranspose2d:
    """Return an uninitialised nn.ConvTranspose2d."""
    return _skip(nn.ConvTranspose2d, inputs, outputs, kernel, stride=stride, padding=padding)


def embedding(labels: int, features: int) -> nn.Embedding:
    """Return an uninitialised nn.Embedding."""
    return _skip(nn.Embedding, labels, features)


def class_inputs(z: Tensor, one_hot: Tensor) -> Tensor:
    """onehot(l) ⊗ [z, 1], (n, classes·(d + 1)), for z (n, d) and labels as unit vectors.

    A linear layer of it without a bias is a matrix and a bias of each class's own.
    """
    inputs = torch.cat([z, torch.ones_like(z[:, :1])], dim=1)
    return (one_hot.unsqueeze(2) * inputs.unsqueeze(1)).flatten(1)


def _skip(layer: Any, *sizes: int, **options: Any) -> Any:
    return skip_init(layer, *sizes, **options)


@torch.no_grad()
def initialise(module: nn.Module, generator: torch.Generator | None) -> None:
    """Draw all weights in the order of the modules, from U(−1/√fan_in, 1/√fan_in).

    That is PyTorch's own rule for linear and convolution layers and their biases; embeddings are
    N(0, 1) and BatchNorm starts as the identity. `generator=None` means seed 0.
    """
    random = torch.Generator().manual_seed(0) if generator is None else generator
    for layer in module.modules():
        if isinstance(layer, nn.Embedding):
            layer.weight.normal_(generator=random)
        elif isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            fan_in = layer.weight[0].numel()  # PyTorch counts a deconvolution this way as well
            bound = 1.0 / math.sqrt(fan_in)
            layer.weight.uniform_(-bound, bound, generator=random)
            if layer.bias is not None:
                layer.bias.uniform_(-bound, bound, generator=random)
