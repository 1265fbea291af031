"""Scatter plots of points in the plane."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedsink.reporting.pictures import INK, PAPER, draw_text, write_png

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

SIDE = 480
LEFT, TOP = 56, 34
OVERSAMPLING = 3
REFERENCE_COLOUR = (190, 190, 190)
POINT_COLOUR = (31, 95, 180)
TEXT_SIZE = 13
TICKS = 5


def save_points(
    points: Tensor,
    reference: Tensor | None,
    path: str | os.PathLike[str],
    *,
    names: tuple[str, str] = ("generated", "reference"),
) -> None:
    """Draw points over a reference, both axes to one scale, and write a PNG, atomically.

    Args:
        points: (N, 2), N > 0, drawn in blue.
        reference: (M, 2), M > 0, drawn in grey underneath; None for none.
        path: the PNG file; its folder is made if it is missing.
        names: how the legend calls the two.

    Raises:
        ValueError: a shape other than (N, 2), no points, or points that are not finite.
    """
    clouds = [(_checked(points, names[0]), POINT_COLOUR, names[0])]
    if reference is not None:
        clouds.insert(0, (_checked(reference, names[1]), REFERENCE_COLOUR, names[1]))
    from PIL import Image, ImageDraw

    everything = torch.cat([cloud for cloud, _, _ in clouds])
    low, high = everything.amin(dim=0), everything.amax(dim=0)
    centre = (low + high) / 2
    span = max(float((high - low).max()), 1e-9) * 1.08
    origin = centre - span / 2

    # Drawn large and shrunk: Pillow's circles have hard edges.
    inner = Image.new("RGB", (SIDE * OVERSAMPLING, SIDE * OVERSAMPLING), PAPER)
    draw = ImageDraw.Draw(inner)
    radius = 1.8 * OVERSAMPLING
    for cloud, colour, _ in clouds:
        across = (cloud - origin) / span * SIDE * OVERSAMPLING
        for x, y in across.tolist():
            y = SIDE * OVERSAMPLING - y
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
    inner = inner.resize((SIDE, SIDE), Image.Resampling.BOX)

    page = Image.new("RGB", (LEFT + SIDE + 20, TOP + SIDE + 30), PAPER)
    page.paste(inner, (LEFT, TOP))
    draw = ImageDraw.Draw(page)
    draw.rectangle((LEFT, TOP, LEFT + SIDE, TOP + SIDE), outline=INK)
    for horizontal in (True, False):
        _ticks(draw, float(origin[0 if horizontal else 1]), span, horizontal=horizontal)
    for entry, (_, colour, name) in enumerate(reversed(clouds)):
        x = LEFT + entry * SIDE // 2
        draw.ellipse((x, TOP / 2 - 4, x + 8, TOP / 2 + 4), fill=colour)
        draw_text(draw, (x + 14, TOP / 2), name, TEXT_SIZE)
    write_png(page, Path(path))


def tick_values(low: float, span: float, count: int = TICKS) -> list[float]:
    """Round values (1, 2 or 5 times a power of ten apart) in [low, low + span].

    At most about `count` values, for instance tick_values(-1.1, 2.2) = [-1, -0.5, 0, 0.5, 1].
    """
    power = 10.0 ** math.floor(math.log10(span / count))
    step = next(power * m for m in (1, 2, 5, 10) if power * m * count >= span * (1 - 1e-9))
    first, last = math.ceil(low / step), math.floor((low + span) / step)
    return [index * step for index in range(first, last + 1)]


def _ticks(draw: ImageDraw, low: float, span: float, *, horizontal: bool) -> None:
    bottom = TOP + SIDE
    for value in tick_values(low, span):
        along = (value - low) / span * SIDE
        text = f"{value:.6g}"
        if horizontal:
            x = LEFT + along
            draw.line((x, bottom, x, bottom + 4), fill=INK)
            draw_text(draw, (x, bottom + 14), text, TEXT_SIZE, anchor="mm")
        else:
            y = bottom - along
            draw.line((LEFT - 4, y, LEFT, y), fill=INK)
            draw_text(draw, (LEFT - 8, y), text, TEXT_SIZE, anchor="rm")


def _checked(points: Tensor, name: str) -> Tensor:
    if points.ndim != 2 or points.shape[1] != 2 or len(points) == 0:
        raise ValueError(
            f"A scatter plot needs {name} points of shape (N, 2) with N > 0; "
            f"received {tuple(points.shape)}."
        )
    points = points.detach().to("cpu", torch.float64)
    if not bool(torch.isfinite(points).all()):
        raise ValueError(f"A scatter plot needs finite points; {name} holds others.")
    return points
