"""Between tensors and Flower's records."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

_ARRAYS = "arrays"
_FIELDS = "fields"


def pack(fields: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> RecordDict:
    """One record: JSON-able `fields` and named `arrays`."""
    text = json.dumps(fields, sort_keys=True)
    return RecordDict(
        {
            _FIELDS: ConfigRecord({"json": text}),
            _ARRAYS: ArrayRecord(
                {name: Array(np.ascontiguousarray(t.cpu().numpy())) for name, t in arrays.items()}
            ),
        }
    )


def unpack(record: RecordDict) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The inverse of `pack`; arrays are read without pickle.

    Raises:
        ValueError: the record lacks a part or is not what `pack` wrote.
    """
    try:
        fields = json.loads(str(record.config_records[_FIELDS]["json"]))
        arrays = {
            name: _tensor(array) for name, array in record.array_records[_ARRAYS].items()
        }
    except Exception as error:  # a hostile record makes parsers raise whatever they like
        raise ValueError(f"Malformed message: {type(error).__name__}.") from error
    if not isinstance(fields, dict):
        raise ValueError(f"Malformed message: fields are a {type(fields).__name__}, not an object.")
    return fields, arrays


def digest(record: RecordDict) -> bytes:
    """SHA-256 of everything a request says, so that a changed bit makes another request.

    Every part goes in behind its length: no choice of names, types or bytes makes two requests
    read alike. Otherwise a server could have two of them answered with the same noise.
    """
    state = hashlib.sha256()

    def update(part: bytes) -> None:
        state.update(len(part).to_bytes(8, "big"))
        state.update(part)

    update(str(record.config_records[_FIELDS]["json"]).encode())
    for name, array in sorted(record.array_records[_ARRAYS].items()):
        for text in (name, array.dtype, str(tuple(array.shape)), array.stype):
            update(text.encode())
        update(array.data)
    return state.digest()


def _tensor(array: Array) -> Tensor:
    """Read one array in NumPy's own format: never a pickle, an archive, or a torn buffer."""
    buffer = io.BytesIO(array.data)
    values = np.lib.format.read_array(buffer, allow_pickle=False)
    if buffer.read(1) or tuple(array.shape) != values.shape or array.dtype != str(values.dtype):
        raise ValueError("The array is not what its header says.")
    return torch.from_numpy(values)
