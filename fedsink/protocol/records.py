"""Between tensors and Flower's records."""

from __future__ import annotations

import hashlib
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
            name: torch.from_numpy(array.numpy())
            for name, array in record.array_records[_ARRAYS].items()
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"Malformed message: {type(error).__name__}.") from error
    if not isinstance(fields, dict):
        raise ValueError(f"Malformed message: fields are a {type(fields).__name__}, not an object.")
    return fields, arrays


def digest(record: RecordDict) -> bytes:
    """SHA-256 of everything a request says, so that a changed bit makes another request."""
    state = hashlib.sha256(str(record.config_records[_FIELDS]["json"]).encode())
    for name, array in sorted(record.array_records[_ARRAYS].items()):
        state.update(f"|{name}|{array.dtype}|{tuple(array.shape)}|".encode())
        state.update(array.data)
    return state.digest()
