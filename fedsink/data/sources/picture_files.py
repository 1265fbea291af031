"""Picture files as tensors of one size, and sentences on the changes that this makes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedsink.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

MODES = {1: "L", 3: "RGB"}
"""Pillow's name of a picture with so many channels."""

_GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N", "F")
_DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N", "F")
_VAST = 20  # times a side of the target


@dataclass
class ChangedPictures:
    """Counts pictures that reading at one shape changes.

    Args:
        shape: (1 or 3, height, width) of the tensors.
    """

    shape: tuple[int, ...]
    _sizes: Counter[tuple[int, int]] = field(default_factory=Counter, init=False)
    _counts: Counter[str] = field(default_factory=Counter, init=False)
    _largest: tuple[int, str, str] = field(default=(0, "", ""), init=False)

    def add(self, path: str | Path, picture: Image) -> None:
        """Counts one picture as it lies in its file."""
        width, height = picture.size
        self._sizes[width, height] += 1
        self._largest = max(self._largest, (max(width, height), f"{width}×{height}", str(path)))
        has_alpha = picture.mode.endswith(("A", "a")) or "transparency" in picture.info
        self._counts["colour"] += picture.mode not in _GREY
        self._counts["deep"] += picture.mode in _DEEP
        self._counts["clear"] += has_alpha

    def notes(self) -> tuple[str, ...]:
        """Returns one sentence for each kind of change, the most telling first."""
        channels, height, width = self.shape
        number = self._sizes.total()
        other = {size: n for size, n in self._sizes.items() if size != (width, height)}
        notes = []
        if other:
            (wide, high), most = max(other.items(), key=lambda item: item[1])
            cut = max(1 - _kept(size, (width, height)) for size in other)
            notes.append(
                f"{_share(sum(other.values()), number)} of another size than data.shape says "
                f"({width} wide, {height} high), most often {wide} wide and {high} high: scaled "
                f"until it is covered, and cropped at the centre{_cut(cut)}."
            )
            if (wide, high) == (height, width) and 2 * most > number:
                notes[-1] += (
                    f" data.shape is [channels,height,width]: theirs is [{channels},{high},{wide}]."
                )
        if channels == 1 and self._counts["colour"]:
            notes.append(f"{_share(self._counts['colour'], number)} in colour, made grey.")
        if channels == 3 and self._counts["colour"] < number:
            grey = number - self._counts["colour"]
            notes.append(f"{_share(grey, number)} grey, stored in three equal channels.")
        if self._counts["deep"]:
            notes.append(
                f"{_share(self._counts['deep'], number)} of more than 8 bits, of which values over "
                "255 are cut off: scale them to 8 bits first."
            )
        if self._counts["clear"]:
            notes.append(f"{_share(self._counts['clear'], number)} transparent, which is dropped.")
        if self._largest[0] > _VAST * max(height, width):
            notes.append(
                f"The largest picture is {self._largest[1]}, far over {width}×{height}: "
                f"{self._largest[2]}."
            )
        return tuple(notes)


def _share(some: int, of: int) -> str:
    if some == of:
        return "All pictures are" if of > 1 else "The one picture is"
    return f"{some} of {of} pictures {'is' if some == 1 else 'are'}"


def _cut(share: float) -> str:
    return f", which cuts off up to {100 * share:.0f} %" if share >= 0.005 else ""


def _kept(size: tuple[int, int], target: tuple[int, int]) -> float:
    """Returns the share of a picture that remains when it covers a target; 1 if proportional."""
    wide, high = size[0] * target[1], size[1] * target[0]
    return min(wide, high) / max(wide, high)


def read_picture(
    path: str | Path, shape: tuple[int, ...], changed: ChangedPictures | None = None
) -> Tensor:
    """Returns a picture of any format that Pillow reads as uint8 of `shape`.

    The picture is scaled (antialiased) until it covers (height, width) and cropped at the centre.
    Colours become grey for one channel, grey becomes three equal channels. `changed` counts it.

    Raises:
        DataError: where the file cannot be read.
    """
    from PIL import Image

    channels, height, width = shape
    try:
        with Image.open(path) as opened:
            if changed is not None:
                changed.add(path, opened)
            picture = opened.convert(MODES[channels])
    except Image.DecompressionBombError as error:
        raise DataError(f"{path} has too many pixels to be read; make it smaller.") from error
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{path} is not a readable picture; replace or remove it.") from error
    scale = max(height / picture.height, width / picture.width)
    size = (math.ceil(picture.width * scale - 1e-9), math.ceil(picture.height * scale - 1e-9))
    resized = picture.resize(size, Image.Resampling.BILINEAR)
    left, top = round((resized.width - width) / 2), round((resized.height - height) / 2)
    pixels = np.array(resized.crop((left, top, left + width, top + height)))
    return torch.from_numpy(pixels).reshape(height, width, channels).permute(2, 0, 1)
