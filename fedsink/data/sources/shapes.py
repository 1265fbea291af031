"""Synthetic pictures in colour: ten shapes, warm or cool, on dim grounds; no download.

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
TONES = ("warm", "cool")
FORMS = ("disc", "ring", "square", "triangle", "cross")
OTHER_FORMS = ("ellipse", "diamond", "hexagon", "star", "crescent")
CLASSES = tuple(f"{tone} {form}" for form in FORMS for tone in TONES)
_KINDS = {
    f"{tone} {form}": (t, f)
    for f, form in enumerate((*FORMS, *OTHER_FORMS))
    for t, tone in enumerate(TONES)
}
_SEEDS = {"train": 0, "test": 1}
_BLOCK = 1000  # pictures made at once

Array = np.ndarray


def read(spec: DataSpec, split: str) -> Reading:
    """Returns 20,000 or 4,000 uint8 pictures (3, H, W) and their labels, the same every time.

    A class is named by tone and form, such as "warm disc": warm is red to yellow, cool is cyan to
    blue. Place, size, angle, hue, ground and shading are drawn for every picture, and a little
    noise for every pixel. Record k is of class k mod the number of classes. Other classes than
    `CLASSES` have draws of their own.
    """
    if len(spec.shape) != 3 or spec.shape[0] != 3:
        raise ConfigError(
            f"shapes has 3 channels, got data.shape={list(spec.shape)}; only height and width can "
            "be chosen."
        )
    if unknown := [name for name in spec.classes if name not in _KINDS]:
        raise ConfigError(
            f"shapes has no class {unknown[0]!r}: name each by tone and form, such as "
            f"{CLASSES[0]!r}. Tones are {', '.join(TONES)}, forms "
            f"{', '.join((*FORMS, *OTHER_FORMS))}."
        )
    kinds = np.array([_KINDS[name] for name in spec.classes])
    # No two lists of classes have draws in common.
    others = [] if spec.classes == CLASSES else "|".join(spec.classes).encode()
    random = np.random.Generator(np.random.PCG64([_SEEDS[split], *others]))
    labels = np.arange(RECORDS[split]) % len(kinds)
    pixels = np.concatenate(
        [
            _pictures(kinds[labels[first : first + _BLOCK]], spec.shape[1], spec.shape[2], random)
            for first in range(0, len(labels), _BLOCK)
        ]
    )
    return Reading(torch.from_numpy(pixels), torch.from_numpy(labels))


def _pictures(kinds: Array, height: int, width: int, random: np.random.Generator) -> Array:
    """Draws pictures of these numbers of tone and form (n, 2), uint8 (n, 3, height, width)."""
    n, side = len(kinds), min(height, width)

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
    for form in np.unique(kinds[:, 1]):
        mask = kinds[:, 1] == form
        outside[mask] = _OUTSIDE[form](u[mask], v[mask])
    cover = np.clip(0.5 - outside * radius, 0.0, 1.0)[:, None]

    warm = (kinds[:, 0] == 0)[:, None, None]
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


def _bar(u: Array, v: Array) -> Array:
    return np.maximum(np.abs(u) - 1.0, np.abs(v) - 0.33)


_OUTSIDE = (
    lambda u, v: np.hypot(u, v) - 1.0,
    lambda u, v: np.abs(np.hypot(u, v) - 0.78) - 0.26,
    lambda u, v: np.maximum(np.abs(u), np.abs(v)) - 0.85,
    lambda u, v: np.maximum(0.866 * np.abs(u) - 0.5 * v, v) - 0.6,
    lambda u, v: np.minimum(_bar(u, v), _bar(v, u)),
    lambda u, v: 0.55 * (np.hypot(u, v / 0.55) - 1.0),
    lambda u, v: 0.707 * (np.abs(u) + np.abs(v) - 1.0),
    lambda u, v: np.maximum(np.abs(u), 0.5 * np.abs(u) + 0.866 * np.abs(v)) - 0.85,
    lambda u, v: np.hypot(u, v) - 0.68 - 0.32 * np.cos(5.0 * np.arctan2(u, -v)),
    lambda u, v: np.maximum(np.hypot(u, v) - 1.0, 0.85 - np.hypot(u - 0.5, v)),
)
