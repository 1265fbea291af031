"""`fedsink card run=DIR`: a model card for publishing a generator."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from fedsink.commands.command_keys import Parser, parse
from fedsink.errors import ConfigError

HELP = """Usage: fedsink card run=DIR [out=FILE.md|FOLDER] [license=unknown]

Writes a model card in Hugging Face's format (extra `card`): the generator, its guarantee, training,
figures of fedsink evaluate and limits, its last picture, how to sample from it, and what was typed.
It holds no path, key or count of the partition.

  out      FOLDER, which must not exist: the card with generator.safetensors, generator.json,
           privacy.json and samples.png, ready for `hf upload OWNER/NAME FOLDER`. FILE.md: only
           the card, with samples.png next to it. Left out: README.md in the run folder
  license  of the generator, by its name on the Hub, such as cc-by-4.0

Publish no other file of a run folder than those that out=FOLDER copies: config.yaml names places of
this machine, and partition.json holds exact counts of private data. fedsink verify judges the
promise by SHA256SUMS and, of real nodes, nodes.json.

Example: fedsink card run=runs/DATE/TIME-central out=digits license=cc-by-4.0"""


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Writes the card; prints its path."""
    parsers: dict[str, Parser] = {"run": str, "out": Path, "license": _license}
    keys = parse(arguments, parsers, of="card", needs=("run",))

    from fedsink.files import write_atomic
    from fedsink.results.pages.model_card import PICTURE, model_card, write_publication
    from fedsink.server.finished import finished_record
    from fedsink.server.folder import command_for

    recorded, privacy, result = finished_record(keys["run"])
    path = recorded.folder.path
    out = keys.get("out", path / "README.md").expanduser()
    if out.suffix not in ("", ".md"):
        raise ConfigError(f"out={out} must end in .md, or have no ending to name a folder.")
    for place in (out, *([out.with_name(PICTURE)] if out.suffix else [])):
        if place.exists():
            raise ConfigError(f"{place} exists already: remove it or give another out=.")
    card = model_card(recorded, privacy, result, keys.get("license", "unknown"))
    if not recorded.pictures:
        raise ConfigError(f"{path}/samples holds no picture for the card: restore it from a copy.")
    picture = list(recorded.pictures.values())[-1].read_bytes()
    if out.suffix:
        write_atomic(out.with_name(PICTURE), picture)
        write_atomic(out, card.encode())
    else:
        write_publication(out, path, card, picture)
    if not recorded.evaluations:
        hint = f"The run has not been evaluated: {command_for('evaluate', 'run', path)}"
        print(hint, file=sys.stderr)
    print(out)
    return 0


def _license(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", text):
        raise ValueError("expected a name such as cc-by-4.0, in small letters")
    return text
