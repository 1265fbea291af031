"""Tensors in a file with a checksum, so that damage is noticed and never read as values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from safetensors.torch import load, save
from torch import Tensor

_CHECKSUM_BYTES = 32


def seal(tensors: Mapping[str, Tensor]) -> bytes:
    """The content of a file with these tensors."""
    payload = save({name: values.cpu().contiguous() for name, values in tensors.items()})
    return hashlib.sha256(payload).digest() + payload


def unseal(content: bytes) -> dict[str, Tensor] | None:
    """The tensors in a file's content; None where the content is damaged.

    Raises:
        SafetensorError: the content is intact, but `seal` has not written it.
    """
    payload = content[_CHECKSUM_BYTES:]
    if hashlib.sha256(payload).digest() != content[:_CHECKSUM_BYTES]:
        return None
    return load(payload)
