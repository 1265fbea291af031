"""Perceptron generators: of points or pixels, and of low-pass pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from fedsink.data import dct
from fedsink.errors import ModelError
from fedsink.models.generator_base import Generator, LatentLaw, Options, Shape, checked_sizes
from fedsink.models.layers import blank, class_inputs, initialise, low_pass_basis, normalised
from fedsink.values import as_float

_LARGEST_FACTOR = 2.0**20  # of inputs: far from the limits of floats


class Mlp(Generator):
    """G(z, l) = output(MLP([z, onehot(l)])), hidden layers Linear, BatchNorm, ReLU.

    Attributes:
        batch_norm: normalise the hidden layers by the batch.
        output: "sigmoid" for images in [0, 1], "linear" for points of any range.
        conditional: use the label; None uses it if there is more than one class.

    Raises:
        ModelError: for an unknown output, or "linear" with images.
    """

    name = "mlp"

    def __init__(
        self,
        shape: Shape,
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
        options = {
            "hidden": list(hidden),
            "batch_norm": batch_norm,
            "output": output,
            "conditional": conditional,
        }
        super().__init__(shape, classes, latent_dim, latent_law, options)
        checked_sizes(self.name, latent_dim, *hidden)
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
            layers.append(blank(nn.Linear, width, units))
            if batch_norm:
                layers.append(normalised(nn.BatchNorm1d, units))
            layers.append(nn.ReLU())
            width = units
        layers.append(blank(nn.Linear, width, math.prod(self.shape)))
        self.layers = nn.Sequential(*layers)
        initialise(self, generator)

    @classmethod
    def parameter_count(cls, shape: Shape, classes: int, options: Options) -> int:
        conditional = classes > 1 if options["conditional"] is None else options["conditional"]
        latent_dim, *hidden = checked_sizes(cls.name, options["latent_dim"], *options["hidden"])
        widths = [latent_dim + (classes if conditional else 0), *hidden, math.prod(shape)]
        normalised = 2 * sum(hidden) if options["batch_norm"] else 0
        return sum((a + 1) * b for a, b in pairwise(widths)) + normalised

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        inputs = torch.cat([z, self.one_hot(labels, z)], dim=1) if self.conditional else z
        outputs: Tensor = self.layers(inputs)
        if self.output == "sigmoid":
            outputs = torch.sigmoid(outputs)
        return outputs.reshape(-1, *self.shape)


class DctMlp(Generator):
    """G(z, l) = (1 + tanh(γ·IDCT(MLP([z, s·onehot(l)])))) / 2.

    The perceptron has ReLU layers and puts out the D = C·K orthonormal DCT coefficients with
    √(i² + j²) < radius, the band of `fedsink.data.views.DctView`; IDCT is their inverse
    transform. There is no BatchNorm, so every picture depends only on its z and label.

    Attributes:
        radius: cut-off of the band; None keeps half the shorter side.
        one_hot_scale: s; a large one lets a step move classes apart faster than it bends them.
        output_gain: γ > 0 in tanh(γ·IDCT(·)). The DC coefficient of a black picture is large
            (−√(HW) per unit of tanh's argument), and γ brings it within a few optimiser steps.
        per_class_first_layer: a first weight matrix and bias for each class instead of the
            one-hot input, as if the first layer saw onehot(l) ⊗ [z, 1].

    Raises:
        ModelError: for points, no hidden layer, or an empty band.
    """

    name = "dct_mlp"
    images_only = True

    def __init__(
        self,
        shape: Shape,
        classes: int,
        *,
        latent_dim: int = 3,
        latent_law: LatentLaw = "uniform",
        hidden: Sequence[int] = (256, 256),
        radius: float | None = None,
        one_hot_scale: float = 5.0,
        per_class_first_layer: bool = False,
        output_gain: float = 4.0,
        generator: torch.Generator | None = None,
    ) -> None:
        options = {
            "hidden": list(hidden),
            "radius": radius,
            "one_hot_scale": one_hot_scale,
            "per_class_first_layer": per_class_first_layer,
            "output_gain": output_gain,
        }
        super().__init__(shape, classes, latent_dim, latent_law, options)
        checked_sizes(self.name, latent_dim, *hidden)
        if not hidden:
            raise ModelError("dct_mlp needs at least one hidden layer, got hidden=[].")
        basis = low_pass_basis(self.name, self.shape, radius)
        if not 0.0 < as_float(output_gain) <= _LARGEST_FACTOR:
            raise ModelError(f"dct_mlp needs a positive output_gain, got {output_gain!r}.")
        if not abs(as_float(one_hot_scale)) <= _LARGEST_FACTOR:
            raise ModelError(f"dct_mlp needs a number as one_hot_scale, got {one_hot_scale!r}.")
        if not isinstance(per_class_first_layer, bool):
            raise ModelError(
                f"dct_mlp's per_class_first_layer is true or false, not {per_class_first_layer!r}."
            )
        self.one_hot_scale = one_hot_scale
        self.output_gain = output_gain
        self.per_class_first_layer = per_class_first_layer
        if per_class_first_layer:
            # The one-hot block carries the bias of each class.
            first = blank(nn.Linear, classes * (latent_dim + 1), hidden[0], bias=False)
        else:
            first = blank(nn.Linear, latent_dim + classes, hidden[0])
        widths = [*hidden, self.shape[0] * len(basis)]
        layers: list[nn.Module] = [first]
        for inputs, outputs in pairwise(widths):
            layers += [nn.ReLU(), blank(nn.Linear, inputs, outputs)]
        self.layers = nn.Sequential(*layers)
        self.register_buffer("basis", basis, persistent=False)
        self.basis: Tensor
        initialise(self, generator)
        if per_class_first_layer:
            # A row sees only its class's latent_dim + 1 inputs: that is its fan-in.
            with torch.no_grad():
                first.weight.mul_(classes**0.5)

    @classmethod
    def parameter_count(cls, shape: Shape, classes: int, options: Options) -> int:
        latent_dim, *hidden = checked_sizes(cls.name, options["latent_dim"], *options["hidden"])
        channels, height, width = shape
        band = dct.half_band(height, width, options["radius"])
        widths = [latent_dim + classes, *hidden, channels * len(band)]
        counts = [(a + 1) * b for a, b in pairwise(widths)]
        if options["per_class_first_layer"] and hidden:
            counts[0] = classes * (latent_dim + 1) * hidden[0]
        return sum(counts)

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        classes = self.one_hot(labels, z)
        if self.per_class_first_layer:
            inputs = class_inputs(z, classes)
        else:
            inputs = torch.cat([z, self.one_hot_scale * classes], dim=1)
        coefficients = self.layers(inputs).unflatten(1, (self.shape[0], -1))
        pixels: Tensor = 0.5 + 0.5 * torch.tanh(self.output_gain * coefficients @ self.basis)
        return pixels.reshape(-1, *self.shape)
