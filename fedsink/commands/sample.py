"""`fedsink sample run=DIR n=60000 out=FILE.npz`: labelled images for whoever trains on them."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from fedsink.commands.keys import Parser, flag, parse, whole
from fedsink.errors import ConfigError, DataError
from fedsink.server.finished import open_run

HELP = """Usage: fedsink sample run=DIR out=FILE.npz [n=1000] [seed=0] [observation=true]
       fedsink sample run=DIR out=FOLDER   [n=1000] [seed=0] [observation=true]

Draws n labelled images from the generator of a finished run. FILE.npz holds x (uint8, N×C×H×W;
points: float32) and y (int64); a FOLDER gets CLASS/NUMBER.png, one folder per class. Neither may
exist. observation=false leaves out what the run's observation.* says is done to pictures, as those
in its samples/ do.
Sampling costs no privacy: the generator is already released."""


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Write the samples; prints where."""
    if {"-h", "--help"} & set(arguments):
        print(HELP)
        return 0
    known: dict[str, Parser] = {
        "run": str,
        "out": str,
        "n": whole(1),
        "seed": whole(0),
        "observation": flag,
    }
    keys = parse(arguments, known)
    for needed in ("run", "out"):
        if not keys.get(needed):
            raise ConfigError(f"{needed}= is missing; fedsink sample --help says what to give.")
    out = Path(keys["out"]).expanduser()
    if out.exists():
        raise ConfigError(f"{out} exists already: remove it or give another out=.")
    finished = open_run(keys["run"], observed=keys.get("observation", True))
    images, labels = finished.draw(keys.get("n", 1000), keys.get("seed", 0))
    if out.suffix == ".npz":
        _write_npz(out, images, labels)
    elif out.suffix:
        raise ConfigError(f"out={out} must end in .npz, or have no ending to name a folder.")
    else:
        names = finished.data.classes if len(finished.prior) > 1 else ("any",)
        _write_folder(out, images, labels, names)
    print(f"{len(labels)} images", file=sys.stderr)
    print(out)
    return 0


def _bytes(images: Tensor) -> Tensor:
    return (images * 255.0).round().clamp(0, 255).byte()


def _write_npz(out: Path, images: Tensor, labels: Tensor) -> None:
    import io

    import numpy as np

    from fedsink.reporting.atomic import write_atomic

    x = _bytes(images) if images.ndim == 4 else images
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=x.numpy(), y=labels.numpy())
    write_atomic(out, buffer.getvalue())


def _write_folder(out: Path, images: Tensor, labels: Tensor, names: Sequence[str]) -> None:
    from PIL import Image

    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise DataError(
            "Only pictures with 1 or 3 channels can be written as PNG, not "
            f"{tuple(images.shape[1:])}: write to a .npz file."
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    # Written aside and renamed: a stopped command leaves no half-filled folder behind.
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        pixels = _bytes(images).permute(0, 2, 3, 1).numpy()
        for name in names:
            (partial / name).mkdir()
        for number, (picture, label) in enumerate(zip(pixels, labels.tolist(), strict=True)):
            shown = picture[..., 0] if picture.shape[-1] == 1 else picture
            Image.fromarray(shown).save(partial / names[label] / f"{number:06d}.png")
        partial.chmod(0o755)
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
