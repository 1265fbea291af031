"""Pictures of pages: PNG files inside the page, no more bytes of them than it may have."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsink.errors import CheckpointError
from fedsink.pages.page import data_uri

MOST_BYTES = 2_000_000
"""Of all pictures of a page, before base64 makes four bytes of three."""


@dataclass(frozen=True)
class Picture:
    """A picture in a data URI.

    Attributes:
        source: the data URI.
        alt: what it shows, in words.
        caption: the text below it.
        width, height: in its own pixels.
    """

    source: str
    alt: str
    caption: str
    width: int
    height: int


def spread(files: Mapping[int, Path], at_most: int) -> dict[int, Path]:
    """The first and the last of some files and others between them, evenly, by their keys."""
    keys = sorted(files)
    if len(keys) > at_most:
        steps = max(1, at_most - 1)
        chosen = {(len(keys) - 1) * (steps - place) // steps for place in range(at_most)}
        keys = [keys[place] for place in sorted(chosen)]
    return {key: files[key] for key in keys}


def pictures(
    described: Sequence[tuple[Path, str, str]], most_bytes: int = MOST_BYTES
) -> list[Picture]:
    """PNG files as pictures, each made smaller until it takes no more than its share.

    Args:
        described: a file, its alternative text and its caption each.
        most_bytes: of all together.

    Raises:
        CheckpointError: a file is no PNG.
    """
    share = most_bytes // max(1, len(described))
    return [_picture(path, alt, caption, share) for path, alt, caption in described]


def _picture(path: Path, alt: str, caption: str, most_bytes: int) -> Picture:
    from PIL import Image, UnidentifiedImageError

    content = path.read_bytes()
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as opened:
            opened.load()
            width, height = opened.size
            shown = opened.convert("RGB" if opened.mode == "RGB" else "L")
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise CheckpointError(
            f"{path} is damaged, it is no PNG: restore the file from a copy, or remove it."
        ) from error
    while len(content) > most_bytes and min(shown.size) > 1:
        shown = shown.resize((shown.width * 3 // 4 or 1, shown.height * 3 // 4 or 1))
        buffer = io.BytesIO()
        shown.save(buffer, format="PNG", optimize=True)
        content = buffer.getvalue()
    return Picture(data_uri(content, "image/png"), alt, caption, width, height)
