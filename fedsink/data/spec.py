"""The public description of a dataset, fixed in the configuration before any record is read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedsink.errors import ConfigError
from fedsink.values import Config, checks, strictly

_FARTHEST = 2.0**32  # from 0, of a value in data.range
MOST_VALUES = 1 << 22
"""Values of one record or picture: 2048×2048 in grey."""
LONGEST_SIDE = 4096
ARRAYS = "arrays"
"""The name of records that a program holds, in place of a source's."""
MOST_CLASSES = 1 << 16


def check_sizes(shape: Sequence[int], classes: int) -> None:
    """Refuses sizes (whole numbers) that a received file may name and no machine can hold."""
    if math.prod(shape) > MOST_VALUES or (len(shape) > 1 and max(shape) > LONGEST_SIDE):
        raise ConfigError(
            f"One record has at most {MOST_VALUES:,} values and sides of at most {LONGEST_SIDE}, "
            f"and the shape {list(shape)} has more: choose a smaller one."
        )
    if classes > MOST_CLASSES:
        raise ConfigError(f"There are at most {MOST_CLASSES:,} classes, got {classes:,}.")


def of_arrays(data: object) -> bool:
    """True for the table `data` of a run on arrays, which only the program has that made it."""
    return isinstance(data, Mapping) and data.get("name") == ARRAYS


@dataclass(frozen=True)
class DataSpec:
    """Public facts about the data: they enter budgets and scalings, records never do.

    It is read strictly: a source has no options beside these.

    Attributes:
        name: the source, one of `fedsink.data.sources.SOURCES`.
        shape: shape of one record, (channels, height, width) or (dimension,) for points.
        classes: the public label map; label i is classes[i]. It may name classes that a client
            does not hold.
        nominal_records: the public size to which a sampling rate and an averaged gradient refer.
            Whoever holds more records is refused, and nobody else is told their number.
        root: folder with the files; what None means is the source's choice.
        download: whether a missing public dataset may be downloaded into the cache folder. A
            given `root` is never written to.
        clients_file: a CSV file of the users that take part, for sources that tell users apart;
            see `fedsink.data.labelled.participants`. None: all of them.
        range: the values of black and of white in pictures of more than 8 bits; None: what their
            type or their file says.

    Raises:
        ConfigError: for an impossible shape, an empty or repeated class list, no records, or a
            range that is none.
    """

    name: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    nominal_records: int
    root: str | None = None
    download: bool = True
    clients_file: str | None = None
    range: tuple[float, float] | None = None

    @classmethod
    def from_config(cls, values: Config) -> DataSpec:
        """Returns the description in a `data` table, without what earlier versions wrote there."""
        options = {k: v for k, v in values.items() if k not in ("corrupt", "relabel")}
        relabel = values.get("relabel")
        if isinstance(relabel, Mapping) and "classes" in relabel:
            options["classes"] = relabel["classes"]  # of the source that drew these records
        return strictly(cls, options, "data")

    def __post_init__(self) -> None:
        if not _is_list(self.shape, int) or len(self.shape) not in (1, 3) or min(self.shape) < 1:
            raise ConfigError(
                f"data.shape must be (channels, height, width) or (dimension,) with positive "
                f"sizes, got {self.shape!r}: write data.shape=[3,32,32]."
            )
        if not _is_list(self.classes, int, str):
            raise ConfigError(
                f"data.classes must be a list of names, got {self.classes!r}: write "
                """data.classes=[cat,dog]; a name that reads as another value stands in quotes, """
                """'data.classes=["true","1.0"]'."""
            )
        check_sizes(self.shape, len(self.classes))
        names = tuple(map(str, self.classes))
        if not all(names) or not names or len(set(names)) != len(names):
            raise ConfigError(f"data.classes must list at least one class, each once, got {names}.")
        checks.count("data.nominal_records", self.nominal_records)
        if self.range is not None:
            if (
                not _is_list(self.range, int, float)
                or len(self.range) != 2
                or not -_FARTHEST <= self.range[0] < self.range[1] <= _FARTHEST
            ):
                raise ConfigError(
                    f"data.range must be [BLACK,WHITE], two numbers of which the second is larger, "
                    f"got {self.range!r}: write data.range=[0,4095]."
                )
            object.__setattr__(self, "range", tuple(map(float, self.range)))
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "classes", names)


def _is_list(values: object, *kinds: type) -> bool:
    """Tells a list of values of these types; True and False are no numbers."""
    return isinstance(values, list | tuple) and all(type(value) in kinds for value in values)
