"""DP-Sinkhorn's transport as published (Cao et al. 2021), built with GeomLoss, and its inputs."""

from __future__ import annotations

import torch
from geomloss import SamplesLoss
from torch import Tensor

from fedsink.transport import append_labels

LAMBDA, CLASSES, LABEL_WEIGHT, PIXELS = 0.05, 10, 15.0, 784


def images(n: int, generator: torch.Generator, *, background: bool = False) -> Tensor:
    """Points like labelled images in [−1, 1], (n, 794); with `background` 81 % are −1 (MNIST)."""
    pixels = 2.0 * torch.rand(n, PIXELS, generator=generator) - 1.0
    if background:
        ink = torch.rand(n, PIXELS, generator=generator) < 0.19
        pixels = torch.where(ink, pixels, -1.0)
    labels = torch.randint(0, CLASSES, (n,), generator=generator)
    return append_labels(pixels, labels, CLASSES, LABEL_WEIGHT)


def two_terms(x: Tensor, y: Tensor) -> Tensor:
    """c_1 term by term, as its definition reads: each term broadcasts its own difference."""
    squared = (x.unsqueeze(-2) - y.unsqueeze(-3)).square().sum(-1)
    return squared + (x.unsqueeze(-2) - y.unsqueeze(-3)).abs().sum(-1)


def one_difference(x: Tensor, y: Tensor) -> Tensor:
    """c_1 with the difference kept for both terms."""
    difference = x.unsqueeze(-2) - y.unsqueeze(-3)
    return difference.square().sum(-1) + difference.abs().sum(-1)


def two_products(x: Tensor, y: Tensor) -> Tensor:
    """c_1 from a matrix product and torch.cdist."""
    norms = x.square().sum(-1).unsqueeze(-1) + y.square().sum(-1).unsqueeze(-2)
    squared = (norms - 2.0 * x @ y.transpose(-1, -2)).clamp(min=0.0)
    return squared + torch.cdist(x, y, p=1.0)


def loss(
    cost: object, lam: float = LAMBDA, scaling: float = 0.5, *, debias: bool = False
) -> SamplesLoss:
    """W_λ with the annealed schedule; GeomLoss' p = 1 makes `blur` λ in units of cost."""
    options = {"p": 1, "blur": lam, "scaling": scaling, "debias": debias, "cost": cost}
    return SamplesLoss("sinkhorn", backend="tensorized", **options)


def gradient(value: Tensor, at: Tensor) -> Tensor:
    """The gradient by backpropagation."""
    return torch.autograd.grad(value, at)[0]
