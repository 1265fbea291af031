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
from fedsink.registry import Registry

__all__ = ["SOURCES", "DataSpec", "Reader", "Split", "load"]

Split = Literal["train", "test"]

Reader = Callable[[DataSpec, Split], tuple[Tensor, Tensor]]
"""Reads one split: (values, labels), not yet checked against the public description."""

SOURCES: Registry[Reader] = Registry(
    "data.name",
    {
        "celeba": celeba.read,
        "digits": digits.read,
        "fashion_mnist": mnist.read,
        "half_circle": half_circle.read,
        "image_folder": image_folder.read,
        "mnist": mnist.read,
    },
    group="fedsink.data_sources",
)


@lru_cache(maxsize=8)
def load(spec: DataSpec, split: Split = "train") -> LabelledData:
    """Read one split of a dataset and check it against its public description.

    The result is kept for the life of the process, so that a hundred simulated clients share one
    copy.

    Raises:
        ConfigError: for an unknown source or split.
        DataError: for files that are missing or corrupt, or records that contradict `spec`.
    """
    read = SOURCES.find(spec.name)
    if split not in ("train", "test"):
        raise ConfigError(f"split must be 'train' or 'test', got {split!r}.")
    values, labels = read(spec, split)
    return checked(values, labels, spec)
