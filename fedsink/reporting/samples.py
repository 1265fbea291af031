"""Files of labelled samples; a file or folder appears whole or not at all."""

from __future__ import annotations

import importlib
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedsink.errors import ConfigError, DataError
from fedsink.files import atomic_file, new_folder, write_atomic

ROWS = 1000
"""Pictures in a row group of Parquet, as many as memory holds as PNG at a time."""


def write_npz(path: Path, images: Tensor, labels: Tensor, *, as_bytes: bool = True) -> None:
    """Writes x (pictures: uint8, (n, C, H, W); points: float32, (n, d)) and y (int64, (n,))."""
    # Without `as_bytes` pictures are float32 in [0, 1], as DPImageBench reads them.
    x = _bytes(images) if as_bytes and images.ndim == 4 else images
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=x.numpy(), y=labels.numpy())
    write_atomic(path, buffer.getvalue())


def write_folder(path: Path, images: Tensor, labels: Tensor, names: Sequence[str]) -> None:
    """Writes path/CLASS/NUMBER.png."""
    check_pictures(tuple(images.shape[1:]))
    check_folders(names)
    with new_folder(path) as folder:
        for name in names:
            (folder / name).mkdir()
        pictures = zip(_pngs(images), labels.tolist(), strict=True)
        for number, (picture, label) in enumerate(pictures):
            (folder / names[label] / f"{number:06d}.png").write_bytes(picture)


def check_folders(names: Sequence[str]) -> None:
    """Refuses classes that no folder can be called after, such as "../b" of a stranger's run."""
    for name in names:
        if name in ("", ".", "..") or re.search(r"[/\\\0]", name):
            raise ConfigError(f"The class {name!r} is no name of a folder: take out=NAME.npz.")


def write_parquet(path: Path, images: Tensor, labels: Tensor, names: Sequence[str]) -> None:
    """Writes the columns `image` and `label` as Hugging Face's `datasets` reads and shows them."""
    # `image` is a struct of `bytes` (PNG) and `path`, `label` an int64; the schema's metadata say
    # under "huggingface" that these are an Image and a ClassLabel with the names.
    check_pictures(tuple(images.shape[1:]))
    arrow, parquet = pyarrow()
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": [*names]}}
    picture = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    schema = arrow.schema(
        [("image", picture), ("label", arrow.int64())],
        metadata={"huggingface": json.dumps({"info": {"features": features}}, ensure_ascii=False)},
    )
    with atomic_file(path) as file, parquet.ParquetWriter(file, schema) as writer:
        for start in range(0, len(images), ROWS):
            pngs = enumerate(_pngs(images[start : start + ROWS]), start)
            rows = {
                "image": [{"bytes": png, "path": f"{number:06d}.png"} for number, png in pngs],
                "label": labels[start : start + ROWS].tolist(),
            }
            writer.write_table(arrow.table(rows, schema=schema), row_group_size=ROWS)


def pyarrow() -> tuple[Any, Any]:
    """Imports pyarrow and pyarrow.parquet; a ConfigError says that they are missing."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise ConfigError(
            "A .parquet file needs the Python package pyarrow: install it with `pip install "
            "pyarrow`, or write a .npz file."
        ) from None


def check_pictures(shape: tuple[int, ...]) -> None:
    """Refuses samples of a shape, without the batch, that PNG cannot hold."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(
            f"Only pictures with 1 or 3 channels can be written as PNG, not {shape}: write to a "
            ".npz file."
        )


def _bytes(images: Tensor) -> Tensor:
    return (images * 255.0).round().clamp(0, 255).byte()


def _pngs(images: Tensor) -> Iterator[bytes]:
    from PIL import Image

    for image in images:
        pixels = _bytes(image).permute(1, 2, 0).numpy()
        buffer = io.BytesIO()
        Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(buffer, "PNG")
        yield buffer.getvalue()
