"""Digits and letters rendered from the fonts that matplotlib ships: public by construction.

A generator can be trained on them before it meets private data (`start=DIR`). No hand wrote
them, and no file is downloaded.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedsink.data.deformation import ElasticDeformation
from fedsink.data.labelled import Reading
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError, DataError
from fedsink.privacy.randomness.noise import Stream

CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
RECORDS = {"train": 20_000, "test": 4_000}
_FONTS = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
    *("DejaVuSansMono", "cmb10", "cmr10", "cmss10", "cmti10", "cmtt10"),
)
_LONGER_SIDE = 20 / 28  # of the picture, as in MNIST
_BENDS = ElasticDeformation(std=0.04, length=0.15)
_DRAWN_AT_ONCE = 2000  # pictures, which bounds the memory


def read(spec: DataSpec, split: str) -> Reading:
    """Returns 20,000 or 4,000 uint8 pictures (C, H, W) and their labels, the same every time.

    A class is named by its characters: "7", or "Aa" for capitals and small letters together. Record
    k is of class k mod the number of classes. Font, stroke, angle, slant, size and place are drawn
    for every picture, which is then bent (`fedsink.data.deformation`). Ink is 255 on 0; of three
    channels, ink and ground have colours of their own.
    """
    characters = "".join(spec.classes)
    if unknown := sorted(set(characters) - set(CHARACTERS)):
        raise ConfigError(
            f"glyphs has the digits and the letters A to Z and a to z, and data.classes names "
            f"{unknown[0]!r}: name each class by its characters, such as [0,1,Aa]."
        )
    if len(set(characters)) != len(characters):
        raise ConfigError(f"glyphs draws a character in one class, got {list(spec.classes)}.")
    if len(spec.shape) != 3 or spec.shape[0] not in (1, 3):
        raise ConfigError(
            f"glyphs are pictures of 1 or 3 channels, got data.shape={list(spec.shape)}; height "
            "and width can be chosen."
        )
    label = np.repeat(np.arange(len(spec.classes)), [len(name) for name in spec.classes])
    count = RECORDS[split]
    stream = Stream(b"fedsink glyphs", split)
    labels = np.arange(count) % len(spec.classes)
    uniform = stream.child("places").uniform(count, 16).numpy()
    # Among the characters of the class.
    first, number = np.searchsorted(label, labels), np.bincount(label)[labels]
    drawn = first + (uniform[:, 0] * number).astype(np.int64)
    font = (uniform[:, 1] * len(_FONTS)).astype(np.int64)
    bold = (uniform[:, 2] * 2).astype(np.int64)
    masters = _masters(characters, 2 * max(spec.shape[1:]))
    strokes = torch.stack([masters, functional.max_pool2d(masters, 3, 1, 1)])
    parts = []
    for start in range(0, count, _DRAWN_AT_ONCE):
        rows = slice(start, start + _DRAWN_AT_ONCE)
        pictures = strokes[bold[rows], font[rows], drawn[rows]].unsqueeze(1)
        cover = _placed(pictures, uniform[rows], spec.shape[1], spec.shape[2])
        cover = _BENDS(cover, stream.child("bends", start)).clamp(0.0, 1.0)
        if spec.shape[0] == 3:
            colours = torch.from_numpy(uniform[rows, 8:14]).float()[..., None, None]
            ground, ink = colours.split(3, dim=1)
            cover = ground + cover * (ink - ground)
        parts.append((cover * 255.0 + 0.5).to(torch.uint8))
    return Reading(torch.cat(parts), torch.from_numpy(labels))


def _masters(characters: str, side: int) -> Tensor:
    """Returns the characters in every font, (fonts, characters, side, side) in [0, 1]."""
    # The longer side of a character's box is `_LONGER_SIDE` of the picture, and its box is central.
    from PIL import Image, ImageDraw, ImageFont

    package = find_spec("matplotlib")
    places = package.submodule_search_locations if package else None
    folder = Path(places[0]) / "mpl-data" / "fonts" / "ttf" if places else Path()
    masters = np.zeros((len(_FONTS), len(characters), side, side), dtype=np.float32)
    for i, name in enumerate(_FONTS):
        file = folder / f"{name}.ttf"
        if not file.is_file():  # Pillow would take another font of this name
            raise DataError(
                f"glyphs needs the font {name} that matplotlib ships: install matplotlib again."
            )
        font = ImageFont.truetype(str(file), 2 * side)
        for j, character in enumerate(characters):
            left, top, right, bottom = font.getbbox(character)
            box = Image.new("L", (round(right - left), round(bottom - top)))
            ImageDraw.Draw(box).text((-left, -top), character, fill=255, font=font)
            scale = _LONGER_SIDE * side / max(box.size)
            size = max(1, round(scale * box.width)), max(1, round(scale * box.height))
            small = np.asarray(box.resize(size, Image.Resampling.BOX), dtype=np.float32) / 255.0
            down, across = (side - size[1]) // 2, (side - size[0]) // 2
            masters[i, j, down : down + size[1], across : across + size[0]] = small
    return torch.from_numpy(masters)


def _placed(masters: Tensor, uniform: np.ndarray, height: int, width: int) -> Tensor:
    """Masters turned, slanted, scaled and moved, (n, 1, height, width) in [0, 1]."""
    # They are drawn at twice the size and averaged, so that edges are smooth.
    signed = 2.0 * uniform[:, 3:8] - 1.0
    angle, slant, scale = 0.2 * signed[:, 0], 0.3 * signed[:, 1], 1.0 + 0.15 * signed[:, 2]
    matrix = np.zeros((len(uniform), 2, 3))  # from places of the picture to those of the master
    matrix[:, 0, 0], matrix[:, 0, 1] = np.cos(angle), np.sin(angle) + slant
    matrix[:, 1, 0], matrix[:, 1, 1] = -np.sin(angle), np.cos(angle)
    matrix /= scale[:, None, None]
    matrix[:, :, 2] = 0.1 * signed[:, 3:5]
    stretch = np.array([width, height]) / min(height, width)  # the master is square
    matrix[:, :, :2] *= stretch
    size = [len(masters), 1, 2 * height, 2 * width]
    grid = functional.affine_grid(torch.from_numpy(matrix).float(), size, align_corners=False)
    return functional.avg_pool2d(functional.grid_sample(masters, grid, align_corners=False), 2)
