"""Reading records. Only code that runs beside the private data imports this package.

A module here with a function `read` is a source, by the module's name; together with
`conf/data/NAME.yaml` it is a dataset. A package adds both by entry points:

    [project.entry-points."fedsink.data_sources"]
    scans = "my_package.scans:read"
    [project.entry-points."fedsink.conf"]
    my_package = "my_package.conf"  # which holds data/scans.yaml

`load` reads:

>>> from fedsink.data.spec import DataSpec
>>> load(DataSpec("half_circle", (2,), ("arc",), nominal_records=100)).values.shape
torch.Size([100, 2])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Literal

from torch import Tensor

from fedsink.data.labelled import LabelledData, Reading, checked_records, described, participants
from fedsink.data.spec import DataSpec, of_arrays
from fedsink.errors import ConfigError, DataError
from fedsink.registry import Registry

Split = Literal["train", "test"]

Reader = Callable[[DataSpec, Split], Reading | tuple[Tensor | None, ...]]
"""Reads one split from `spec.root`, in which it writes nothing.

It raises ConfigError for what the description says and DataError for what the files hold. A package
that it misses is named to the user; any other error counts as a defect. `inventory.Inventory` finds
files and says which were passed over, `cache.fill_once` keeps what took long to decode. Readers of
installed packages may return a tuple of two to four tensors instead of a `Reading`: values, labels,
users (or None) and slots."""


def own_sources() -> dict[str, Reader]:
    """Returns the sources of this folder by name."""
    modules = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
    found = {m.__name__.rpartition(".")[2]: m.read for m in modules if hasattr(m, "read")}
    return found | {"fashion_mnist": found["mnist"]}  # which comes in files of the same form


SOURCES: Registry[Reader] = Registry("data.name", own_sources(), group="fedsink.data_sources")
"""Sources by their configuration name: those of this folder, and of installed packages."""


_GIVEN: dict[tuple[DataSpec, Split], LabelledData] = {}  # to this process
_NOTES: dict[tuple[DataSpec, Split], tuple[str, ...]] = {}  # of what this process read


def give(spec: DataSpec, split: Split, data: LabelledData) -> None:
    """Has `load` return records that this process has, and read nothing."""
    _GIVEN[spec, split] = data
    forget()


@contextmanager
def held(spec: DataSpec, **splits: LabelledData) -> Iterator[None]:
    """Has `load` return these splits inside the block; afterwards nothing here refers to them."""
    names: Any = tuple(splits)
    for name in names:
        give(spec, name, splits[name])
    try:
        yield
    finally:
        for name in names:
            del _GIVEN[spec, name]
        forget()


def refuse_arrays(data: object) -> None:
    """Refuses the table `data` of a run on arrays."""
    if of_arrays(data):
        raise ConfigError(
            "The records of this run are arrays of a Python program: there fedsink.Federation "
            "continues it, by the same fit(…, folder=…), and tests it, by evaluate."
        )


def forget() -> None:
    """Has `load` read again what it has returned."""
    _load.cache_clear()


def load(spec: DataSpec, split: Split = "train") -> LabelledData:
    """Reads one split of a dataset, of the users that take part, and checks it."""
    # The last eight results are kept, so that a hundred simulated clients share one copy.
    return _load(spec, split)


@lru_cache(maxsize=8)  # whose keys are the arguments as they are given: hence `load`
def _load(spec: DataSpec, split: Split) -> LabelledData:
    if (spec, split) in _GIVEN:
        return _GIVEN[spec, split]
    refuse_arrays({"name": spec.name})
    read = SOURCES.find(spec.name)
    if split not in ("train", "test"):
        raise ConfigError(f"split must be 'train' or 'test', got {split!r}.")
    try:
        reading: Any = read(spec, split)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"data.name={spec.name} needs the Python package {error.name}: install it."
        ) from None
    if isinstance(reading, tuple | list) and 2 <= len(reading) <= 4:
        reading = Reading(*reading)
    if not isinstance(reading, Reading):
        raise DataError(
            f"{spec.name}: the reader returned {described(reading)}; expected tensors (values, "
            "labels), (values, labels, users) or (values, labels, users or None, slots)."
        )
    _NOTES[spec, split] = reading.notes
    data = checked_records(reading, spec)
    return data if spec.clients_file is None else data.of_users(participants(spec.clients_file))


def notes(spec: DataSpec, split: Split = "train") -> tuple[str, ...]:
    """Sentences on what reading a split in this process passed over, changed and found again."""
    # They are about private records: for the terminal of a simulation or of a node, and no other.
    if (spec, split) not in _NOTES:
        return ()
    records = load(spec, split)
    # A name in a file must not move the terminal's cursor.
    sentences = [
        "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(note))
        for note in _NOTES[spec, split]
    ]
    if repeated := records.repeated():
        sentences.append(
            f"{repeated} of {len(records)} records {'is' if repeated == 1 else 'are'} equal to "
            "another one, bit by bit: a guarantee for every record holds for each of them alone."
        )
    return tuple(sentences)
