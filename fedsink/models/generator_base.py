"""The interface of a generator to training, drawing and storage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from fedsink.data import spec
from fedsink.errors import ModelError

if TYPE_CHECKING:
    from fedsink.privacy.randomness.noise import Stream

_LARGEST_SIZE = 1 << 30
_LARGEST_LAYER = 1 << 24
_MOST_LAYERS = 64

Shape = tuple[int, ...]
Options = Mapping[str, Any]
LatentLaw = Literal["uniform", "unit", "normal"]
"""U[-1, 1], U[0, 1] or N(0, 1) in every latent coordinate."""


class Generator(nn.Module, ABC):
    """A map G(z, label) from latent vectors and labels to images in [0, 1], or to points.

    A class that a configuration can name is called with (shape, classes), with the keyword
    `generator` (random numbers for the initial weights, or None) and with its options as further
    keywords. An installed package adds one as the entry point `name` of "fedsink.generators".

    BatchNorm layers keep no running statistics: training and sampling both normalise by the
    batch, so a picture depends on the rows generated beside it (see `sample`).

    Attributes:
        shape: shape of one output, (channels, height, width) or (dimension,).
        classes: number of labels.
        latent_dim: length of z.
        latent_law: distribution of z.
        options: the keyword arguments that rebuild this architecture (JSON values).

    Raises:
        ModelError: for a shape or size that cannot be generated.
    """

    name: ClassVar[str]
    images_only: ClassVar[bool] = False

    def __init__(
        self,
        shape: Shape,
        classes: int,
        latent_dim: int,
        latent_law: LatentLaw,
        options: Options,
    ) -> None:
        """Checks and stores the description; subclasses add layers and initialise them."""
        super().__init__()
        self.shape = tuple(int(s) for s in shape)
        if len(self.shape) not in (1, 3) or min(self.shape) < 1:
            raise ModelError(
                f"a generator makes (channels, height, width) images or (dimension,) points, got "
                f"shape {self.shape}."
            )
        if self.images_only and len(self.shape) != 3:
            raise ModelError(
                f"{self.name} makes images (channels, height, width), got shape {self.shape}; use "
                "mlp for points."
            )
        spec.check_sizes(self.shape, classes)
        check_sizes("a generator", ("classes", classes), ("latent_dim", latent_dim))
        if latent_law not in ("uniform", "unit", "normal"):
            raise ModelError(
                f"latent_law must be 'uniform', 'unit' or 'normal', got {latent_law!r}."
            )
        self.classes = classes
        self.latent_dim = latent_dim
        self.latent_law: LatentLaw = latent_law
        self.options = dict(options) | {"latent_dim": latent_dim, "latent_law": latent_law}

    def latent(self, n: int, stream: Stream) -> Tensor:
        """Returns z, float32 (n, latent_dim), drawn from the stream, on the generator's device."""
        if self.latent_law == "normal":
            z = stream.normal(n, self.latent_dim)
        else:
            z = stream.uniform(n, self.latent_dim)
            if self.latent_law == "uniform":
                z = 2.0 * z - 1.0
        return z.to(dtype=torch.float32, device=next(self.parameters()).device)

    def one_hot(self, labels: Tensor, like: Tensor) -> Tensor:
        """Returns the labels (n,) as unit vectors (n, classes), dtype and device of `like`."""
        return one_hot(labels, self.classes).to(like)

    @property
    def uses_batch_statistics(self) -> bool:
        """True if a row's image depends on the other rows of its batch."""
        return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.modules())

    @classmethod
    def parameter_count(cls, shape: Shape, classes: int, options: Options) -> int:
        """Returns the number of weights of a generator of this description, without building it.

        A node compares it with the weights that a message holds before it builds anything.
        `options` are all keyword arguments of the constructor except `generator`.

        Raises:
            ModelError: a size is not a whole number from 1 to 2³⁰, there are too many layers, or
                the class does not say how many weights it has.
        """
        raise ModelError(
            f"generator={cls.name} does not say how many weights it has (`parameter_count`), so no "
            "client builds it: choose another generator or strategy."
        )

    @abstractmethod
    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Returns images (n, C, H, W) in [0, 1], or points (n, d), for z (n, latent_dim)."""


def check_sizes(name: str, *sizes: tuple[str, int]) -> None:
    """Raises ModelError for a named size below 1."""
    for what, number in sizes:
        if number < 1:
            raise ModelError(f"{name} needs {what} of at least 1, got {number}.")


def check_layer(name: str, values: int) -> None:
    """Raises ModelError for feature maps of too many values of one picture."""
    if values > _LARGEST_LAYER:
        raise ModelError(
            f"{name} has layers of at most {_LARGEST_LAYER:,} values for a picture, got "
            f"{values:,}: choose fewer feature maps or smaller pictures."
        )


def checked_sizes(name: str, *sizes: object) -> list[int]:
    """Returns the sizes of a generator's parts, 1 to 2³⁰ each; a message may have named them."""
    if len(sizes) > _MOST_LAYERS:
        raise ModelError(
            f"{name} has at most {_MOST_LAYERS} layers, got {len(sizes)}: leave some out."
        )
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= _LARGEST_SIZE:
            raise ModelError(f"{name} needs whole sizes from 1 to {_LARGEST_SIZE}, got {size!r}.")
    return [int(size) for size in sizes]  # type: ignore[call-overload]
