"""The residual generator published with DP-Sinkhorn for CelebA (Cao et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, relu

from fedsink.errors import ModelError
from fedsink.models.base import Generator, LatentLaw, checked_sizes
from fedsink.models.layers import convolution, embedding, initialise, linear, spectral_convolution

_DOUBLINGS = 3  # of the side: 4 → 32
_CONVOLUTIONS = 3


class BigGan(Generator):
    """[z, embedding(l)] → depth×4×4 → residual blocks → ReLU → C feature maps → tanh, in [0, 1].

    A block is x ↦ up(x) + conv(ReLU(conv(ReLU(conv(ReLU(up(x))))))) with three 3×3 convolutions,
    all of one depth and spectrally normalised; up repeats every pixel 2×2 in the first three
    blocks and does nothing in later ones. Sides that are no multiple of 8 are made larger and
    cropped at the centre: 28×28 is the middle of 32×32. Published are four blocks of depth 256,
    three convolutions in each, spectral normalisation, 32 latents and an embedding of the class
    (Cao et al. 2021, supplement); the rest of this form is ours:

    - There is no BatchNorm, conditional or other: a picture depends on its own z and label alone,
      in training as in sampling. The class enters beside z.
    - The first and the last layer are not normalised: normalised convolutions cannot set a scale.
    - Spectral norms have no state (`fedsink.models.layers.SpectralConvolution`).

    Attributes:
        label_embedding: length of the label's embedding.
        depth: feature maps of every block (256).
        blocks: residual blocks (4).

    Raises:
        ModelError: for points, or a size below 1.
    """

    name = "biggan"

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        *,
        latent_dim: int = 32,
        latent_law: LatentLaw = "normal",
        label_embedding: int = 32,
        depth: int = 256,
        blocks: int = 4,
        generator: torch.Generator | None = None,
    ) -> None:
        """Build the layers and draw their weights from `generator` (None: seed 0)."""
        options = {"label_embedding": label_embedding, "depth": depth, "blocks": blocks}
        super().__init__(shape, classes, latent_dim, latent_law, options)
        if len(self.shape) != 3:
            raise ModelError(
                f"biggan makes (channels, height, width) images, got shape {self.shape}; use mlp."
            )
        checked_sizes(self.name, *options.values())
        self._start = _start(self.shape, blocks)
        height, width = self._start
        self.embedding = embedding(classes, label_embedding)
        self.first = linear(latent_dim + label_embedding, depth * height * width)
        self.blocks = nn.ModuleList(_Block(depth, grows=i < _DOUBLINGS) for i in range(blocks))
        self.last = convolution(depth, self.shape[0], 3, padding=1)
        initialise(self, generator)

    @classmethod
    def parameter_count(
        cls, shape: tuple[int, ...], classes: int, options: Mapping[str, Any]
    ) -> int:
        """Kernels and biases of the first layer, of all convolutions, and the embedding."""
        latent_dim, label_embedding, depth, blocks = checked_sizes(
            cls.name,
            *(options[key] for key in ("latent_dim", "label_embedding", "depth", "blocks")),
        )
        height, width = _start(shape, blocks)
        first = (latent_dim + label_embedding + 1) * depth * height * width
        inner = blocks * _CONVOLUTIONS * (9 * depth + 1) * depth
        return first + inner + (9 * depth + 1) * shape[0] + classes * label_embedding

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Return images (n, C, H, W) in [0, 1]."""
        inputs = torch.cat([z, self.embedding(labels.to(z.device))], dim=1)
        maps = self.first(inputs).unflatten(1, (-1, *self._start))
        for block in self.blocks:
            maps = block(maps)
        pixels: Tensor = 0.5 + 0.5 * torch.tanh(self.last(relu(maps)))
        _, height, width = self.shape
        top, left = (pixels.shape[2] - height) // 2, (pixels.shape[3] - width) // 2
        return pixels[:, :, top : top + height, left : left + width]


class _Block(nn.Module):
    def __init__(self, depth: int, *, grows: bool) -> None:
        super().__init__()
        self.grows = grows
        self.convolutions = nn.ModuleList(
            spectral_convolution(depth, depth, 3, padding=1) for _ in range(_CONVOLUTIONS)
        )

    def forward(self, maps: Tensor) -> Tensor:
        kept = interpolate(maps, scale_factor=2.0) if self.grows else maps
        change = kept
        for convolve in self.convolutions:
            change = convolve(relu(change))
        return kept + change


def _start(shape: tuple[int, ...], blocks: int) -> tuple[int, int]:
    """Height and width of the first feature maps."""
    height, width = (-(-side // 2 ** min(blocks, _DOUBLINGS)) for side in shape[1:])
    return height, width
