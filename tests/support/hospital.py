"""A node on disk: pictures, and a policy that names them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from .policies import CENTRAL, limits, policy

CLASSES = ("a", "b", "c")
SHAPE = (1, 4, 4)
PICTURES = 30


def hospital(folder: Path, **options: object) -> Path:
    """Makes pictures of noise and a policy, whose data `options` change. Returns its path."""
    random = np.random.default_rng(0)
    for number in range(PICTURES):
        place = folder / "pictures" / CLASSES[number % len(CLASSES)]
        place.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, SHAPE[1:], dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{number:03}.png")
    data = {
        "name": "image_folder",
        "root": "pictures",
        "shape": list(SHAPE),
        "classes": list(CLASSES),
        "nominal_records": PICTURES,
        **options,
    }
    path = folder / "policy.toml"
    path.write_text(policy(budget={"add-remove": limits(1e6)}, mechanisms=CENTRAL, data=data))
    return path
