"""Generators by their configuration name, built or loaded from a folder.

A folder holds `generator.safetensors` (weights) and `generator.json` (architecture).
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import fedsink
from fedsink.errors import ModelError
from fedsink.models.biggan import BigGan
from fedsink.models.conv import Conv
from fedsink.models.dcgan import Dcgan
from fedsink.models.generator_base import Generator
from fedsink.models.perceptrons import DctMlp, Mlp
from fedsink.registry import Registry

WEIGHTS = "generator.safetensors"
DESCRIPTION = "generator.json"

GENERATORS: Registry[type[Generator]] = Registry(
    "generator",
    {cls.name: cls for cls in (BigGan, Conv, Dcgan, DctMlp, Mlp)},
    group="fedsink.generators",
    error=ModelError,
)


def build(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    *,
    generator: torch.Generator | None = None,
    **options: Any,
) -> Generator:
    """Returns a new generator.

    Args:
        name: a key of `GENERATORS`.
        shape: (channels, height, width), or (dimension,) for points.
        classes: number of labels.
        generator: random numbers for the initial weights; None means seed 0. The global random
            state is neither read nor changed.
        options: keyword arguments of that architecture.

    Raises:
        ModelError: for an unknown name or option (it lists what exists), or a bad value.
    """
    made: Generator = GENERATORS.build(name, options, shape, classes, generator=generator)
    return made


def parameter_count(name: str, shape: tuple[int, ...], classes: int, **options: Any) -> int:
    """Returns the number of weights that `build` would make of the same arguments.

    Raises:
        ModelError: for an unknown name or option, or sizes that no generator has.
    """
    complete = GENERATORS.options(name, options, positional=2, keywords=("generator",))
    return GENERATORS[name].parameter_count(shape, classes, complete)


def save(generator: Generator, folder: str | Path) -> None:
    """Writes both files into `folder`, replacing each in one step; the description comes last."""
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
    """Returns the generator that `save` wrote into `folder`, on the CPU.

    Raises:
        ModelError: for a missing or corrupt file, or weights of another architecture.
    """
    from safetensors.torch import load as from_bytes

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
    tensors = _read(folder / WEIGHTS, from_bytes)
    try:
        generator.load_state_dict(tensors)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise ModelError(
            f"{folder / WEIGHTS} holds the weights of another architecture than {DESCRIPTION} "
            f"describes ({reason})."
        ) from error
    return generator


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
    """Writes `content` beside `path`, makes it durable, then renames it into place."""
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
