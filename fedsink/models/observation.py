"""The observation model: bends and noise that make a drawn picture of a generator's output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor
from torch.nn import functional

from fedsink.data import dct
from fedsink.errors import ModelError
from fedsink.values import Config, checks, strictly

if TYPE_CHECKING:
    from fedsink.privacy.randomness.noise import Stream

# Pictures computed at a time, which bounds the memory.
_BENT_AT_ONCE = 2000
_NOISED_AT_ONCE = 5000


@dataclass(frozen=True)
class ElasticDeformation:
    """x(p) ↦ x(p + u(p)), with u a smooth random field: elastic distortions of a fixed law.

    Small smooth displacements leave the thin sheet that a small generator fills, in directions
    that keep what is shown (Simard, Steinkraus and Platt 2003, section 2). That they keep it is
    knowledge about pictures, not about private data.

    The vertical and the horizontal part of u are independent Gaussian fields with mean 0,
    standard deviation τ·m pixels and correlation exp(−‖p − p'‖²/(2(ℓ·m)²)), m = min(H, W). Values
    between pixels are bilinear; outside the picture its border continues.

    Attributes:
        std: τ ≥ 0, in units of the shorter side; 0 deforms nothing.
        length: ℓ > 0, the correlation length in units of the shorter side; large is smooth.

    Raises:
        ConfigError: a value out of range.
    """

    std: float = 0.0
    length: float = 0.12

    def __post_init__(self) -> None:
        checks.number("observation.deformation.std", self.std)
        checks.positive("observation.deformation.length", self.length)

    def __call__(self, images: Tensor, stream: Stream) -> Tensor:
        """Returns images (n, C, H, W) deformed, in their range; the same images where τ = 0.

        Row i depends only on image i and the stream's i-th normals; its channels move together.
        """
        if self.std == 0.0 or len(images) == 0:
            return images
        height, width = images.shape[-2:]
        pixels = self.std * min(height, width)
        correlated = self.length * min(height, width)
        vertical, horizontal = _root(height, correlated), _root(width, correlated)
        # grid_sample counts a side from −1 to 1, horizontal first.
        still = functional.affine_grid(
            torch.eye(2, 3).unsqueeze(0), [1, 1, height, width], align_corners=False
        )
        unit = torch.tensor([2 / width, 2 / height])
        deformed = []
        for part in images.split(_BENT_AT_ONCE):
            field = pixels * (vertical @ stream.normal(len(part), 2, height, width) @ horizontal)
            grid = (still + field.flip(1).movedim(1, 3) * unit).to(images)
            deformed.append(
                functional.grid_sample(part, grid, padding_mode="border", align_corners=False)
            )
        return torch.cat(deformed)


@dataclass(frozen=True)
class LowPassNoise:
    """x ↦ clamp(x + s·n, 0, 1), with n Gaussian and low-pass: a decoder's observation model.

    It restores full rank to the thin sheet that a small generator fills (the observation model of
    Kingma and Welling 2014, with a variance that is fixed instead of learnt).

    The coefficient of n at radius r of the orthonormal DCT (`fedsink.data.dct`) has standard
    deviation proportional to 1/(1 + (r/r₀)²), r₀ = κ·min(H, W), and n has unit mean square over
    the picture.

    Attributes:
        std: s ≥ 0, in units of the pixel range; 0 adds nothing.
        cutoff: κ > 0, in units of the shorter side; small is smooth.

    Raises:
        ConfigError: a value out of range.
    """

    std: float = 0.0
    cutoff: float = 0.43

    def __post_init__(self) -> None:
        checks.number("observation.noise.std", self.std)
        checks.positive("observation.noise.cutoff", self.cutoff)

    def __call__(self, images: Tensor, stream: Stream) -> Tensor:
        """Returns images (n, C, H, W) in [0, 1] with noise; the same images where s = 0.

        Row i depends only on image i and the stream's i-th normals.
        """
        if self.std == 0.0 or len(images) == 0:
            return images
        # In float64, as bends are: the rounding of a product depends on the number of pictures.
        shaped = self._basis(*images.shape[-2:])
        noisy = [
            part + (stream.normal(*part.shape[:2], len(shaped)) @ shaped).view_as(part).to(part)
            for part in images.split(_NOISED_AT_ONCE)
        ]
        return torch.cat(noisy).clamp_(0.0, 1.0)

    def _basis(self, height: int, width: int) -> Tensor:
        """Returns the DCT's rows, each times the standard deviation of its coefficient."""
        band = dct.disc(height, width, math.hypot(height, width))
        radii = torch.tensor([math.hypot(i, j) for i, j in band], dtype=torch.float64)
        spectrum = 1.0 / (1.0 + (radii / (self.cutoff * min(height, width))) ** 2)
        spectrum *= self.std / spectrum.square().mean().sqrt()
        return spectrum.unsqueeze(1) * dct.basis(height, width, band)


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
        """Raises ModelError for a sample of this shape that can be neither bent nor noised."""
        if len(shape) != 3 and not self._keeps_pictures:
            raise ModelError(
                f"observation.* is for images (C, H, W), and the data's shape is {tuple(shape)}: "
                "set observation.deformation.std=0 and observation.noise.std=0."
            )

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


def _root(side: int, length: float) -> Tensor:
    """Returns the symmetric root of the correlation matrix of `side` pixels in a row."""
    places = torch.arange(side, dtype=torch.float64) / length
    correlation = torch.exp(-0.5 * (places.unsqueeze(1) - places).square())
    values, vectors = torch.linalg.eigh(correlation)
    return (vectors * values.clamp_min(0.0).sqrt()) @ vectors.T
