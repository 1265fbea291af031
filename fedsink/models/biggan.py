"""The residual generator published with DP-Sinkhorn for CelebA (Cao et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, relu

from fedsink.errors import ModelError
from fedsink.models.generator_base import Generator, LatentLaw, check_layer, checked_sizes
from fedsink.models.layers import convolution, embedding, initialise, linear, spectral_convolution

_DOUBLINGS = 3  # of the side: 4 → 32
_CONVOLUTIONS = 3
_MOST_BLOCKS = 16


class BigGan(Generator):
    """[z, embedding(l)] → 256×4×4 → residual blocks → ReLU → C feature maps → tanh, in [0, 1].

    A block is x ↦ up(x) + conv(ReLU(conv(ReLU(conv(ReLU(up(x))))))) with three 3×3 convolutions,
    all of one width and spectrally normalised; up repeats every pixel 2×2 in the first three
    blocks and does nothing in later ones. Sides that are no multiple of 8 are made larger and
    cropped at the centre: 28×28 is the middle of 32×32. Published are four blocks of depth 256,
    three convolutions in each, spectral normalisation, 32 latents and an embedding of the class
    (Cao et al. 2021, supplement); the rest of this form is ours:

    - There is no BatchNorm, conditional or other: a picture depends only on its z and label, in
      training as in sampling. The class enters beside z.
    - The first and the last layer are not normalised: normalised convolutions cannot set a scale.
    - Spectral norms have no state (`fedsink.models.layers.SpectralConvolution`).

    Attributes:
        label_embedding: length of the label's embedding.
        width: feature maps of every block (256).
        blocks: residual blocks (4).

    Raises:
        ModelError: for points, a size below 1, or more than 16 blocks.
    """

    name = "biggan"
    images_only = True

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        *,
        latent_dim: int = 32,
        latent_law: LatentLaw = "normal",
        label_embedding: int = 32,
        width: int = 256,
        blocks: int = 4,
        generator: torch.Generator | None = None,
    ) -> None:
        """Builds the layers and draws their weights from `generator` (None: seed 0)."""
        options = {"label_embedding": label_embedding, "width": width, "blocks": blocks}
        super().__init__(shape, classes, latent_dim, latent_law, options)
        _checked(options | {"latent_dim": latent_dim})
        self._start = _start(self.shape, blocks, width)
        self.embedding = embedding(classes, label_embedding)
        self.first = linear(latent_dim + label_embedding, width * math.prod(self._start))
        self.blocks = nn.ModuleList(_Block(width, i < _DOUBLINGS) for i in range(blocks))
        self.last = convolution(width, self.shape[0], 3, padding=1)
        initialise(self, generator)

    @classmethod
    def parameter_count(
        cls, shape: tuple[int, ...], classes: int, options: Mapping[str, Any]
    ) -> int:
        """Returns the size of the first layer, all convolutions and the label embedding."""
        latent_dim, label_embedding, width, blocks = _checked(options)
        first = (latent_dim + label_embedding + 1) * width * math.prod(_start(shape, blocks, width))
        inner = blocks * _CONVOLUTIONS * (9 * width + 1) * width
        return first + inner + (9 * width + 1) * shape[0] + classes * label_embedding

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Returns images (n, C, H, W) in [0, 1]."""
        inputs = torch.cat([z, self.embedding(labels.to(z.device))], dim=1)
        maps = self.first(inputs).unflatten(1, (-1, *self._start))
        for block in self.blocks:
            maps = block(maps)
        pixels: Tensor = 0.5 + 0.5 * torch.tanh(self.last(relu(maps)))
        return _centre(pixels, self.shape)


class _Block(nn.Module):
    def __init__(self, width: int, grows: bool) -> None:
        super().__init__()
        self.grows = grows
        self.convolutions = nn.ModuleList(
            spectral_convolution(width, width, 3, padding=1) for _ in range(_CONVOLUTIONS)
        )

    def forward(self, maps: Tensor) -> Tensor:
        kept = interpolate(maps, scale_factor=2.0) if self.grows else maps
        change = kept
        for convolve in self.convolutions:
            change = convolve(relu(change))
        return kept + change


def _checked(options: Mapping[str, Any]) -> list[int]:
    """Returns the sizes of a description: latents, length of the embedding, width, blocks."""
    keys = ("latent_dim", "label_embedding", "width", "blocks")
    sizes = checked_sizes(BigGan.name, *(options[key] for key in keys))
    if sizes[-1] > _MOST_BLOCKS:
        raise ModelError(
            f"biggan has at most {_MOST_BLOCKS} blocks, got {sizes[-1]}: leave some out."
        )
    return sizes


def _centre(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    _, height, width = shape
    top, left = (images.shape[2] - height) // 2, (images.shape[3] - width) // 2
    return images[:, :, top : top + height, left : left + width]


def _start(shape: tuple[int, ...], blocks: int, maps: int) -> tuple[int, int]:
    """Returns height and width of the first feature maps."""
    times = 2 ** min(blocks, _DOUBLINGS)
    height, width = (-(-side // times) for side in shape[1:])
    check_layer(BigGan.name, maps * height * width * times**2)
    return height, width
