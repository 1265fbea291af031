"""Plain-text tables that read the same in a terminal, a pipe and a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MISSING = "-"


def format_table(rows: Sequence[Mapping[str, object]], *, digits: int = 3) -> str:
    """Aligns rows under their keys; the columns are the keys in order of first appearance.

    Numbers are set flush right with `digits` decimals (or significant digits where those would
    show only zeros), text flush left; a missing key or None shows as "-". The text has no final
    newline.

    >>> print(format_table([{"run": "a", "loss": 0.25}, {"run": "b", "loss": None}]))
    run   loss
    ---  -----
    a    0.250
    b        -

    Raises:
        ValueError: no rows, or rows without any key.
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if not columns:
        raise ValueError(f"A table needs at least one row with one column; received {rows!r}.")
    cells = [[_cell(row.get(column), digits) for column in columns] for row in rows]
    numeric = [
        any(_is_number(row.get(column)) for row in rows)
        and all(row.get(column) is None or _is_number(row.get(column)) for row in rows)
        for column in columns
    ]
    widths = [
        max(len(text) for text in [column, *column_cells])
        for column, column_cells in zip(columns, zip(*cells, strict=True), strict=True)
    ]

    def line(texts: Sequence[str]) -> str:
        aligned = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(texts, widths, numeric, strict=True)
        ]
        return "  ".join(aligned).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(columns), rule, *(line(row) for row in cells)])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: object, digits: int) -> str:
    if value is None:
        return MISSING
    if isinstance(value, float):
        small = 0 < abs(value) < 0.5 * 10**-digits
        return f"{value:.{digits}g}" if small else f"{value:.{digits}f}"
    return " ".join(str(value).split())
