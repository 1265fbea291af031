"""The convolutional generator published with DP-Sinkhorn for MNIST (Cao et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fedsink.errors import ModelError
from fedsink.models.generator_base import Generator, LatentLaw, check_sizes, checked_sizes
from fedsink.models.layers import (
    batch_norm_2d,
    convolution,
    deconvolution,
    embedding,
    initialise,
)

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
