"""`fedsink card run=DIR`: a model card for publishing a generator."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from fedsink.commands.command_keys import parse
from fedsink.errors import ConfigError

HELP = """Usage: fedsink card run=DIR [out=FILE] [license=unknown]

Writes a model card in Hugging Face's format: what the generator is, what is promised to whom, how
it was trained, how good it is by what fedsink evaluate has written into the run folder, its limits,
how to sample from it, and the command that repeats the run. No path, key or count of the partition
is in it.

  out      left out: README.md in the run folder. It must not exist
  license  of the generator, by its name on the Hub, such as cc-by-4.0

Beside a card publish generator.safetensors, generator.json, privacy.json, SHA256SUMS and, of real
nodes, nodes.json, by which fedsink verify judges the promise, and no other file: config.yaml names
places of this machine, and partition.json holds exact counts of private data.

Example: fedsink card run=runs/DATE/TIME-central license=cc-by-4.0"""


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Writes the card; prints its path."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP)
        return 0
    keys = parse(arguments, {"run": str, "out": Path, "license": _license})
    if not keys.get("run"):
        raise ConfigError("run= is missing; fedsink card --help says what to give.")

    from fedsink.pages.model_card import model_card
    from fedsink.reporting.output_files import write_atomic
    from fedsink.server.finished import finished_record
    from fedsink.server.folder import command_for

    recorded, privacy, result = finished_record(keys["run"])
    out = keys.get("out", recorded.folder.path / "README.md").expanduser()
    if out.exists():
        raise ConfigError(f"{out} exists already: remove it or give another out=.")
    card = model_card(recorded, privacy, result, keys.get("license", "unknown"))
    write_atomic(out, card.encode())
    if not recorded.evaluations:
        print(
            "The run has not been evaluated: "
            + command_for("evaluate", "run", recorded.folder.path),
            file=sys.stderr,
        )
    print(out)
    return 0


def _license(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", text):
        raise ValueError("expected a name such as cc-by-4.0, in small letters")
    return text
