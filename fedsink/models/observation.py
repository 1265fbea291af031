"""What a drawn picture is, beyond the generator's output: its observation model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from torch import Tensor

from fedsink.errors import ModelError
from fedsink.models.deformation import ElasticDeformation
from fedsink.models.low_pass import LowPassNoise
from fedsink.values import Config, strictly

if TYPE_CHECKING:
    from fedsink.privacy.randomness.noise import Stream


@dataclass(frozen=True)
class Observation:
    """x = clamp(G(z)∘(id + u) + s·n, 0, 1): small bends u, then low-pass noise n.

    A generator with a few latents fills a thin sheet of the image space. A classifier trained on
    the sheet is free to do anything across it, and real images lie across it. Both parts have a
    fixed public law. They are drawn when samples are drawn, after training, look at no data, and
    cost no privacy.

    Attributes:
        deformation: the bends u.
        noise: s·n.
    """

    deformation: ElasticDeformation = field(default_factory=ElasticDeformation)
    noise: LowPassNoise = field(default_factory=LowPassNoise)

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
        return self.deformation.std == 0.0 and self.noise.std == 0.0

    def check(self, shape: Sequence[int]) -> None:
        """Raise ModelError for a sample of this shape that is no image, unless nothing changes."""
        if len(shape) != 3 and not self.changes_nothing:
            raise ModelError(
                f"observation.* is for images (C, H, W), and the data's shape is {tuple(shape)}: "
                "set observation.deformation.std=0 and observation.noise.std=0."
            )

    def __call__(self, images: Tensor, stream: Stream) -> Tensor:
        """Return images (n, C, H, W) in [0, 1] as observed.

        Row i depends on image i and its own variates alone.

        Raises:
            ModelError: something that is no image, unless nothing changes.
        """
        self.check(images.shape[1:])
        if self.changes_nothing:
            return images
        bent = self.deformation(images, stream.child("deformation"))
        return self.noise(bent, stream.child("noise"))
