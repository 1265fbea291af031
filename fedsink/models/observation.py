"""What a drawn picture is, beyond the generator's output: its observation model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from torch import Tensor

from fedsink.errors import ModelError
from fedsink.models.deformation import ElasticDeformation
from fedsink.models.low_pass import LowPassNoise
from fedsink.values import Config, checks, strictly

if TYPE_CHECKING:
    from fedsink.privacy.randomness.noise import Stream


@dataclass(frozen=True)
class Observation:
    """x = clamp(G(ρ·z)∘(id + u) + s·n, 0, 1): wider latents, small bends u, low-pass noise n.

    A generator with a few latents fills a thin sheet of the image space. A classifier trained on
    the sheet is free to do anything across it, and real images lie across it. Under noise the
    sheet is smaller than the data as well, and ρ > 1 draws beyond its edges. All three parts have
    a fixed public law. They matter when samples are drawn, after training, look at no data, and
    cost no privacy.

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
        """The observation model that `observation.*` describes; nothing where it is left out.

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
        """Whether a drawn picture is the generator's own."""
        return self.latent_range == 1.0 and self._keeps_pictures

    @property
    def _keeps_pictures(self) -> bool:
        return self.deformation.std == 0.0 and self.noise.std == 0.0

    def check(self, shape: Sequence[int]) -> None:
        """Raise ModelError for a sample of this shape that can be neither bent nor noised."""
        if len(shape) != 3 and not self._keeps_pictures:
            raise ModelError(
                f"observation.* is for images (C, H, W), and the data's shape is {tuple(shape)}: "
                "set observation.deformation.std=0 and observation.noise.std=0."
            )

    def __call__(self, images: Tensor, stream: Stream) -> Tensor:
        """Return images (n, C, H, W) in [0, 1], made of latents that were widened, as observed.

        Row i depends on image i and its own variates alone.

        Raises:
            ModelError: something that is no image, where bends or noise are on.
        """
        self.check(images.shape[1:])
        if self._keeps_pictures:
            return images
        bent = self.deformation(images, stream.child("deformation"))
        return self.noise(bent, stream.child("noise"))
