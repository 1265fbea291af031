"""Reading records. Only code that runs beside the private data imports this package."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Literal

from torch import Tensor

from fedsink.data.labelled import LabelledData, checked
from fedsink.data.sources import celeba, digits, half_circle, image_folder, mnist
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError

__all__ = ["SOURCES", "DataSpec", "Split", "load"]

Split = Literal["train", "test"]

SOURCES: dict[str, Callable[[DataSpec, Split], tuple[Tensor, Tensor]]] = {
    "celeba": celeba.read,
    "digits": digits.read,
    "fashion_mnist": mnist.read,
    "half_circle": half_circle.read,
    "image_folder": image_folder.read,
    "mnist": mnist.read,
}
"""Every source by its configuration name; each returns (values, labels), not yet checked."""


@lru_cache(maxsize=8)
def load(spec: DataSpec, split: Split = "train") -> LabelledData:
    """Read one split of a dataset and check it against its public description.

    The result is kept for the life of the process, so that a hundred simulated clients share one
    copy.

    Raises:
        ConfigError: for an unknown source or split.
        DataError: for files that are missing or corrupt, or records that contradict `spec`.
    """
    if spec.name not in SOURCES:
        raise ConfigError(
            f"data.name={spec.name!r} is unknown; choose one of {', '.join(sorted(SOURCES))}."
        )
    if split not in ("train", "test"):
        raise ConfigError(f"split must be 'train' or 'test', got {split!r}.")
    values, labels = SOURCES[spec.name](spec, split)
    return checked(values, labels, spec)
