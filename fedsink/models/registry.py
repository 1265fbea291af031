"""Generators by their configuration name."""

from __future__ import annotations

from typing import Any

import torch

from fedsink.errors import ModelError
from fedsink.models.base import Generator
from fedsink.models.biggan import BigGan
from fedsink.models.conv import Conv
from fedsink.models.dcgan import Dcgan
from fedsink.models.dct_mlp import DctMlp
from fedsink.models.mlp import Mlp
from fedsink.registry import Registry

GENERATORS: Registry[type[Generator]] = Registry(
    "generator",
    {cls.name: cls for cls in (BigGan, Conv, Dcgan, DctMlp, Mlp)},
    group="fedsink.generators",
    error=ModelError,
)


def build(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    *,
    generator: torch.Generator | None = None,
    **options: Any,
) -> Generator:
    """Build the generator `name` for images of `shape` and that many classes.

    Args:
        name: a key of `GENERATORS`.
        shape: (channels, height, width), or (dimension,) for points.
        classes: number of labels.
        generator: random numbers for the initial weights; None means seed 0. The global random
            state is neither read nor changed.
        options: the architecture's own keyword arguments.

    Raises:
        ModelError: for an unknown name or option (it lists what exists), or a bad value.
    """
    made: Generator = GENERATORS.build(name, options, shape, classes, generator=generator)
    return made


def parameter_count(name: str, shape: tuple[int, ...], classes: int, **options: Any) -> int:
    """How many weights `build` would make of the same arguments; nothing is built.

    Raises:
        ModelError: for an unknown name or option, or sizes that no generator has.
    """
    complete = GENERATORS.options(name, options, positional=2, keywords=("generator",))
    return GENERATORS[name].parameter_count(shape, classes, complete)
