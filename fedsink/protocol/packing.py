"""Packs tensors and JSON into the content of a Flower message, and reads it again.

`digest` names everything that a request says.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fedsink.errors import ProtocolVersionError
from fedsink.values import read_json

if TYPE_CHECKING:
    from flwr.app import Array, RecordDict

PROTOCOL_VERSION = 5
"""Version of the meaning of requests and replies, which each states; any change raises it."""

_LONGEST_FIELDS = 1 << 18  # characters; a request's fields are some thousand
_DEEPEST_FIELDS = 32  # tables and lists within each other; a request's are some five

_ARRAYS = "arrays"
_FIELDS = "fields"
_VERSION = "protocol"

# How arrays travel: the bare little-endian bytes behind dtype and shape. NumPy's own format would
# repeat both in a header that costs more to parse than most arrays here cost to copy.
_RAW = "fedsink.raw"
_DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "int64": torch.int64,
    "bool": torch.bool,
}


class Bytes(NamedTuple):
    """An array as it travels."""

    dtype: str
    shape: tuple[int, ...]
    stype: str
    data: bytes


@dataclass(frozen=True)
class Packed:
    """Content of a message without Flower's objects, which cost more to make than to fill.

    Within one process a request is packed only for its `digest`.
    """

    fields: str  # as JSON
    arrays: Mapping[str, Bytes]  # by name

    def record(self) -> RecordDict:
        """Returns the content as Flower sends it."""
        # Imported here, so that requests can be answered where Flower is not installed.
        from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

        arrays = {name: Array(*array) for name, array in self.arrays.items()}
        return RecordDict(
            {_FIELDS: ConfigRecord({"json": self.fields}), _ARRAYS: ArrayRecord(arrays)}
        )


def packed(fields: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> Packed:
    """Returns the content of a message: JSON-able `fields`, our version, named `arrays`."""
    text = json.dumps({**fields, _VERSION: PROTOCOL_VERSION}, sort_keys=True)
    return Packed(text, {name: _bytes(tensor) for name, tensor in arrays.items()})


def pack(fields: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> RecordDict:
    """Returns a RecordDict of JSON-able `fields`, the protocol's version and named `arrays`."""
    return packed(fields, arrays).record()


def unpack(record: RecordDict) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Returns the inverse of `pack`; arrays are read without pickle.

    Another version of the protocol, or none, is a ProtocolVersionError; what `pack` did not write,
    or fields longer or deeper than any request's, are a ValueError.
    """
    try:
        text = str(record.config_records[_FIELDS]["json"])
        if len(text) > _LONGEST_FIELDS:
            raise ValueError
        fields = read_json(text)
        _check_depth(fields)
        arrays = {name: _tensor(array) for name, array in record.array_records[_ARRAYS].items()}
    except Exception as error:  # a hostile record makes parsers raise whatever they like
        raise ValueError(f"Malformed message: {type(error).__name__}.") from error
    if not isinstance(fields, dict):
        raise ValueError(f"Malformed message: fields are a {type(fields).__name__}, not an object.")
    if (version := fields.pop(_VERSION, None)) != PROTOCOL_VERSION:
        raise ProtocolVersionError(version, PROTOCOL_VERSION)
    return fields, arrays


def has_fields(record: RecordDict) -> bool:
    """Tells whether a message holds what `pack` wrote; a query of secure aggregation does not."""
    return _FIELDS in record


def payload_bytes(record: RecordDict) -> int:
    """Returns the number of payload bytes of a message: its fields and its arrays' numbers.

    Flower adds a description of each array, and gRPC and TLS add their frames.
    """
    arrays = record.array_records[_ARRAYS].values()
    return len(str(record.config_records[_FIELDS]["json"])) + sum(len(a.data) for a in arrays)


def digest(message_type: str, record: RecordDict | Packed) -> bytes:
    """Returns SHA-256 of everything a request says, so that a changed bit makes another request.

    The message type goes in first: one content sent as two types asks for two functions of the
    data. Every part goes in behind its length: no choice of names, types or bytes makes two
    requests read alike. Otherwise a server could have two of them answered with the same noise.
    Results of `pack` and of `packed` have the same digest.
    """
    fields, arrays = _parts(record)
    state = hashlib.sha256()

    def update(part: bytes) -> None:
        state.update(len(part).to_bytes(8, "big"))
        state.update(part)

    update(str(PROTOCOL_VERSION).encode())
    update(message_type.encode())
    update(fields.encode())
    for name, array in sorted(arrays.items()):
        for text in (name, array.dtype, str(tuple(array.shape)), array.stype):
            update(text.encode())
        update(array.data)
    return state.digest()


def _check_depth(value: object) -> None:
    """Refuses JSON nested so deeply that recursion over it may reach Python's limit."""
    level = [value]
    for _ in range(_DEEPEST_FIELDS):
        if not level:
            return
        nested = [value for value in level if isinstance(value, dict | list)]
        level = [
            inner
            for value in nested
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
    if level:
        raise ValueError


def _parts(record: RecordDict | Packed) -> tuple[str, Mapping[str, Any]]:
    """Returns the fields as JSON, and the arrays, whose attributes are those of `Bytes`."""
    if isinstance(record, Packed):
        return record.fields, record.arrays
    return str(record.config_records[_FIELDS]["json"]), record.array_records[_ARRAYS]


def _bytes(tensor: Tensor) -> Bytes:
    values = tensor.detach().cpu().contiguous().numpy()
    return Bytes(str(values.dtype), tuple(values.shape), _RAW, values.tobytes())


def _tensor(array: Array) -> Tensor:
    """Reads one array: bytes of the length that dtype and shape say, and nothing else."""
    dtype, shape = _DTYPES[array.dtype], tuple(array.shape)
    if array.stype != _RAW or any(size < 0 for size in shape):
        raise ValueError("The array is not in fedsink's format.")
    if len(array.data) != math.prod(shape) * dtype.itemsize:
        raise ValueError("The array is not what its header says.")
    if not array.data:
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(bytearray(array.data), dtype=dtype).reshape(shape)
