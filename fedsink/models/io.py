"""A generator on disk: `generator.safetensors` (weights) and `generator.json` (architecture)."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

import fedsink
from fedsink.errors import ModelError
from fedsink.models.base import Generator
from fedsink.models.registry import build

WEIGHTS = "generator.safetensors"
DESCRIPTION = "generator.json"


def save(generator: Generator, folder: str | Path) -> None:
    """Write both files into `folder`, each replaced in one step; the description comes last."""
    from safetensors.torch import save as to_bytes

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {key: t.detach().cpu().contiguous() for key, t in generator.state_dict().items()}
    description = {
        "name": generator.name,
        "shape": list(generator.shape),
        "classes": generator.classes,
        "options": generator.options,
        "fedsink": fedsink.__version__,
    }
    text = json.dumps(description, indent=2) + "\n"
    _replace(folder / WEIGHTS, to_bytes(tensors))
    _replace(folder / DESCRIPTION, text.encode())


def load(folder: str | Path) -> Generator:
    """Return the generator that `save` wrote into `folder`, on the CPU.

    Raises:
        ModelError: for a missing or corrupt file, or weights of another architecture.
    """
    folder = Path(folder)
    description = _read(folder / DESCRIPTION, json.loads)
    try:
        generator = build(
            description["name"],
            tuple(description["shape"]),
            description["classes"],
            **description["options"],
        )
    except (KeyError, TypeError, AttributeError, ModelError) as error:
        raise ModelError(
            f"{folder / DESCRIPTION} describes no generator that fedsink {fedsink.__version__} "
            f"can build ({error})."
        ) from error
    _fill(generator, folder / WEIGHTS)
    return generator


def _fill(module: nn.Module, path: Path) -> None:
    from safetensors.torch import load as from_bytes

    tensors = _read(path, from_bytes)
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise ModelError(
            f"{path} holds the weights of another architecture than {DESCRIPTION} describes "
            f"({reason})."
        ) from error


def _read(path: Path, parse: Callable[[bytes], Any]) -> Any:
    from safetensors import SafetensorError

    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise ModelError(
            f"{path} cannot be read ({error.strerror}); a generator's folder holds {WEIGHTS} and "
            f"{DESCRIPTION}."
        ) from error
    except (SafetensorError, ValueError) as error:
        raise ModelError(f"{path} is corrupt ({error}); restore it or train again.") from error


def _replace(path: Path, content: bytes) -> None:
    """Write `content` beside `path`, make it durable, then rename it into place."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
