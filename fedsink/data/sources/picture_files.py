"""Picture files as tensors of one size, and sentences on the changes that this makes."""

from __future__ import annotations

import contextlib
import math
import struct
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedsink.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

MODES = {1: "L", 3: "RGB"}
"""Pillow's name of a picture with so many channels."""

FORMATS = ("PNG", "JPEG", "TIFF", "WEBP", "BMP", "GIF", "PPM", "JPEG2000", "AVIF")
"""Pillow's names of what is read; none of their decoders starts another program."""

MOST_PIXELS = 2**27
"""Of a picture, as its file states them before anything is decoded: up to 1.1 GB of memory."""

_GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N", "F")
_DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N", "F")
_MOST_RESIZED = 2**24  # pixels of a whole picture that is scaled before it is cropped
_VAST = 20  # times a side of the target
_ORIENTATION, _BITS, _POLARITY, _MAXIMUM, _KIND = 274, 258, 262, 281, 339  # tags of TIFF and EXIF
_MALFORMED = (
    *(OSError, ValueError, SyntaxError, TypeError, LookupError, EOFError, struct.error),
    *(AttributeError, ArithmeticError, RuntimeError),
)
"""Errors of Pillow's decoders at damaged files."""

Limits = tuple[float, float]
"""The values of black and of white."""


class NoPictureError(DataError):
    """The file begins like none of the formats that are read."""


@dataclass
class ChangedPictures:
    """Counts pictures that reading at one shape, (1 or 3, height, width), changes."""

    shape: tuple[int, ...]
    _sizes: Counter[tuple[int, int]] = field(default_factory=Counter, init=False)
    _counts: Counter[str] = field(default_factory=Counter, init=False)
    _largest: tuple[int, str, str] = field(default=(0, "", ""), init=False)
    _pages: list[str] = field(default_factory=list, init=False)

    def add(
        self, path: str | Path, picture: Image, *, deep: bool, turned: bool, pages: bool
    ) -> None:
        """Counts one picture, decoded and turned by now; `deep`: it had more than 8 bits."""
        width, height = picture.size
        self._sizes[width, height] += 1
        self._largest = max(self._largest, (max(width, height), f"{width}×{height}", str(path)))
        has_alpha = picture.mode.endswith(("A", "a")) or "transparency" in picture.info
        self._counts["colour"] += picture.mode not in _GREY
        self._counts["clear"] += has_alpha
        self._counts["deep"] += deep
        self._counts["turned"] += turned
        if pages:
            self._pages.append(str(path))

    def notes(self) -> tuple[str, ...]:
        """Returns a sentence for each kind of change, the most telling first."""
        channels, height, width = self.shape
        number = self._sizes.total()
        other = {size: n for size, n in self._sizes.items() if size != (width, height)}
        notes = []
        if other:
            (wide, high), most = max(other.items(), key=lambda item: item[1])
            # A picture that covers the target keeps this fraction of its area.
            sides = [(w * height, h * width) for w, h in other]
            cut = 1 - min(min(pair) / max(pair) for pair in sides)
            cut_off = f", which cuts off up to {100 * cut:.0f} %" if cut >= 0.005 else ""
            notes.append(
                f"{_share(sum(other.values()), number)} of another size than data.shape says "
                f"({width} wide, {height} high), most often {wide} wide and {high} high: scaled "
                f"until it is covered, and cropped at the centre{cut_off}."
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
                f"{_share(self._counts['deep'], number)} of more than 8 bits, scaled to 8 from the "
                "whole range of their type, or of data.range."
            )
        if self._counts["turned"]:
            notes.append(f"{_share(self._counts['turned'], number)} turned, as the EXIF data say.")
        if self._pages:
            notes.append(
                f"{len(self._pages)} of {number} files hold further pages or frames, of which only "
                f"the first is read, as of {self._pages[0]}."
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


def read_picture(
    path: str | Path,
    shape: tuple[int, ...],
    changed: ChangedPictures | None = None,
    limits: Limits | None = None,
) -> Tensor:
    """Returns the first picture of a file, whatever its name, as uint8 of `shape`.

    It is of one of `FORMATS`, turned as its EXIF data say, scaled (antialiased) until it covers
    (height, width) and cropped at the centre. Colours become grey for one channel, grey becomes
    three equal channels. Grey of more than 8 bits is scaled from the range of its type, and never
    clipped: unsigned integers from all that their bits can hold, or from the range that the file
    states (PGM's maxval, TIFF's BitsPerSample, its MaxSampleValue if that is 2^k − 1), floating
    point from [0, 1]. `limits` replace those ranges, and are needed for integers that have a sign
    or 32 bits. A file that holds none of the formats is a `NoPictureError`.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    channels, height, width = shape
    try:
        with Image.open(path, formats=_formats()) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                raise Image.DecompressionBombError
            depth, turned = _Depth.of(opened), False
            with contextlib.suppress(*_MALFORMED):  # EXIF data with errors turn nothing
                turned = opened.getexif().get(_ORIENTATION) in range(2, 9)
            opened.load()  # which turns a TIFF by itself
            picture = ImageOps.exif_transpose(opened) if turned else opened
            if changed is not None:
                pages = getattr(opened, "is_animated", False)
                changed.add(path, picture, deep=depth is not None, turned=turned, pages=pages)
            if depth is not None:
                picture = depth.bytes(path, picture, limits)
            picture = picture.convert(MODES[channels])
    except Image.DecompressionBombError as error:
        raise DataError(f"{path} has too many pixels to be read; make it smaller.") from error
    except UnidentifiedImageError as error:
        raise NoPictureError(f"{path} is not a readable picture; replace or remove it.") from error
    except DataError:
        raise
    except _MALFORMED as error:
        raise DataError(f"{path} is not a readable picture; replace or remove it.") from error
    scale = max(height / picture.height, width / picture.width)
    size = (math.ceil(picture.width * scale - 1e-9), math.ceil(picture.height * scale - 1e-9))
    if size[0] * size[1] > _MOST_RESIZED:  # a thin strip: only what is kept of it is scaled
        wide, high = width / scale, height / scale
        left, top = (picture.width - wide) / 2, (picture.height - high) / 2
        box = (max(left, 0), max(top, 0), left + wide, top + high)
        cropped = picture.resize((width, height), Image.Resampling.BILINEAR, box)
    else:
        resized = picture.resize(size, Image.Resampling.BILINEAR)
        left, top = round((resized.width - width) / 2), round((resized.height - height) / 2)
        cropped = resized.crop((left, top, left + width, top + height))
    return torch.from_numpy(np.array(cropped)).reshape(height, width, channels).permute(2, 0, 1)


@contextlib.contextmanager
def vast_allowed() -> Iterator[None]:
    """Silences Pillow's warning of large pictures, of which a note tells."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


@cache
def _formats() -> tuple[str, ...]:
    """Returns those of `FORMATS` that this version of Pillow has."""
    from PIL import Image

    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


@dataclass(frozen=True)
class _Depth:
    """Scale of a file's values that have more than 8 bits, or signs.

    Attributes:
        limits_of_file: the values of black and white; None: nothing tells them.
        colours: Pillow has halved them to 8 bits by itself.
        kind: how the values are to be seen that Pillow has read; None: as they are.
        maximum: the largest value of a PGM, whose values Pillow has scaled to 65535.
        inverted: the least value is white.
    """

    limits_of_file: Limits | None
    colours: bool = False
    kind: Any = None
    maximum: int = 65535
    inverted: bool = False

    @classmethod
    def of(cls, opened: Any) -> _Depth | None:
        """Reads it before the file is decoded; None for bytes."""
        tiles = [tile[3] for tile in opened.tile]
        tags = getattr(opened, "tag_v2", {})
        bits, signed = _first(tags.get(_BITS, 16)), _first(tags.get(_KIND, 1)) == 2
        maximum = 65535
        if opened.format == "PPM" and isinstance(tiles[0], tuple) and tiles[0][1] > 0:
            maximum = int(tiles[0][1])
        if opened.mode not in _DEEP:
            if opened.mode == "L" and signed:
                return cls(None, kind=np.int8)
            deep = ";16" in str(tiles) or (opened.format == "PPM" and 255 < maximum < 65536)
            return cls(None, colours=True) if deep and tiles and opened.mode != "L" else None
        inverted = _first(tags.get(_POLARITY, 1)) == 0
        if opened.mode == "F":
            return cls((0, 1), inverted=inverted)
        if not tags:
            return cls((0, maximum), maximum=maximum)
        if signed or bits > 16:
            return cls(None, kind=None if signed else np.uint32, inverted=inverted)
        most, maximum = 2**bits - 1, _first(tags.get(_MAXIMUM, 0))
        # Another number than 2^k − 1 is the largest value of this picture, and no range.
        return cls(
            (0, maximum if 0 < maximum < most and maximum & (maximum + 1) == 0 else most),
            inverted=inverted,
        )

    def bytes(self, path: str | Path, picture: Image, limits: Limits | None) -> Image:
        """Returns a picture of bytes; values outside the range are refused."""
        from PIL import Image

        if self.colours:
            if limits is None:
                return picture
            raise DataError(
                f"{path} holds colours of 16 bits, which data.range does not scale: store it with "
                "8 bits, or leave data.range out."
            )
        if (limits := limits or self.limits_of_file) is None:
            raise DataError(
                f"{path} holds integers that have a sign or 32 bits, which do not tell black and "
                "white: state data.range=[BLACK,WHITE]."
            )
        values = np.asarray(picture)
        if self.kind is not None:
            values = values.view(self.kind)
        values = values.astype(np.float32 if values.dtype.itemsize == 2 else np.float64)
        if self.maximum != 65535:
            values = np.rint(values * (self.maximum / 65535))
        least, most = float(values.min()), float(values.max())
        if not (limits[0] <= least and most <= limits[1]):  # nor where one is not a number
            raise DataError(
                f"{path} holds values from {least:g} to {most:g}, outside "
                f"[{limits[0]:g}, {limits[1]:g}]: state data.range=[BLACK,WHITE], or scale it."
            )
        scaled = np.rint((values - limits[0]) * (255 / (limits[1] - limits[0]))).astype(np.uint8)
        return Image.fromarray(255 - scaled if self.inverted else scaled)


def _first(value: Any) -> int:
    """Returns the first number of a tag, which may be a list of them."""
    return int(value[0] if isinstance(value, tuple) else value)
