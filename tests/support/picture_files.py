"""MNIST, FashionMNIST, CelebA and own pictures in their file formats, with pictures of noise."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image


def write(root: Path, seed: int = 0) -> None:
    """Writes 200 pictures to learn from and 60 to test with of each data set."""
    random = np.random.default_rng(seed)
    for name in ("MNIST", "FashionMNIST"):
        raw = root / name / "raw"
        raw.mkdir(parents=True)
        for split, n in (("train", 200), ("t10k", 60)):
            labels = np.arange(n, dtype=np.uint8) % 10
            pixels = random.integers(0, 256, (n, 28, 28), dtype=np.uint8)
            for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
                header = struct.pack(f">{1 + array.ndim}i", 0x800 + array.ndim, *array.shape)
                (raw / f"{split}-{kind}-ubyte").write_bytes(header + array.tobytes())
    folder = root / "celeba"
    (folder / "img_align_celeba").mkdir(parents=True)
    attributes, members = ["260", "Male Young"], []
    for i in range(260):
        name = f"{i + 1:06}.jpg"
        picture = Image.fromarray(random.integers(0, 256, (218, 178, 3), dtype=np.uint8))
        picture.save(folder / "img_align_celeba" / name)
        attributes.append(f"{name} {' 1' if i % 2 else '-1'} -1")
        members.append(f"{name} {0 if i < 200 else 2}")
    (folder / "list_attr_celeba.txt").write_text("\n".join(attributes) + "\n")
    (folder / "list_eval_partition.txt").write_text("\n".join(members) + "\n")


def write_classes(
    root: Path, classes: Sequence[str], size: tuple[int, int] = (10, 9), seed: int = 0
) -> None:
    """Writes a user's own pictures: 60 to learn from and 30 to test with, coloured by class."""
    random = np.random.default_rng(seed)
    for split, n in (("train", 60), ("test", 30)):
        for i in range(n):
            label = i % len(classes)
            pixels = random.integers(0, 90, (*size, 3), dtype=np.uint8)
            pixels[2:-2, 2:-2, label % 3] += 160
            path = root / split / classes[label] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
