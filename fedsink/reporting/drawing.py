"""Pictures of samples: labelled grids of images, and scatter plots of points in the plane."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedsink.files import write_atomic

if TYPE_CHECKING:
    from PIL.Image import Image as Page
    from PIL.ImageDraw import ImageDraw

PAPER, INK = (255, 255, 255), (40, 40, 40)
GROUND, ON_GROUND = (112, 112, 112), (255, 255, 255)  # of grids: on light and dark pages alike
ELLIPSIS = "..."

GAP = 2
NAME_SIZE = 14
MARGIN = 6
WIDEST_NAME = 160
READABLE_SIDE = 48

SIDE = 480
LEFT, TOP = 56, 34
OVERSAMPLING = 3
POINT_COLOUR = (31, 95, 180)
TICK_SIZE = 13
TICKS = 5


def save_grid(
    images: Tensor,
    labels: Tensor,
    class_names: Sequence[str],
    path: str | os.PathLike[str],
    *,
    columns: int = 10,
    scale: int | None = None,
) -> None:
    """Writes a PNG, atomically: for each class its name and its first `columns` images."""
    # Images are (N, C, H, W) in [0, 1], C = 1 or 3, values outside are clamped. `scale` is the
    # enlargement; None: to a side of about 48 pixels (8×8 six times, 28×28 twice).
    write_png(_page(images, labels, class_names, columns, scale), Path(path))


def _page(
    images: Tensor, labels: Tensor, class_names: Sequence[str], columns: int, scale: int | None
) -> Page:
    _check_grid(images, labels, class_names, columns, scale)
    from PIL import Image, ImageDraw

    depth, height, width = images.shape[1:]
    if scale is None:
        scale = max(1, math.ceil(READABLE_SIDE / max(height, width)))
    pixels = images.detach().cpu().clamp(0, 1).mul(255).round().to(torch.uint8)
    pixels = pixels.repeat_interleave(scale, dim=2).repeat_interleave(scale, dim=3)
    rows = [pixels[labels.cpu() == label][:columns] for label in range(len(class_names))]

    names = [fit_text(name, NAME_SIZE, WIDEST_NAME) for name in class_names]
    left = math.ceil(max(text_width(name, NAME_SIZE) for name in names)) + 2 * MARGIN
    cell_width = width * scale + GAP
    cell_height = max(height * scale, NAME_SIZE) + GAP
    size = (left + columns * cell_width, len(rows) * cell_height + GAP)
    page = Image.new("RGB" if depth == 3 else "L", size, GROUND if depth == 3 else GROUND[0])
    draw = ImageDraw.Draw(page)
    for row, (name, samples) in enumerate(zip(names, rows, strict=True)):
        top = GAP + row * cell_height
        middle = top + height * scale / 2
        draw_text(
            draw, (MARGIN, middle), name, NAME_SIZE, ON_GROUND if depth == 3 else ON_GROUND[0]
        )
        for column, sample in enumerate(samples):
            array = sample.permute(1, 2, 0).squeeze(-1).numpy()
            page.paste(Image.fromarray(array), (left + column * cell_width, top))
    return page


def _check_grid(
    images: Tensor, labels: Tensor, class_names: Sequence[str], columns: int, scale: int | None
) -> None:
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape[2:]:
        raise ValueError(
            "A grid needs images of shape (N, C, H, W) with C = 1 or 3; "
            f"received {tuple(images.shape)}."
        )
    if labels.shape != images.shape[:1] or labels.dtype.is_floating_point:
        raise ValueError(
            f"A grid needs one integer label per image; received {images.shape[0]} images and "
            f"labels of shape {tuple(labels.shape)} and dtype {labels.dtype}."
        )
    if len(class_names) == 0:
        raise ValueError("A grid needs at least one class name; received none.")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(class_names):
        raise ValueError(
            f"Labels must lie in 0..{len(class_names) - 1}, one per class name; "
            f"received labels from {int(labels.min())} to {int(labels.max())}."
        )
    if columns < 1 or (scale is not None and scale < 1):
        raise ValueError(
            f"columns and scale must be at least 1; received columns={columns}, scale={scale}."
        )
    if not bool(torch.isfinite(images).all()):
        raise ValueError("A grid needs finite images; received values that are not finite.")


def save_points(points: Tensor, path: str | os.PathLike[str]) -> None:
    """Draws points in the plane (N, 2), both axes to one scale, and writes a PNG, atomically."""
    points = _checked_points(points)
    from PIL import Image, ImageDraw

    low, high = points.amin(dim=0), points.amax(dim=0)
    centre = (low + high) / 2
    span = max(float((high - low).max()), 1e-9) * 1.08
    origin = centre - span / 2

    # Drawn large and shrunk: Pillow's circles have hard edges.
    inner = Image.new("RGB", (SIDE * OVERSAMPLING, SIDE * OVERSAMPLING), PAPER)
    draw = ImageDraw.Draw(inner)
    radius = 1.8 * OVERSAMPLING
    for x, y in ((points - origin) / span * SIDE * OVERSAMPLING).tolist():
        y = SIDE * OVERSAMPLING - y
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=POINT_COLOUR)
    inner = inner.resize((SIDE, SIDE), Image.Resampling.BOX)

    page = Image.new("RGB", (LEFT + SIDE + 20, TOP + SIDE + 30), PAPER)
    page.paste(inner, (LEFT, TOP))
    draw = ImageDraw.Draw(page)
    draw.rectangle((LEFT, TOP, LEFT + SIDE, TOP + SIDE), outline=INK)
    for horizontal in (True, False):
        _ticks(draw, float(origin[0 if horizontal else 1]), span, horizontal=horizontal)
    draw.ellipse((LEFT, TOP / 2 - 4, LEFT + 8, TOP / 2 + 4), fill=POINT_COLOUR)
    draw_text(draw, (LEFT + 14, TOP / 2), "generated", TICK_SIZE)
    write_png(page, Path(path))


def tick_values(low: float, span: float, count: int = TICKS) -> list[float]:
    """Returns at most about `count` round numbers in [low, low + span], 1, 2 or 5 · 10ᵏ apart.

    >>> tick_values(-1.1, 2.2)
    [-1.0, -0.5, 0.0, 0.5, 1.0]
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
            draw_text(draw, (x, bottom + 14), text, TICK_SIZE, anchor="mm")
        else:
            y = bottom - along
            draw.line((LEFT - 4, y, LEFT, y), fill=INK)
            draw_text(draw, (LEFT - 8, y), text, TICK_SIZE, anchor="rm")


def _checked_points(points: Tensor) -> Tensor:
    if points.ndim != 2 or points.shape[1] != 2 or len(points) == 0:
        raise ValueError(
            f"A scatter plot needs points of shape (N, 2) with N > 0; "
            f"received {tuple(points.shape)}."
        )
    points = points.detach().to("cpu", torch.float64)
    if not bool(torch.isfinite(points).all()):
        raise ValueError("A scatter plot needs finite points; received others.")
    return points


def write_png(image: Page, path: Path) -> None:
    """Writes `image` to `path` as PNG, atomically."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    write_atomic(path, buffer.getvalue())


def draw_text(
    draw: ImageDraw,
    position: tuple[float, float],
    text: str,
    size: float,
    ink: int | tuple[int, int, int] = INK,
    anchor: str = "lm",
) -> None:
    """Writes one line of text; anchor as in Pillow ("lm": position is its left middle)."""
    from PIL import ImageFont

    draw.text(position, text, fill=ink, font=ImageFont.load_default(size), anchor=anchor)


def text_width(text: str, size: float) -> float:
    """Returns the width of one line of text in pixels."""
    from PIL import ImageFont

    return float(ImageFont.load_default(size).getlength(text))


def fit_text(text: str, size: float, width: float) -> str:
    """Shortens `text` until it is at most `width` pixels wide, marking the cut with dots."""
    text = " ".join(text.split())
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + ELLIPSIS, size) > width:
        text = text[:-1]
    return text.rstrip() + ELLIPSIS
