"""What grids and scatter plots share: colours, text, and writing a PNG."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from fedsink.reporting.atomic import write_atomic

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

PAPER = (255, 255, 255)
INK = (40, 40, 40)
ELLIPSIS = "..."


def write_png(image: Image, path: Path) -> None:
    """Write `image` to `path` as PNG, atomically."""
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
    """Write one line of text; anchor as in Pillow ("lm": position is its left middle)."""
    from PIL import ImageFont

    draw.text(position, text, fill=ink, font=ImageFont.load_default(size), anchor=anchor)


def text_width(text: str, size: float) -> float:
    """Width of one line of text in pixels."""
    from PIL import ImageFont

    return float(ImageFont.load_default(size).getlength(text))


def fit_text(text: str, size: float, width: float) -> str:
    """Shorten `text` until it is at most `width` pixels wide, marking the cut with dots."""
    text = " ".join(text.split())
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + ELLIPSIS, size) > width:
        text = text[:-1]
    return text.rstrip() + ELLIPSIS
