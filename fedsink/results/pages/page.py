"""Parts of pages: templates, tables, pictures, and numbers as people write them.

A page is one file, which runs nothing and loads nothing.

>>> number(0.000012345), number(9.99961), number(1234567), number(None)
('1.23e-5', '10', '1,234,567', '–')
>>> size(5432), size(12_300_000)
('5.4 kB', '12.3 MB')
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedsink import __version__
from fedsink.errors import CheckpointError

MISSING = "–"
MOST_BYTES = 2_000_000
"""Size of all pictures of a page at most, before base64 makes four bytes of three."""


@dataclass(frozen=True)
class PageTable:
    """A table of text; the first cell of a row is its heading."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""  # below the table, where the text above does not say what it shows
    numeric: frozenset[int] = frozenset()  # indices of the columns aligned to the right


@dataclass(frozen=True)
class Picture:
    """A picture in a data URI, with its content in words and the text below it."""

    source: str
    alt: str
    caption: str
    width: int  # in its own pixels
    height: int


def render(template: str, **values: object) -> bytes:
    """Fills in a template of this package that extends base.html.j2.

    Guarantees:
        - Every value is escaped; only the style sheet is not.
        - The page's Content-Security-Policy forbids scripts and everything from elsewhere.
    """
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = (
        environment()
        .get_template(template)
        .render(
            values,
            style=Markup(style),
            policy=f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'",
            version=__version__,
        )
    )
    return page.encode()


def data_uri(content: bytes, kind: str) -> str:
    """Returns an address that holds the content, for instance of kind "image/png"."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def number(value: float | None, digits: int = 4) -> str:
    """Writes a number with some significant digits; "–" for None, "∞" for infinity."""
    if value is None:
        return MISSING
    if math.isinf(value):
        return "∞"
    if value == int(value) or 1000 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    if abs(value) < 1e-3 or abs(value) >= 1e6:
        mantissa, _, exponent = f"{value:.{digits - 2}e}".partition("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:.{digits}g}"


def size(count: float) -> str:
    """Writes a number of bytes, in powers of a thousand."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"


def spread(files: Mapping[int, Path], at_most: int) -> dict[int, Path]:
    """Picks the files of the first and the last key, and of others evenly between them."""
    keys = sorted(files)
    if len(keys) > at_most:
        steps = max(1, at_most - 1)
        places_of_keys = {(len(keys) - 1) * (steps - place) // steps for place in range(at_most)}
        keys = [keys[place] for place in sorted(places_of_keys)]
    return {key: files[key] for key in keys}


def pictures(
    described: Sequence[tuple[Path, str, str]], most_bytes: int = MOST_BYTES
) -> list[Picture]:
    """Makes pictures of PNG files, texts and captions, each scaled down to its part of bytes."""
    each = most_bytes // max(1, len(described))
    return [_picture(path, alt, caption, each) for path, alt, caption in described]


def _picture(path: Path, alt: str, caption: str, most_bytes: int) -> Picture:
    from PIL import Image, UnidentifiedImageError

    content = path.read_bytes()
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as opened:
            opened.load()
            width, height = opened.size
            shown = opened.convert("RGB" if opened.mode == "RGB" else "L")
    except (
        UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError,
    ) as error:  # fmt: skip
        raise CheckpointError(
            f"{path} is damaged, it is no PNG: restore the file from a copy, or remove it."
        ) from error
    while len(content) > most_bytes and min(shown.size) > 1:
        shown = shown.resize((shown.width * 3 // 4 or 1, shown.height * 3 // 4 or 1))
        buffer = io.BytesIO()
        shown.save(buffer, format="PNG", optimize=True)
        content = buffer.getvalue()
    return Picture(data_uri(content, "image/png"), alt, caption, width, height)


@cache
def environment() -> Environment:
    """Returns the reader of this folder's templates."""
    return Environment(
        loader=PackageLoader("fedsink", "results/pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
