"""`fedsink sample run=DIR n=60000 out=FILE.npz`: labelled images to train on."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from fedsink.commands.command_keys import Parser, choice, flag, parse, whole
from fedsink.errors import ConfigError
from fedsink.reporting.samples import (
    check_folders,
    check_pictures,
    pyarrow,
    write_folder,
    write_npz,
    write_parquet,
)
from fedsink.server.finished import open_run

HELP = """Usage: fedsink sample run=DIR out=FILE.npz     [n=1000] [seed=0] [key=value …]
       fedsink sample run=DIR out=FILE.parquet [n=1000] [seed=0] [key=value …]
       fedsink sample run=DIR out=FOLDER       [n=1000] [seed=0] [key=value …]
       fedsink sample run=DIR out=gen.npz format=dpimagebench [n=60000] [seed=0] [key=value …]

Draws n labelled images from the generator of a finished run. FILE.npz holds x (uint8, N×C×H×W;
points: float32) and y (int64); FILE.parquet the columns image and label as Hugging Face's datasets
reads them (extra: parquet); a FOLDER gets CLASS/NUMBER.png, one folder per class. None may exist.

  format       dpimagebench: an .npz as its eval.py reads it, x in float32 from 0 to 1 and y; of
               --exp_path EXP it is EXP/gen/gen.npz
  balanced     true: as many of each class; where n is no multiple of the classes, the first ones
               get one more. Left out: classes are drawn as in training
  classes      only these classes, by name: classes=[3,5]; one with a comma in double quotes
  observation  false leaves out the run's observation.*, as do the pictures in its samples/

Sampling costs no privacy: the generator is already released.

Example: fedsink sample run=runs/DATE/TIME-central n=60000 balanced=true out=digits.parquet"""


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Writes the samples; prints their path."""
    parsers: dict[str, Parser] = {
        "run": str, "out": str, "format": choice("dpimagebench"), "n": whole(1), "seed": whole(0),
        "observation": flag, "balanced": flag, "classes": _names,
    }  # fmt: skip
    keys = parse(arguments, parsers, of="sample", needs=("run", "out"))
    out = Path(keys["out"]).expanduser()
    if out.exists():
        raise ConfigError(f"{out} exists already: remove it or give another out=.")
    if out.suffix not in ("", ".npz", ".parquet"):
        raise ConfigError(
            f"out={out} must end in .npz or .parquet, or have no ending to name a folder."
        )
    if "format" in keys and out.suffix != ".npz":
        raise ConfigError(f"format={keys['format']} is an .npz: give out=gen.npz, not {out}.")
    if out.suffix == ".parquet":
        pyarrow()
    finished = open_run(keys["run"], observed=keys.get("observation", True))
    if out.suffix != ".npz" or "format" in keys:
        check_pictures(finished.data.shape)
    if not out.suffix:
        check_folders(finished.names)
    images, labels = finished.draw(
        keys.get("n", 60_000 if "format" in keys else 1000),
        keys.get("seed", 0),
        balanced=keys.get("balanced", False),
        classes=keys.get("classes"),
    )
    if out.suffix == ".npz":
        write_npz(out, images, labels, as_bytes="format" not in keys)
    else:
        write = write_parquet if out.suffix == ".parquet" else write_folder
        write(out, images, labels, finished.names)
    print(f"{len(labels)} images", file=sys.stderr)
    if keys.get("balanced"):
        drawn = [finished.names.index(name) for name in keys.get("classes", finished.names)]
        counts = torch.bincount(labels, minlength=len(finished.names))[drawn]
        if counts.min() < counts.max():
            print(
                f"{int(counts.max())} of some classes and {int(counts.min())} of others: n is no "
                f"multiple of {len(counts)}.",
                file=sys.stderr,
            )
    print(out)
    return 0


def _names(text: str) -> tuple[str, ...]:
    """Returns the names in `[A,B]`, of which those with a comma stand in double quotes."""
    (row,) = csv.reader([text.removeprefix("[").removesuffix("]")], skipinitialspace=True)
    read = tuple(map(str.strip, row))
    if not read or not all(read) or len(set(read)) < len(read):
        raise ValueError("expected names of classes, each once, for example [3,5]")
    return read
