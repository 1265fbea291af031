"""Labelled grids of sample images."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedsink.reporting.pictures import INK, PAPER, draw_text, fit_text, text_width, write_png

if TYPE_CHECKING:
    from PIL.Image import Image as Page

GAP = 2
TEXT_SIZE = 14
MARGIN = 6
WIDEST_NAME = 160
READABLE_SIDE = 48


def save_grid(
    images: Tensor,
    labels: Tensor,
    class_names: Sequence[str],
    path: str | os.PathLike[str],
    *,
    columns: int = 10,
    scale: int | None = None,
) -> None:
    """Draw one row per class, its name on the left, and write the grid as PNG, atomically.

    A row shows the first `columns` images with its label; where there are fewer, cells stay empty.

    Args:
        images: (N, C, H, W) in [0, 1], C = 1 (grey) or 3 (red, green, blue); values outside are
            clamped.
        labels: (N,), integers in 0..len(class_names)-1.
        class_names: a name per class, in the order of the labels.
        path: the PNG file; its folder is made if it is missing.
        columns: images per row.
        scale: nearest-neighbour enlargement; None enlarges to a side of about 48 pixels
            (8×8 six times, 28×28 twice, 64×64 not at all).

    Raises:
        ValueError: shapes, labels or sizes that do not fit, or images that are not finite.
    """
    write_png(_page(images, labels, class_names, columns, scale), Path(path))


def save_side_by_side(
    panels: Mapping[str, tuple[Tensor, Tensor]],
    class_names: Sequence[str],
    path: str | os.PathLike[str],
    *,
    columns: int = 5,
) -> None:
    """Draw the grids of several samples beside one another, each under its name.

    Args:
        panels: at least one pair of images and labels by name, as for `save_grid`.
        class_names: as for `save_grid`.
        path: the PNG file, likewise.
        columns: images per row of each grid.

    Raises:
        ValueError: as `save_grid`.
    """
    from PIL import Image, ImageDraw

    pages = {
        name: _page(images, labels, class_names, columns, None)
        for name, (images, labels) in panels.items()
    }
    heading = TEXT_SIZE + 2 * MARGIN
    size = (sum(p.width for p in pages.values()), heading + max(p.height for p in pages.values()))
    sheet = Image.new("RGB", size, PAPER)
    draw, left = ImageDraw.Draw(sheet), 0
    for name, page in pages.items():
        title = fit_text(name, TEXT_SIZE, page.width - MARGIN)
        draw_text(draw, (left + page.width / 2, heading / 2), title, TEXT_SIZE, anchor="mm")
        sheet.paste(page, (left, heading))
        left += page.width
    write_png(sheet, Path(path))


def _page(
    images: Tensor, labels: Tensor, class_names: Sequence[str], columns: int, scale: int | None
) -> Page:
    _check(images, labels, class_names, columns, scale)
    from PIL import Image, ImageDraw

    depth, height, width = images.shape[1:]
    if scale is None:
        scale = max(1, math.ceil(READABLE_SIDE / max(height, width)))
    pixels = images.detach().cpu().clamp(0, 1).mul(255).round().to(torch.uint8)
    pixels = pixels.repeat_interleave(scale, dim=2).repeat_interleave(scale, dim=3)
    rows = [pixels[labels.cpu() == label][:columns] for label in range(len(class_names))]

    names = [fit_text(name, TEXT_SIZE, WIDEST_NAME) for name in class_names]
    left = math.ceil(max(text_width(name, TEXT_SIZE) for name in names)) + 2 * MARGIN
    cell_width = width * scale + GAP
    cell_height = max(height * scale, TEXT_SIZE) + GAP
    size = (left + columns * cell_width, len(rows) * cell_height + GAP)
    page = Image.new("RGB" if depth == 3 else "L", size, PAPER if depth == 3 else PAPER[0])
    draw = ImageDraw.Draw(page)
    for row, (name, samples) in enumerate(zip(names, rows, strict=True)):
        top = GAP + row * cell_height
        middle = top + height * scale / 2
        draw_text(draw, (MARGIN, middle), name, TEXT_SIZE, INK if depth == 3 else INK[0])
        for column, sample in enumerate(samples):
            array = sample.permute(1, 2, 0).squeeze(-1).numpy()
            page.paste(Image.fromarray(array), (left + column * cell_width, top))
    return page


def _check(
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
