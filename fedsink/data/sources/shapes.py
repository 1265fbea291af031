"""Synthetic pictures in colour: five shapes, warm or cool, on dim grounds; no download.

They show that a method handles three channels, and nothing else: no camera took them, and only form
and hue tell their classes apart.
"""

from __future__ import annotations

import numpy as np
import torch

from fedsink.data.labelled import Reading
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError

RECORDS = {"train": 20_000, "test": 4_000}
FORMS = ("disc", "ring", "square", "triangle", "cross")
CLASSES = tuple(f"{tone} {form}" for form in FORMS for tone in ("warm", "cool"))
_SEEDS = {"train": 0, "test": 1}
_BLOCK = 1000  # pictures made at once

Array = np.ndarray


def read(spec: DataSpec, split: str) -> Reading:
    """Returns 20,000 or 4,000 uint8 pictures (3, H, W) and their labels, the same every time.

    Label 2i + j is form i of `FORMS`, filled with a warm (red to yellow, j = 0) or a cool (cyan
    to blue, j = 1) hue: a class is told from the others by form and by colour. Place, size, angle,
    hue, ground and shading are drawn for every picture, and a little noise for every pixel.
    Record k is of class k mod 10.

    Raises:
        ConfigError: for another number of channels or classes.
    """
    if len(spec.shape) != 3 or spec.shape[0] != 3 or len(spec.classes) != len(CLASSES):
        raise ConfigError(
            f"shapes has 3 channels and {len(CLASSES)} classes, got data.shape={spec.shape} and "
            f"{len(spec.classes)} classes; only height and width can be chosen."
        )
    random = np.random.Generator(np.random.PCG64(_SEEDS[split]))
    labels = np.arange(RECORDS[split]) % len(CLASSES)
    pixels = np.concatenate(
        [
            _pictures(labels[first : first + _BLOCK], spec.shape[1], spec.shape[2], random)
            for first in range(0, len(labels), _BLOCK)
        ]
    )
    return Reading(torch.from_numpy(pixels), torch.from_numpy(labels))


def _pictures(labels: Array, height: int, width: int, random: np.random.Generator) -> Array:
    """Draws pictures of these labels, uint8 (n, 3, height, width)."""
    n, side = len(labels), min(height, width)

    def uniform(low: float, high: float) -> Array:
        return random.uniform(low, high, (n, 1, 1)).astype(np.float32)

    radius = uniform(0.22, 0.36) * side
    angle = uniform(-0.3, 0.3)
    down, across = (uniform(-0.1, 0.1) * side for _ in range(2))
    y = np.arange(height, dtype=np.float32)[:, None] - (height - 1) / 2 - down
    x = np.arange(width, dtype=np.float32)[None, :] - (width - 1) / 2 - across
    u = (np.cos(angle) * x + np.sin(angle) * y) / radius
    v = (np.cos(angle) * y - np.sin(angle) * x) / radius
    outside = np.empty_like(u)  # of the form, in radii; negative inside
    for form in range(len(FORMS)):
        chosen = labels // 2 == form
        outside[chosen] = _OUTSIDE[form](u[chosen], v[chosen])
    cover = np.clip(0.5 - outside * radius, 0.0, 1.0)[:, None]

    warm = (labels % 2 == 0)[:, None, None]
    hue = np.where(warm, uniform(-0.06, 0.12), uniform(0.5, 0.68))
    inside = _rgb(hue, uniform(0.6, 1.0), uniform(0.7, 1.0))
    ground = _rgb(uniform(0.0, 1.0), uniform(0.0, 0.4), uniform(0.1, 0.4))
    towards, depth = uniform(0.0, 2 * np.pi), uniform(0.0, 0.2)
    shade = 1.0 + depth * (np.cos(towards) * x + np.sin(towards) * y) * 2 / side
    colours = ground[..., None, None] * shade[:, None]
    colours += cover * (inside[..., None, None] - colours)
    colours += random.normal(0.0, 0.02, colours.shape).astype(np.float32)
    return (np.clip(colours, 0.0, 1.0) * 255.0 + 0.5).astype(np.uint8)


def _rgb(hue: Array, saturation: Array, value: Array) -> Array:
    """Returns red, green and blue (n, 3) of (n, 1, 1) hues (1 is a full turn) and so on."""
    steps = (np.array([5.0, 3.0, 1.0], dtype=np.float32) + 6.0 * hue[:, 0]) % 6.0
    ramp = np.clip(np.minimum(steps, 4.0 - steps), 0.0, 1.0)
    mixed: Array = value[:, 0] * (1.0 - saturation[:, 0] * ramp)
    return mixed


def _square(u: Array, v: Array, half: float) -> Array:
    return np.maximum(np.abs(u), np.abs(v)) - half


def _bar(u: Array, v: Array) -> Array:
    return np.maximum(np.abs(u) - 1.0, np.abs(v) - 0.33)


_OUTSIDE = (
    lambda u, v: np.hypot(u, v) - 1.0,
    lambda u, v: np.abs(np.hypot(u, v) - 0.78) - 0.26,
    lambda u, v: _square(u, v, 0.85),
    lambda u, v: np.maximum(0.866 * np.abs(u) - 0.5 * v, v) - 0.6,
    lambda u, v: np.minimum(_bar(u, v), _bar(v, u)),
)
