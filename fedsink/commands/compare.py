"""`fedsink compare run=[A,B]`: runs side by side, in a page and in a table."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from fedsink.commands.command_keys import parse
from fedsink.reporting.displays import printable

HELP = """Usage: fedsink compare run=[A,B,…] [out=compare.html]
       fedsink compare run=FOLDER [out=…]

Compares runs, finished or not: promises, pictures, accuracy over seeds, curves, and the
configuration keys that differ. Prints a table and writes a page, one file without scripts, into the
present folder; for one folder of several runs, such as a sweep's, into that. Runs that differ only
in their seed are one row. A run has accuracies once fedsink evaluate run=DIR has measured them."""


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Compares, prints the table, and writes the page; prints the page's path in the last line."""
    keys = parse(arguments, {"run": folders, "out": str}, of="compare", needs=("run",))

    from fedsink.results.pages.compare_page import NAME, Comparison

    named: list[str] = keys["run"]
    comparison = Comparison.of(named)
    place = Path(named[0]).expanduser() if len(named) == 1 else Path()
    out = Path(keys["out"]).expanduser() if keys.get("out") else place / NAME
    comparison.write(out.resolve())
    print("\n".join(map(printable, comparison.text().split("\n"))))
    print(out)
    return 0


def folders(text: str) -> list[str]:
    """Returns the folders in `[A,B]`, or the one in `A`; quotes hold a name with a comma."""
    if not text.startswith("["):
        return [text] if text else []
    if not text.endswith("]"):
        raise ValueError("a list of folders is written [A,B]")
    (names,) = csv.reader([text[1:-1]], skipinitialspace=True) if text != "[]" else [[]]
    if not all(name.strip() for name in names):
        raise ValueError("the list names an empty folder")
    return [name.strip() for name in names]
