"""Generators by their configuration name: built, loaded from a folder, and sampled.

A folder holds `generator.safetensors` (weights) and `generator.json` (architecture).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import fedsink
from fedsink.data.spec import check_sizes
from fedsink.errors import ModelError
from fedsink.models.convolutional import BigGan, Conv, Dcgan
from fedsink.models.generator_base import Generator
from fedsink.models.perceptrons import DctMlp, Mlp
from fedsink.registry import Registry
from fedsink.values import read_json

if TYPE_CHECKING:
    from fedsink.privacy.randomness.noise import Stream

WEIGHTS = "generator.safetensors"
DESCRIPTION = "generator.json"

_MOST_AT_ONCE = 1 << 27  # values of pictures that are drawn together

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
        ConfigError: pictures that are too large, or too many classes.
    """
    check_sizes(shape, classes)  # a received description may name sizes beyond any memory
    complete = GENERATORS.options(name, options, positional=2, keywords=("generator",))
    return GENERATORS[name].parameter_count(shape, classes, complete)


def save(generator: Generator, folder: str | Path) -> None:
    """Writes both files into `folder`, replacing each in one step; the description comes last."""
    from safetensors.torch import save as to_bytes

    from fedsink.files import write_atomic

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
    write_atomic(folder / WEIGHTS, to_bytes(tensors), mode=0o644)
    write_atomic(folder / DESCRIPTION, text.encode(), mode=0o644)


def load(folder: str | Path) -> Generator:
    """Returns the generator that `save` wrote into `folder`, on the CPU.

    Raises:
        ModelError: for a missing or corrupt file, or weights of another architecture.
    """
    from safetensors.torch import load as from_bytes

    folder = Path(folder)
    description = _read(folder / DESCRIPTION, read_json)
    tensors = _read(folder / WEIGHTS, from_bytes)
    try:
        what = description["name"], tuple(description["shape"]), description["classes"]
        needed = parameter_count(*what, **description["options"])
        there = sum(tensor.numel() for tensor in tensors.values())
        if needed > there:
            raise ModelError(f"it has {needed} weights, and {WEIGHTS} holds {there} numbers")
        generator = build(*what, **description["options"])
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RuntimeError) as error:
        raise ModelError(
            f"{folder / DESCRIPTION} describes no generator that fedsink {fedsink.__version__} "
            f"can build ({error})."
        ) from error
    try:
        generator.load_state_dict(tensors)
        if bad := [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]:
            raise ModelError(
                f"{folder / WEIGHTS} holds weights that are not finite ({bad[0]}): its training "
                "diverged, or the file was damaged. Train again, with a lower "
                "strategy.optimizer.lr."
            )
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


@torch.no_grad()
def sample(
    generator: Generator,
    n: int,
    labels: Tensor | None,
    stream: Stream,
    batch_size: int = 500,
    mix: Tensor | None = None,
    latent_range: float = 1.0,
) -> Tensor:
    """Returns n images (n, C, H, W) in [0, 1], or points, on the CPU, row i of class labels[i].

    A generator without BatchNorm makes each row from its z and label only, so the first rows do
    not depend on n, and the batch size changes results by rounding at most. With BatchNorm rows
    depend on their batch: every batch has `batch_size` rows whose classes follow `mix`, as in
    training, whatever the distribution of `labels`, and one row more for each class that `mix`
    leaves out. Rows that complete a batch are dropped, so pictures of a single class look as in
    training.

    Args:
        generator: a trained generator.
        n: number of images.
        labels: int64 (n,), or None for 0, 1, …, classes − 1, 0, 1, … .
        stream: source of z.
        batch_size: rows generated at a time.
        mix: class proportions (classes,) of the training batches; None means equal.
        latent_range: factor on every latent; 1 draws the law of training.

    Raises:
        ModelError: for a negative n, a batch size below 1 (2 with BatchNorm), labels of another
            length or outside the classes, or a mix that is no distribution over them.
    """
    smallest = 2 if generator.uses_batch_statistics else 1
    if n < 0 or batch_size < smallest:
        raise ModelError(
            f"sampling needs n ≥ 0 and batch_size ≥ {smallest}, got n={n} and "
            f"batch_size={batch_size}."
        )
    labels = torch.arange(n) % generator.classes if labels is None else labels.cpu()
    if labels.shape != (n,) or labels.dtype != torch.int64:
        raise ModelError(
            f"sampling {n} images needs {n} int64 labels, got {labels.dtype} of shape "
            f"{tuple(labels.shape)}."
        )
    if len(wrong := labels[(labels < 0) | (labels >= generator.classes)]):
        raise ModelError(
            f"label {int(wrong[0])} is outside the generator's classes 0 to "
            f"{generator.classes - 1}."
        )
    z = latent_range * generator.latent(n, stream)
    labels = labels.to(z.device)
    if not generator.uses_batch_statistics:
        batch_size = min(batch_size, max(1, _MOST_AT_ONCE // math.prod(generator.shape)))
        rows = [
            generator(z[a : a + batch_size], labels[a : a + batch_size])
            for a in range(0, n, batch_size)
        ]
        empty = torch.empty(0, *generator.shape, dtype=torch.float32)
        return torch.cat(rows).cpu() if rows else empty
    quota = _quota(generator.classes, batch_size, mix)
    images = torch.empty(n, *generator.shape, dtype=torch.float32)
    for part in _batches(labels, quota):
        present = torch.bincount(labels[part].cpu(), minlength=len(quota))
        missing = (quota - present).clamp_min(0)
        extra = torch.repeat_interleave(torch.arange(len(quota)), missing).to(z.device)
        z_batch = torch.cat([z[part], latent_range * generator.latent(len(extra), stream)])
        made = generator(z_batch, torch.cat([labels[part], extra]))
        images[part.cpu()] = made[: len(part)].cpu()
    return images


def _quota(classes: int, batch_size: int, mix: Tensor | None) -> Tensor:
    """Returns the rows of each class in a batch: largest remainder of mix · batch_size."""
    weights = torch.ones(classes) if mix is None else mix.cpu()
    weights = weights.to(torch.float64)
    total = float(weights.sum())
    if weights.shape != (classes,) or not (math.isfinite(total) and total > 0) or weights.min() < 0:
        raise ModelError(
            f"mix must hold {classes} non-negative class proportions, got {weights.tolist()}."
        )
    exact = weights / total * batch_size
    quota = exact.floor()
    rest = batch_size - int(quota.sum())
    quota[(exact - quota).argsort(descending=True, stable=True)[:rest]] += 1
    return quota.to(torch.int64)


def _batches(labels: Tensor, quota: Tensor) -> list[Tensor]:
    """Returns indices of batches with at most quota[c] rows of class c, or one where that is 0."""
    batch = torch.empty_like(labels)
    for label, room in enumerate(quota.clamp_min(1).tolist()):
        members = (labels == label).nonzero().squeeze(1)
        batch[members] = torch.arange(len(members), device=labels.device) // room
    count = int(batch.max()) + 1 if len(labels) else 0
    return [(batch == b).nonzero().squeeze(1) for b in range(count)]
