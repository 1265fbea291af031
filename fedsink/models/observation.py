"""What a drawn picture is, beyond the generator's output: its observation model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from fedsink.errors import ModelError
from fedsink.models.deformation import ElasticDeformation
from fedsink.models.low_pass import LowPassNoise

if TYPE_CHECKING:
    from fedsink.privacy.noise import Stream


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

    @property
    def changes_nothing(self) -> bool:
        """Whether a drawn picture is the generator's own."""
        return self.deformation.std == 0.0 and self.noise.std == 0.0

    def __call__(self, images: Tensor, stream: Stream) -> Tensor:
        """Return images (n, C, H, W) in [0, 1] as observed.

        Row i depends on image i and its own variates alone.

        Raises:
            ModelError: something that is no image, unless nothing changes.
        """
        if self.changes_nothing:
            return images
        if images.ndim != 4:
            raise ModelError(
                f"observation.* is for images (n, C, H, W), got shape {tuple(images.shape)}: set "
                "observation.deformation.std=0 and observation.noise.std=0."
            )
        bent = self.deformation(images, stream.child("deformation"))
        return self.noise(bent, stream.child("noise"))
