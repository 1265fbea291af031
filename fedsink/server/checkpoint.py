"""The file from which a run continues: replaced atomically, and checked when read."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import Tensor

from fedsink.errors import CheckpointError
from fedsink.files import write_atomic
from fedsink.values import check_format, read_json

FORMAT = 2
"""Runs that stopped under format 1 drew other random numbers: they begin again."""
_FILE = "state.safetensors"
_UPLOADS = "uploads.safetensors"


def save(folder: Path, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    """Replaces the checkpoint by this state, or leaves the old one untouched."""
    _write(folder / _FILE, tensors, values)


def load(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns the last saved state; one that is torn, altered or none is refused."""
    return _read(folder / _FILE)


def exists(folder: Path) -> bool:
    """True if a checkpoint was ever completed here."""
    return (folder / _FILE).is_file()


def save_uploads(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Stores the clients' single uploads, apart from the state that changes."""
    if tensors:
        _write(folder / _UPLOADS, tensors, {})


def load_uploads(folder: Path) -> dict[str, Tensor]:
    """Returns the uploads that `save_uploads` stored; empty if there are none."""
    path = folder / _UPLOADS
    return _read(path)[0] if path.is_file() else {}


def _digest(tensors: dict[str, Tensor], number: str, text: str) -> str:
    state = hashlib.sha256((number + text).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        state.update(f"|{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        state.update(tensor.numpy().tobytes())
    return state.hexdigest()


def _write(path: Path, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    from safetensors.torch import save as to_bytes

    number, text = str(FORMAT), json.dumps(values, sort_keys=True)
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {"format": number, "values": text, "sha256": _digest(plain, number, text)}
    write_atomic(path, to_bytes(plain, metadata))


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise CheckpointError(
            f"{path} does not exist: the run stopped before its first checkpoint."
        )
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            text, number = metadata["values"], metadata.get("format", "")  # "": there were none
            check_format(str(path), number or 1, FORMAT, error=CheckpointError)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        intact = metadata["sha256"] == _digest(tensors, number, text)
    except (SafetensorError, OSError, KeyError) as error:
        raise CheckpointError(f"{path} is not a readable checkpoint: {error}.") from error
    if not intact:
        raise CheckpointError(f"{path} is corrupt: its content does not match its checksum.")
    return tensors, read_json(text)
