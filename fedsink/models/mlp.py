"""The perceptron generator of local mode (recipes A6) and of the half circle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedsink.errors import ModelError
from fedsink.models.base import Generator, LatentLaw, checked_sizes
from fedsink.models.layers import batch_norm_1d, initialise, linear


class Mlp(Generator):
    """G(z, l) = output(MLP([z, onehot(l)])), hidden layers Linear, BatchNorm, ReLU.

    Attributes:
        batch_norm: normalise the hidden layers by the batch at hand.
        output: "sigmoid" for images in [0, 1], "linear" for points of any range.
        conditional: use the label; None means where there is more than one class.

    Raises:
        ModelError: for an unknown output, or "linear" with images.
    """

    name = "mlp"

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        *,
        latent_dim: int = 16,
        latent_law: LatentLaw = "uniform",
        hidden: Sequence[int] = (256, 256),
        batch_norm: bool = True,
        output: Literal["sigmoid", "linear"] = "sigmoid",
        conditional: bool | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        """Build the layers and draw their weights from `generator` (None: seed 0)."""
        options = {
            "hidden": list(hidden),
            "batch_norm": batch_norm,
            "output": output,
            "conditional": conditional,
        }
        super().__init__(shape, classes, latent_dim, latent_law, options)
        if output not in ("sigmoid", "linear"):
            raise ModelError(f"mlp output must be 'sigmoid' or 'linear', got {output!r}.")
        if output == "linear" and len(self.shape) == 3:
            raise ModelError(
                "mlp output 'linear' is for points; images are in [0, 1] and need 'sigmoid'."
            )
        self.output = output
        self.conditional = classes > 1 if conditional is None else conditional
        width = latent_dim + (classes if self.conditional else 0)
        layers: list[nn.Module] = []
        for units in hidden:
            layers.append(linear(width, units))
            if batch_norm:
                layers.append(batch_norm_1d(units))
            layers.append(nn.ReLU())
            width = units
        layers.append(linear(width, math.prod(self.shape)))
        self.layers = nn.Sequential(*layers)
        initialise(self, generator)

    @classmethod
    def parameter_count(
        cls, shape: tuple[int, ...], classes: int, options: Mapping[str, Any]
    ) -> int:
        """Weights, biases and BatchNorm's scales and shifts of every layer."""
        conditional = classes > 1 if options["conditional"] is None else options["conditional"]
        latent_dim, *hidden = checked_sizes(cls.name, options["latent_dim"], *options["hidden"])
        widths = [latent_dim + (classes if conditional else 0), *hidden, math.prod(shape)]
        normalised = 2 * sum(hidden) if options["batch_norm"] else 0
        return sum((a + 1) * b for a, b in pairwise(widths)) + normalised

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Return images (n, C, H, W) in [0, 1], or points (n, d)."""
        inputs = torch.cat([z, self.one_hot(labels, z)], dim=1) if self.conditional else z
        outputs: Tensor = self.layers(inputs)
        if self.output == "sigmoid":
            outputs = torch.sigmoid(outputs)
        return outputs.reshape(-1, *self.shape)
