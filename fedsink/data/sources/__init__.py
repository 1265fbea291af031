"""Reading records. Only code that runs beside the private data imports this package.

A module here with a function `read` is a source, by the module's name; together with
`conf/data/NAME.yaml` it is a dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Literal

from torch import Tensor

from fedsink.data.labelled import LabelledData, checked, described
from fedsink.data.notes import listening
from fedsink.data.spec import DataSpec
from fedsink.data.users import users_that_take_part
from fedsink.errors import ConfigError, DataError
from fedsink.registry import Registry

__all__ = ["SOURCES", "DataSpec", "Reader", "Split", "give", "load", "notes"]

Split = Literal["train", "test"]

Reader = Callable[
    [DataSpec, Split],
    tuple[Tensor, Tensor]
    | tuple[Tensor, Tensor, Tensor]
    | tuple[Tensor, Tensor, Tensor | None, Tensor],
]
"""Reads one split: (values, labels), (values, labels, users) where the source tells users apart, or
(values, labels, users or None, slots) where its records have names of their own.

All are tensors: values uint8, or floating point in [0, 1] where they are pictures, and one whole
number per record in the others. `load` checks it. Users and slots are numbers of names:
`fedsink.data.names.number_of`.
"""


def own_sources() -> dict[str, Reader]:
    """The sources of this folder by name."""
    modules = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
    return {m.__name__.rpartition(".")[2]: m.read for m in modules if hasattr(m, "read")}


SOURCES: Registry[Reader] = Registry("data.name", own_sources(), group="fedsink.data_sources")
"""Every source by its configuration name: those of this folder, and of installed packages."""


_GIVEN: dict[tuple[DataSpec, Split], LabelledData] = {}  # to this process
_NOTES: dict[tuple[DataSpec, Split], tuple[str, ...]] = {}  # of what this process read


def give(spec: DataSpec, split: Split, data: LabelledData) -> None:
    """Have `load` return these records in this process, and read nothing.

    Args:
        spec: their description.
        split: which of them they are.
        data: what `load` returned in another process.
    """
    _GIVEN[spec, split] = data
    load.cache_clear()


@lru_cache(maxsize=8)
def load(spec: DataSpec, split: Split = "train") -> LabelledData:
    """Read one split of a dataset, of the users that take part, and check it.

    The result is kept for the life of the process, so that a hundred simulated clients share one
    copy.

    Raises:
        ConfigError: for an unknown source or split, or a list of users for a source without any.
        DataError: for files that are missing or corrupt, or records that contradict `spec`.
    """
    if (spec, split) in _GIVEN:
        return _GIVEN[spec, split]
    read = SOURCES.find(spec.name)
    if split not in ("train", "test"):
        raise ConfigError(f"split must be 'train' or 'test', got {split!r}.")
    try:
        with listening() as heard:
            returned = read(spec, split)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"data.name={spec.name} needs the Python package {error.name}: install it."
        ) from None
    _NOTES[spec, split] = tuple(heard)
    values, labels, *numbers = _parts(returned, spec)
    data = checked(values, labels, spec, *numbers)
    if spec.clients_file is None:
        return data
    return data.of_users(users_that_take_part(spec.clients_file))


def notes(spec: DataSpec, split: Split = "train") -> tuple[str, ...]:
    """Sentences on what reading a split changed in its records, once this process has read it.

    They are about private records: for the terminal of a simulation, and for nobody else.
    """
    return _NOTES.get((spec, split), ())


def _parts(returned: object, spec: DataSpec) -> Sequence[Any]:
    """The tensors that a reader returned.

    Raises:
        DataError: it returned another number of them.
    """
    if isinstance(returned, tuple | list) and 2 <= len(returned) <= 4:
        return returned
    raise DataError(
        f"{spec.name}: the reader returned {described(returned)}; expected tensors (values, "
        "labels), (values, labels, users) or (values, labels, users or None, slots)."
    )
