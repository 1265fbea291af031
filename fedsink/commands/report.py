"""`fedsink report run=DIR`: one page about a run, to judge it by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedsink.commands.command_keys import parse

HELP = """Usage: fedsink report run=DIR

Writes DIR/report.html, one page about a run, finished or not: the privacy guarantee, the uploads of
each client and their ε, curves, pictures from first to last, accuracies where fedsink evaluate
has measured them, the configuration, the command that repeats the run, and the files' SHA-256.

The page is one file without scripts that loads nothing from the network. It holds no partition, key
or path. Every run writes it at its end (report.html=false leaves it out), and fedsink evaluate
updates it."""


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Writes the page; prints its path."""
    keys = parse(arguments, {"run": str}, of="report", needs=("run",))
    from fedsink.results.pages.report_page import write_report

    print(write_report(Path(keys["run"])))
    return 0
