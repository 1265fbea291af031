"""Convolutional generators: `Conv` for any size, and the published `Dcgan` and `BigGan`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, relu

from fedsink.errors import ModelError
from fedsink.models.generator_base import (
    Generator,
    LatentLaw,
    Options,
    Shape,
    check_layer,
    check_sizes,
    checked_sizes,
)
from fedsink.models.layers import (
    SpectralConvolution,
    blank,
    class_inputs,
    initialise,
    low_pass_band,
    low_pass_basis,
    normalised,
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
        shape: Shape,
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
        self.first = blank(nn.Linear, classes * (latent_dim + 1), hidden, bias=False)
        self.second = blank(nn.Linear, hidden, math.prod(self.base))
        self.deconvolutions = nn.Sequential()
        for inputs, outputs in pairwise((*maps, self.shape[0])):
            self.deconvolutions.append(nn.ReLU())
            self.deconvolutions.append(
                blank(nn.ConvTranspose2d, inputs, outputs, _KERNEL, stride=2, padding=1)
            )
        initialise(self, generator)
        with torch.no_grad():  # a row sees only its class's latent_dim + 1 inputs
            self.first.weight.mul_(classes**0.5)

    @classmethod
    def parameter_count(cls, shape: Shape, classes: int, options: Options) -> int:
        latent_dim, hidden, *maps = checked_sizes(
            cls.name, options["latent_dim"], options["hidden"], *options["maps"]
        )
        low_pass_band(cls.name, shape, options["radius"])  # refused before anything is built
        first = classes * (latent_dim + 1) * hidden
        second = (hidden + 1) * math.prod(_base(shape, maps))
        kernels = ((a * _KERNEL**2 + 1) * b for a, b in pairwise((*maps, shape[0])))
        return first + second + sum(kernels)

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
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
        shape: Shape,
        classes: int,
        *,
        latent_dim: int = 16,
        latent_law: LatentLaw = "unit",
        label_embedding: int = 8,
        width: int = 64,
        generator: torch.Generator | None = None,
    ) -> None:
        options = {"label_embedding": label_embedding, "width": width}
        super().__init__(shape, classes, latent_dim, latent_law, options)
        if len(self.shape) != 3 or self.shape[1:] not in ((28, 28), (32, 32)):
            raise ModelError(
                f"dcgan makes images of 28×28 or 32×32 pixels with any number of channels, got "
                f"shape {self.shape}; resize the data or use mlp or dct_mlp."
            )
        check_sizes(self.name, ("label_embedding", label_embedding), ("width", width))
        channels, size, _ = self.shape
        self.embedding = blank(nn.Embedding, classes, label_embedding)
        wide, kernel = latent_dim + label_embedding, _FIRST_KERNEL[size]
        self.layers = nn.Sequential(
            blank(nn.ConvTranspose2d, wide, 4 * width, kernel),
            normalised(nn.BatchNorm2d, 4 * width),
            nn.LeakyReLU(0.2),
            blank(nn.ConvTranspose2d, 4 * width, 2 * width, 4, stride=2, padding=1),
            normalised(nn.BatchNorm2d, 2 * width),
            nn.LeakyReLU(0.2),
            blank(nn.ConvTranspose2d, 2 * width, width, 4, stride=2, padding=1),
            normalised(nn.BatchNorm2d, width),
            nn.LeakyReLU(0.2),
            blank(nn.Conv2d, width, channels, 3, padding=1),
        )
        initialise(self, generator)

    @classmethod
    def parameter_count(cls, shape: Shape, classes: int, options: Options) -> int:
        latent_dim, label_embedding, width = checked_sizes(
            cls.name, *(options[key] for key in ("latent_dim", "label_embedding", "width"))
        )
        channels, size, _ = shape
        maps = [latent_dim + label_embedding, 4 * width, 2 * width, width, channels]
        kernels = [_FIRST_KERNEL.get(size, 0), 4, 4, 3]
        layers = sum((a * k * k + 1) * b for (a, b), k in zip(pairwise(maps), kernels, strict=True))
        return layers + 2 * sum(maps[1:4]) + classes * label_embedding

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        inputs = torch.cat([z, self.embedding(labels.to(z.device))], dim=1)
        pixels: Tensor = 0.5 + 0.5 * torch.tanh(self.layers(inputs[:, :, None, None]))
        return pixels


_DOUBLINGS = 3  # of the side: 4 → 32
_CONVOLUTIONS = 3
_MOST_BLOCKS = 16


class BigGan(Generator):
    """[z, embedding(l)] → 256×4×4 → residual blocks → ReLU → C feature maps → tanh, in [0, 1].

    This is the generator published with DP-Sinkhorn for CelebA (Cao et al. 2021).
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
        shape: Shape,
        classes: int,
        *,
        latent_dim: int = 32,
        latent_law: LatentLaw = "normal",
        label_embedding: int = 32,
        width: int = 256,
        blocks: int = 4,
        generator: torch.Generator | None = None,
    ) -> None:
        options = {"label_embedding": label_embedding, "width": width, "blocks": blocks}
        super().__init__(shape, classes, latent_dim, latent_law, options)
        _biggan_sizes(options | {"latent_dim": latent_dim})
        self._start = _biggan_start(self.shape, blocks, width)
        self.embedding = blank(nn.Embedding, classes, label_embedding)
        inputs = latent_dim + label_embedding
        self.first = blank(nn.Linear, inputs, width * math.prod(self._start))
        self.blocks = nn.ModuleList(_Block(width, i < _DOUBLINGS) for i in range(blocks))
        self.last = blank(nn.Conv2d, width, self.shape[0], 3, padding=1)
        initialise(self, generator)

    @classmethod
    def parameter_count(cls, shape: Shape, classes: int, options: Options) -> int:
        latent_dim, label_embedding, width, blocks = _biggan_sizes(options)
        start = width * math.prod(_biggan_start(shape, blocks, width))
        first = (latent_dim + label_embedding + 1) * start
        inner = blocks * _CONVOLUTIONS * (9 * width + 1) * width
        return first + inner + (9 * width + 1) * shape[0] + classes * label_embedding

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        inputs = torch.cat([z, self.embedding(labels.to(z.device))], dim=1)
        maps = self.first(inputs).unflatten(1, (-1, *self._start))
        for block in self.blocks:
            maps = block(maps)
        pixels: Tensor = 0.5 + 0.5 * torch.tanh(self.last(relu(maps)))
        _, height, width = self.shape
        top, left = (pixels.shape[2] - height) // 2, (pixels.shape[3] - width) // 2
        return pixels[:, :, top : top + height, left : left + width]


class _Block(nn.Module):
    def __init__(self, width: int, grows: bool) -> None:
        super().__init__()
        self.grows = grows
        self.convolutions = nn.ModuleList(
            blank(SpectralConvolution, width, width, 3, padding=1) for _ in range(_CONVOLUTIONS)
        )

    def forward(self, maps: Tensor) -> Tensor:
        shortcut = interpolate(maps, scale_factor=2.0) if self.grows else maps
        change = shortcut
        for convolve in self.convolutions:
            change = convolve(relu(change))
        return shortcut + change


def _biggan_sizes(options: Options) -> list[int]:
    keys = ("latent_dim", "label_embedding", "width", "blocks")
    sizes = checked_sizes(BigGan.name, *(options[key] for key in keys))
    if sizes[-1] > _MOST_BLOCKS:
        raise ModelError(
            f"biggan has at most {_MOST_BLOCKS} blocks, got {sizes[-1]}: leave some out."
        )
    return sizes


def _biggan_start(shape: Shape, blocks: int, maps: int) -> tuple[int, int]:
    """Returns height and width of the first feature maps."""
    times = 2 ** min(blocks, _DOUBLINGS)
    height, width = (-(-side // times) for side in shape[1:])
    check_layer(BigGan.name, maps * height * width * times**2)
    return height, width
