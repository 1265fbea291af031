"""Generators by their configuration name."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from fedsink.errors import ModelError
from fedsink.models.base import Generator
from fedsink.models.dcgan import Dcgan
from fedsink.models.dct_mlp import DctMlp
from fedsink.models.mlp import Mlp

GENERATORS: dict[str, type[Generator]] = {cls.name: cls for cls in (Dcgan, DctMlp, Mlp)}


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
    chosen = _options(name, options)
    cls: Any = GENERATORS[name]
    made: Generator = cls(shape, classes, generator=generator, **chosen)
    return made


def parameter_count(name: str, shape: tuple[int, ...], classes: int, **options: Any) -> int:
    """How many weights `build` would make of the same arguments; nothing is built.

    Raises:
        ModelError: for an unknown name or option, or sizes that no generator has.
    """
    chosen = _options(name, options)
    return GENERATORS[name].parameter_count(shape, classes, chosen)


def _options(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The options of a generator, those that are not given with the constructor's defaults."""
    if name not in GENERATORS:
        raise ModelError(
            f"generator {name!r} is unknown; choose one of {', '.join(sorted(GENERATORS))}."
        )
    known = {
        p.name: p.default
        for p in inspect.signature(GENERATORS[name]).parameters.values()
        if p.kind is p.KEYWORD_ONLY and p.name != "generator"
    }
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ModelError(f"{name} has no option {unknown[0]!r}; it has {', '.join(known)}.")
    return known | given
