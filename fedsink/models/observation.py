"""The observation model: bends and noise that make a drawn picture of a generator's output."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from fedsink.data import dct
from fedsink.data.deformation import ElasticDeformation
from fedsink.errors import ConfigError, ModelError
from fedsink.values import Config, checks, strictly

if TYPE_CHECKING:
    from fedsink.privacy.randomness.noise import Stream

_NOISED_AT_ONCE = 5000  # pictures, which bounds the memory


@dataclass(frozen=True)
class LowPassNoise:
    """x ↦ clamp(x + s·n, 0, 1), with n Gaussian and low-pass: a decoder's observation model.

    It restores full rank to the thin sheet that a small generator fills (the observation model of
    Kingma and Welling 2014, with a variance that is fixed instead of learnt). The coefficient of n
    at radius r of the orthonormal DCT has standard deviation proportional to 1/(1 + (r/r₀)²),
    r₀ = κ·min(H, W), and n has unit mean square over the picture.
    """

    std: float = 0.0  # s ≥ 0, in units of the pixel range; 0 adds nothing
    cutoff: float = 0.43  # κ > 0, in units of the shorter side; small is smooth

    def __post_init__(self) -> None:
        checks.number("observation.noise.std", self.std)
        checks.positive("observation.noise.cutoff", self.cutoff)

    def __call__(self, images: Tensor, stream: Stream) -> Tensor:
        """Returns images (n, C, H, W) in [0, 1] with noise, each of its own normals."""
        if self.std == 0.0 or len(images) == 0:
            return images
        # In float64, as bends are: the rounding of a product depends on the number of pictures.
        height, width = images.shape[-2:]
        band = dct.disc(height, width, math.hypot(height, width))
        radii = torch.tensor([math.hypot(i, j) for i, j in band], dtype=torch.float64)
        spectrum = 1.0 / (1.0 + (radii / (self.cutoff * min(height, width))) ** 2)
        spectrum *= self.std / spectrum.square().mean().sqrt()
        shaped = spectrum.unsqueeze(1) * dct.basis(height, width, band)
        noisy = [
            part + (stream.normal(*part.shape[:2], len(shaped)) @ shaped).view_as(part).to(part)
            for part in images.split(_NOISED_AT_ONCE)
        ]
        return torch.cat(noisy).clamp_(0.0, 1.0)


@dataclass(frozen=True)
class Observation:
    """x = clamp(G(ρ·z)∘(id + u) + s·n, 0, 1): wider latents, small bends u, low-pass noise n.

    A generator with a few latents fills a thin sheet of the image space. Off the sheet nothing
    holds a classifier that was trained on it, and there are the real images. A generator trained
    under noise also fills a smaller sheet than the data, and ρ > 1 draws beyond its edges. All
    three parts have a fixed public law. They act when samples are drawn, after training, read no
    data, and cost no privacy.

    Attributes:
        deformation: the bends u.
        noise: s·n.
        latent_range: ρ > 0; `fedsink.models.sample` multiplies the latents by it.

    Raises:
        ConfigError: a value out of range.
    """

    deformation: ElasticDeformation = field(default_factory=ElasticDeformation)
    noise: LowPassNoise = field(default_factory=LowPassNoise)
    latent_range: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("observation.latent_range", self.latent_range)

    @classmethod
    def from_dict(cls, values: Config) -> Self:
        """Returns the observation model of the keys `observation.*`; a part left out does nothing.

        Raises:
            ConfigError: an unknown key, or a value out of range.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"observation is a group of keys, not {values!r}.")
        laws: dict[str, type] = {"deformation": ElasticDeformation, "noise": LowPassNoise}
        parts = {
            name: strictly(laws[name], law, f"observation.{name}") if name in laws else law
            for name, law in values.items()
        }
        return strictly(cls, parts, "observation")

    @property
    def changes_nothing(self) -> bool:
        """True if a drawn picture is the generator's output."""
        return self.latent_range == 1.0 and self._keeps_pictures

    @property
    def _keeps_pictures(self) -> bool:
        return self.deformation.std == 0.0 and self.noise.std == 0.0

    def check(self, shape: Sequence[int]) -> None:
        """Raises ModelError for a sample of this shape that can be neither bent nor noised.

        ConfigError where the pictures are too large for the noise.
        """
        if len(shape) != 3 and not self._keeps_pictures:
            raise ModelError(
                f"observation.* is for images (C, H, W), and the data's shape is {tuple(shape)}: "
                "set observation.deformation.std=0 and observation.noise.std=0."
            )
        if self.noise.std > 0.0 and len(shape) == 3:
            dct.check_size(math.prod(shape[1:]), *shape[1:])

    def __call__(self, images: Tensor, stream: Stream) -> Tensor:
        """Returns images (n, C, H, W) in [0, 1], of widened latents, bent and noised.

        Row i depends only on image i and the i-th variates.

        Raises:
            ModelError: points, where bends or noise are on.
        """
        self.check(images.shape[1:])
        if self._keeps_pictures:
            return images
        bent = self.deformation(images, stream.child("deformation"))
        return self.noise(bent, stream.child("noise"))
