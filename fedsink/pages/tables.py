"""Tables of pages, and numbers as people write them.

>>> number(0.000012345), number(9.99961), number(1234567), number(None)
('1.23e-5', '10', '1,234,567', '–')
>>> size(5432), size(12_300_000)
('5.4 kB', '12.3 MB')
>>> duration(42), duration(5025)
('42 s', '1 h 23 min')
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MISSING = "–"


@dataclass(frozen=True)
class Table:
    """A table of text; the first cell of a row is its heading.

    Attributes:
        columns: headings.
        rows: as many cells each.
        caption: what the table shows; "" where the text above it says so.
        numeric: indices of the columns that are set flush right.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    numeric: frozenset[int] = frozenset()


def number(value: float | None, digits: int = 4) -> str:
    """A number with so many significant digits; "–" for None, "∞" for infinity."""
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
    """A number of bytes, in powers of a thousand."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"


def duration(seconds: float) -> str:
    """A time in its two largest units."""
    whole = round(seconds)
    if whole < 1:
        return f"{seconds:.2g} s"
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
