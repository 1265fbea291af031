"""Tensors in a file with a checksum over them and the file's place.

So neither damage nor a file that was moved into another one's place is read as values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from safetensors.torch import load, save
from torch import Tensor

_CHECKSUM_BYTES = 32


def seal(tensors: Mapping[str, Tensor], place: str) -> bytes:
    """The content of a file with these tensors.

    Args:
        tensors: by name.
        place: names what the file is for.
    """
    payload = save({name: values.cpu().contiguous() for name, values in tensors.items()})
    return _checksum(payload, place) + payload


def unseal(content: bytes, place: str) -> dict[str, Tensor] | None:
    """The tensors in a file's content; None where it is damaged or was sealed for another place.

    Raises:
        SafetensorError: the content is intact, but `seal` has not written it.
    """
    payload = content[_CHECKSUM_BYTES:]
    if _checksum(payload, place) != content[:_CHECKSUM_BYTES]:
        return None
    return load(payload)


def _checksum(payload: bytes, place: str) -> bytes:
    return hashlib.sha256(hashlib.sha256(place.encode()).digest() + payload).digest()
