"""`fedsink report run=DIR`: one page about a run, to judge it by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedsink.commands.command_keys import parse
from fedsink.errors import ConfigError

HELP = """Usage: fedsink report run=DIR

Writes DIR/report.html, one page about a run, finished or not: the privacy guarantee, the uploads of
each client and their ε, curves, pictures from first to last, accuracies where fedsink evaluate
has measured them, the configuration, the command that repeats the run, and the files' SHA-256.

The page is one file without scripts that loads nothing from the network. It holds no partition, key
or path. Every run writes it at its end (report.html=false leaves it out), and fedsink evaluate
updates it."""


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Writes the page; prints its path."""
    if {"-h", "--help"} & set(arguments):
        print(HELP)
        return 0
    keys = parse(arguments, {"run": str})
    if not keys.get("run"):
        raise ConfigError("run= is missing; fedsink report --help says what to give.")
    from fedsink.pages.report_page import write_report

    print(write_report(Path(keys["run"])))
    return 0
