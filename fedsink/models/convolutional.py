"""Convolutional generators: `Conv` for images of any size, and the published `Dcgan`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fedsink.errors import ModelError
from fedsink.models.generator_base import (
    Generator,
    LatentLaw,
    check_layer,
    check_sizes,
    checked_sizes,
)
from fedsink.models.layers import (
    batch_norm_2d,
    class_inputs,
    convolution,
    deconvolution,
    embedding,
    initialise,
    linear,
    low_pass_band,
    low_pass_basis,
)

_KERNEL = 4


class Conv(Generator):
    """G(z, l) = (1 + tanh(γ·P D(A·relu(W_l [z, 1])))) / 2 of H × W pixels.

    Each class l has a matrix W_l to `hidden` units. A is linear, to m₁ feature maps of
    ⌈H/2^s⌉ × ⌈W/2^s⌉ pixels. D is s deconvolutions of kernel 4 and stride 2, to m₂, …, m_s and
    C maps, with ReLU before each of them, cut to H × W. P keeps the frequencies below the radius,
    as `DctMlp` does: a view of that band gives deconvolutions no gradient above it, where they
    leave a pattern of dots. There is no BatchNorm, so every picture depends only on its z and
    label.

    Args:
        hidden: units behind the first layer.
        radius: cut-off of the band; None keeps half the shorter side.
        maps: (m₁, …, m_s), feature maps before each deconvolution; (32, 16) makes 28×28 from 7×7.
        output_gain: γ > 0, as of `DctMlp`.

    Raises:
        ModelError: for points, an empty band, no feature maps, more deconvolutions than the shorter
            side of the picture can be halved into, or a size or gain that is not positive.
    """

    name = "conv"
    images_only = True

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        *,
        latent_dim: int = 8,
        latent_law: LatentLaw = "uniform",
        hidden: int = 256,
        radius: float | None = None,
        maps: Sequence[int] = (32, 16),
        output_gain: float = 4.0,
        generator: torch.Generator | None = None,
    ) -> None:
        """Builds the layers and draws their weights from `generator` (None: seed 0)."""
        options = {
            "hidden": hidden,
            "radius": radius,
            "maps": list(maps),
            "output_gain": output_gain,
        }
        super().__init__(shape, classes, latent_dim, latent_law, options)
        self.base = _base(self.shape, maps)
        check_sizes(self.name, ("hidden", hidden), *(("maps", m) for m in maps))
        if not 0.0 < output_gain < float("inf"):
            raise ModelError(f"conv needs a positive output_gain, got {output_gain}.")
        self.output_gain = output_gain
        basis = low_pass_basis(self.name, self.shape, radius)
        self.register_buffer("basis", basis, persistent=False)
        self.basis: Tensor
        self.first = linear(classes * (latent_dim + 1), hidden, bias=False)
        self.second = linear(hidden, math.prod(self.base))
        self.deconvolutions = nn.Sequential()
        for inputs, outputs in pairwise((*maps, self.shape[0])):
            self.deconvolutions.append(nn.ReLU())
            self.deconvolutions.append(deconvolution(inputs, outputs, _KERNEL, stride=2, padding=1))
        initialise(self, generator)
        with torch.no_grad():  # a row sees only its class's latent_dim + 1 inputs
            self.first.weight.mul_(classes**0.5)

    @classmethod
    def parameter_count(
        cls, shape: tuple[int, ...], classes: int, options: Mapping[str, Any]
    ) -> int:
        """Returns the size of a first matrix for each class, and of all other layers."""
        latent_dim, hidden, *maps = checked_sizes(
            cls.name, options["latent_dim"], options["hidden"], *options["maps"]
        )
        low_pass_band(cls.name, shape, options["radius"])  # refused before anything is built
        first = classes * (latent_dim + 1) * hidden
        second = (hidden + 1) * math.prod(_base(shape, maps))
        kernels = ((a * _KERNEL**2 + 1) * b for a, b in pairwise((*maps, shape[0])))
        return first + second + sum(kernels)

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Returns images (n, C, H, W) in [0, 1]."""
        hidden = torch.relu(self.first(class_inputs(z, self.one_hot(labels, z))))
        field = self.deconvolutions(self.second(hidden).unflatten(1, self.base))
        height, width = self.shape[1:]
        coefficients = field[..., :height, :width].flatten(2) @ self.basis.T
        pixels: Tensor = 0.5 + 0.5 * torch.tanh(self.output_gain * coefficients @ self.basis)
        return pixels.reshape(-1, *self.shape)


def _base(shape: Sequence[int], maps: Sequence[int]) -> tuple[int, int, int]:
    """Returns feature maps, height and width before the first deconvolution."""
    _, height, width = shape
    if not 2 <= 2 ** len(maps) <= 2 * min(height, width):
        raise ModelError(
            f"conv doubles its feature maps at least once and at most up to twice the picture's "
            f"shorter side, so maps has 1 to {min(height, width).bit_length()} sizes, got "
            f"{len(maps)}."
        )
    halvings = 2 ** len(maps)
    base = -(-height // halvings), -(-width // halvings)
    for doublings, count in enumerate(maps):
        check_layer(Conv.name, count * math.prod(base) * 4**doublings)
    return maps[0], *base


_FIRST_KERNEL = {28: 7, 32: 8}


class Dcgan(Generator):
    """[z, embedding(l)] → 256 → 128 → 64 → C feature maps → tanh, in four layers.

    A 7×7 deconvolution from 1×1 to 256 maps (8×8 for 32×32 images), two 4×4 deconvolutions of
    stride 2 to 128 and 64 maps, each followed by BatchNorm and leaky ReLU(0.2), then a 3×3
    convolution and tanh, rescaled to [0, 1]. z is U[0, 1]^16 and the label embedding has length
    8 in the published code (12 and 4 in the paper, Cao et al. 2021).

    Attributes:
        label_embedding: length of the label's embedding.
        width: feature maps of the last hidden layer (64); the others are twice and four times it.

    Raises:
        ModelError: for any size except 28×28 and 32×32.
    """

    name = "dcgan"

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        *,
        latent_dim: int = 16,
        latent_law: LatentLaw = "unit",
        label_embedding: int = 8,
        width: int = 64,
        generator: torch.Generator | None = None,
    ) -> None:
        """Builds the layers and draws their weights from `generator` (None: seed 0)."""
        options = {"label_embedding": label_embedding, "width": width}
        super().__init__(shape, classes, latent_dim, latent_law, options)
        if len(self.shape) != 3 or self.shape[1:] not in ((28, 28), (32, 32)):
            raise ModelError(
                f"dcgan makes images of 28×28 or 32×32 pixels with any number of channels, got "
                f"shape {self.shape}; resize the data or use mlp or dct_mlp."
            )
        check_sizes(self.name, ("label_embedding", label_embedding), ("width", width))
        channels, size, _ = self.shape
        self.embedding = embedding(classes, label_embedding)
        self.layers = nn.Sequential(
            deconvolution(latent_dim + label_embedding, 4 * width, _FIRST_KERNEL[size]),
            batch_norm_2d(4 * width),
            nn.LeakyReLU(0.2),
            deconvolution(4 * width, 2 * width, 4, stride=2, padding=1),
            batch_norm_2d(2 * width),
            nn.LeakyReLU(0.2),
            deconvolution(2 * width, width, 4, stride=2, padding=1),
            batch_norm_2d(width),
            nn.LeakyReLU(0.2),
            convolution(width, channels, 3, padding=1),
        )
        initialise(self, generator)

    @classmethod
    def parameter_count(
        cls, shape: tuple[int, ...], classes: int, options: Mapping[str, Any]
    ) -> int:
        """Returns the size of four layers, three BatchNorms and the label embedding."""
        latent_dim, label_embedding, width = checked_sizes(
            cls.name, *(options[key] for key in ("latent_dim", "label_embedding", "width"))
        )
        channels, size, _ = shape
        maps = [latent_dim + label_embedding, 4 * width, 2 * width, width, channels]
        kernels = [_FIRST_KERNEL.get(size, 0), 4, 4, 3]
        layers = sum((a * k * k + 1) * b for (a, b), k in zip(pairwise(maps), kernels, strict=True))
        return layers + 2 * sum(maps[1:4]) + classes * label_embedding

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Returns images (n, C, H, W) in [0, 1]."""
        inputs = torch.cat([z, self.embedding(labels.to(z.device))], dim=1)
        pixels: Tensor = 0.5 + 0.5 * torch.tanh(self.layers(inputs[:, :, None, None]))
        return pixels
