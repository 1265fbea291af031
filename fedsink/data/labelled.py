"""Records with their labels, checked once when they are loaded, and numbers for names.

The number of a user or of a record's name depends only on that name, so whatever is dealt by number
stays when other users or records come or go.
"""

from __future__ import annotations

import csv
import hashlib
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError, DataError

_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, eq=False)
class Reading:
    """Unchecked records, as a source reads them from its files.

    Attributes:
        values: the records (N, *shape): uint8, or floating point, in [0, 1] for pictures.
        labels: a whole number per record (N,), its position in the public label map.
        users: the number of each record's user (N,) int64; None where the source tells no users
            apart.
        slots: the number of each record's name (N,) int64, which stays when other records come or
            go; None where records have no names, but only lines. GS-WGAN deals records to critics
            by it, other methods ignore it. Numbers of users and of names are those of
            `fedsink.data.labelled.number_of`.
        notes: sentences on what was passed over and what reading changed in the records, for
            whoever holds them and for nobody else: they stand on the terminal of a simulation, and
            on that of a node.
    """

    values: Tensor
    labels: Tensor
    users: Tensor | None = None
    slots: Tensor | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class LabelledData:
    """Checked records `values` (N, *shape) and their int64 `labels` (N,).

    uint8 values are stored as they are (a quarter of the memory) and scaled by 1/255 when taken.
    Loaded data is shared by everything in the process: treat the tensors as read-only. Users and
    slots are those of `Reading`.
    """

    values: Tensor
    labels: Tensor
    users: Tensor | None = None
    slots: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Returns copies of the records at `indices`: float32 values and int64 labels.

        Whole numbers come out in [0, 1], floats as they are. An empty `indices` (a normal outcome
        of Poisson sampling) gives tensors with zero rows.
        """
        values = self.values[indices]
        if values.dtype == torch.uint8:
            values = values.to(torch.float32).div_(255.0)
        return values, self.labels[indices]

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the tensors that there are by name, for `of_arrays` in another process."""
        return {name: t.numpy() for name, t in vars(self).items() if t is not None}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> LabelledData:
        """Returns the data whose `arrays` these are, without a copy of them."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # memory that is shared is read-only, as records are
            return cls(**{name: torch.from_numpy(values) for name, values in arrays.items()})

    def repeated(self) -> int:
        """Returns the number of records that are equal to an earlier one, bit by bit."""
        rows = self.values.flatten(1).numpy()
        return len(self) - len({hash(row.tobytes()) for row in rows})

    def digest(self) -> str:
        """Returns the SHA-256 over names, shapes, types and bytes of `arrays`, in hexadecimal."""
        state = hashlib.sha256()
        for name, values in self.arrays().items():
            state.update(f"{name}|{values.dtype}{values.shape}|".encode())
            state.update(np.ascontiguousarray(values).data)
        return state.hexdigest()

    def of_users(self, numbers: Collection[int]) -> LabelledData:
        """Returns the records of the users with these numbers."""
        if self.users is None:
            raise ConfigError(
                "data.clients_file selects users, and this source tells none apart: leave it out."
            )
        mask = torch.isin(self.users, torch.tensor(sorted(numbers), dtype=torch.int64))
        if not bool(mask.any()):
            raise DataError(
                "data.clients_file marks none of the users of these records True; name the list "
                "that belongs to data.root."
            )
        slots = None if self.slots is None else self.slots[mask]
        return LabelledData(self.values[mask], self.labels[mask], self.users[mask], slots)


def checked_records(reading: Reading, spec: DataSpec) -> LabelledData:
    """Returns the records after comparing them with their public description.

    A wrong record is refused here, at load, or by `Shard.checked`, and not when a sampler happens
    to draw it: an error in the middle of a run would reveal that it was drawn.
    """
    values, labels, users, slots = reading.values, reading.labels, reading.users, reading.slots
    for name, part in (("values", values), ("labels", labels), ("users", users), ("slots", slots)):
        if part is None and name in ("users", "slots"):
            continue
        if not isinstance(part, Tensor) or part.layout != torch.strided or part.ndim == 0:
            raise DataError(
                f"{spec.name}: the reader returned {described(part)} for the {name}; expected a "
                "dense torch.Tensor with an entry for each record (torch.as_tensor makes one)."
            )
    if values.dtype != torch.uint8 and not values.dtype.is_floating_point:
        raise DataError(
            f"{spec.name}: values must be uint8, from 0 to 255, or floating point, got "
            f"{described(values)}; convert them."
        )
    if len(values) == 0 or len(values) != len(labels):
        raise DataError(
            f"{spec.name}: expected as many labels as records and at least one of each, "
            f"got {len(values)} records and {len(labels)} labels."
        )
    if tuple(values.shape[1:]) != spec.shape:
        raise DataError(
            f"{spec.name}: records have shape {tuple(values.shape[1:])}, but data.shape says "
            f"{spec.shape}; change data.shape or the files."
        )
    if labels.ndim != 1 or labels.dtype not in _WHOLE:
        raise DataError(
            f"{spec.name}: labels must be one whole number per record, got {labels.dtype} "
            f"of shape {tuple(labels.shape)}."
        )
    wrong = labels[(labels < 0) | (labels >= len(spec.classes))]
    if len(wrong):
        raise DataError(
            f"{spec.name}: label {int(wrong[0])} is outside the {len(spec.classes)} classes of "
            f"data.classes (0 to {len(spec.classes) - 1}); extend data.classes or fix the labels."
        )
    for name, numbers in (("users", users), ("slots", slots)):
        if numbers is not None and (numbers.shape != labels.shape or numbers.dtype != torch.int64):
            raise DataError(
                f"{spec.name}: {name} must be one int64 number per record, got {numbers.dtype} of "
                f"shape {tuple(numbers.shape)}."
            )
    if values.dtype != torch.uint8:
        values = values.to(torch.float32)  # before the check: a float64 may be infinite then
        finite = torch.isfinite(values)
        if not bool(finite.all()):
            raise DataError(
                f"{spec.name}: {int((~finite).sum())} values are not finite, the first is "
                f"{float(values[~finite][0])}; remove or fix those records."
            )
        low, high = float(values.min()), float(values.max())
        if len(spec.shape) == 3 and (low < 0.0 or high > 1.0):
            raise DataError(
                f"{spec.name}: floating-point images must lie in [0, 1], got values from {low:g} "
                f"to {high:g}; rescale them."
            )
    return LabelledData(values.contiguous(), labels.to(torch.int64), users, slots)


def described(value: object) -> str:
    """Returns the type of a value, with length or shape, and nothing of its content."""
    if isinstance(value, tuple | list):
        first = ", ".join(map(described, value[:5]))
        return f"{type(value).__name__} of {len(value)} ({first})"
    name = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None:
        return name
    return f"{name} of {dtype} and shape {tuple(shape)}"


def number_of(name: str) -> int:
    """Returns a number in [0, 2⁶³) for a name: the leading bits of its SHA-256."""
    content = name.encode(errors="surrogateescape")  # some names of files are not UTF-8
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> 1


def participants(path: str | Path) -> frozenset[int]:
    """Returns the numbers of the users that a CSV file marks True.

    Rows are `client id, True` or `client id, False` without a header, as Augenstein et al. (2020)
    publish their lists.
    """
    path = Path(path).expanduser()
    marks: dict[str, bool] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, skipinitialspace=True, strict=True)
            for row in rows:
                mark = row[1].strip() if len(row) == 2 else ""
                if mark not in ("True", "False"):
                    raise DataError(
                        f"Line {rows.line_num} of {path} is not `client id, True` or `client id, "
                        "False`; correct it (there is no header)."
                    )
                if row[0].strip() in marks:
                    raise DataError(
                        f"Line {rows.line_num} of {path} lists a user for the second time; remove "
                        "one of the two lines."
                    )
                marks[row[0].strip()] = mark == "True"
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path.absolute()} cannot be read as a CSV file of users ({error}); correct "
            "data.clients_file."
        ) from error
    if not any(marks.values()):
        raise DataError(f"{path} marks no user True; correct data.clients_file.")
    return frozenset(number_of(user) for user, takes_part in marks.items() if takes_part)
