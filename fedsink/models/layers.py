"""Layers whose initial weights come from a given torch.Generator, never from the global one."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d
from torch.nn.utils import skip_init

from fedsink.data import dct
from fedsink.errors import ModelError

Layer = TypeVar("Layer", bound=nn.Module)

_SQUARINGS = 12
_SMALLEST = 1e-30  # a weight of zeros stays one


def blank(layer: type[Layer], *sizes: int, **options: Any) -> Layer:
    """Returns a layer whose weights are yet to be drawn by `initialise`."""
    return skip_init(layer, *sizes, dtype=torch.float32, **options)


def normalised(layer: type[nn.BatchNorm1d | nn.BatchNorm2d], features: int) -> nn.Module:
    """Returns a BatchNorm that always normalises by its batch."""
    return layer(features, track_running_stats=False, dtype=torch.float32)


class SpectralConvolution(nn.Conv2d):
    """A convolution by W/σ(W), σ(W) the largest singular value of the kernel as a matrix."""

    # Of `outputs` rows, as in spectral normalisation (Miyato et al. 2018, eq. 8), which keeps an
    # estimate of σ between steps; computed anew, the layer has no state but its weights.

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight / spectral_norm(self.weight)
        return conv2d(input, weight, self.bias, self.stride, self.padding)


def spectral_norm(weight: Tensor) -> Tensor:
    """Returns the largest singular value of a weight, as a matrix of its first dimension's rows.

    With G = WWᵀ and P = G^p/tr G^p, p = 2¹², it is √tr(GP): never above σ, and at least
    n^(−1/2p)·σ for n rows, 0.9993 σ for 256. P is held fixed in the gradient, which is that of a
    converged power iteration, uvᵀ. The operations are the same for every weight.
    """
    matrix = weight.flatten(1)
    gram = matrix @ matrix.T
    with torch.no_grad():
        power = gram
        for _ in range(_SQUARINGS):
            power = power / power.trace().clamp_min(_SMALLEST)
            power = power @ power
        power = power / power.trace().clamp_min(_SMALLEST)
    return (gram * power).sum().clamp_min(_SMALLEST).sqrt()


def low_pass_basis(name: str, shape: tuple[int, ...], radius: float | None) -> Tensor:
    """Returns cosines below `radius`, float32 (K, height·width); None: half the shorter side."""
    return dct.basis(*shape[1:], low_pass_band(name, shape, radius), torch.float32).clone()


def low_pass_band(name: str, shape: tuple[int, ...], radius: float | None) -> dct.Band:
    """Returns the frequencies of `low_pass_basis`, which raises the same error."""
    _, height, width = shape
    band = dct.half_band(height, width, radius)
    if not band:
        raise ModelError(f"{name} needs a positive radius, got {radius}.")
    return band


def class_inputs(z: Tensor, one_hot: Tensor) -> Tensor:
    """Returns onehot(l) ⊗ [z, 1], (n, classes·(d + 1)), for z (n, d) and labels as unit vectors."""
    # A linear layer of it without a bias has one matrix and one bias for each class.
    inputs = torch.cat([z, torch.ones_like(z[:, :1])], dim=1)
    return (one_hot.unsqueeze(2) * inputs.unsqueeze(1)).flatten(1)


@torch.no_grad()
def initialise(module: nn.Module, generator: torch.Generator | None) -> None:
    """Draws all weights in the order of the modules, from U(−1/√fan_in, 1/√fan_in)."""
    # That is PyTorch's rule for linear and convolution layers and their biases; embeddings are
    # N(0, 1) and BatchNorm starts as the identity. `generator=None` means seed 0.
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
