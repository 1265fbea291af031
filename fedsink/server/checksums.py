"""SHA256SUMS of a run folder: says which files belong to one another (`sha256sum -c` reads it)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from fedsink.errors import CheckpointError
from fedsink.reporting.output_files import write_atomic

FILE_NAME = "SHA256SUMS"
SUMMED = ("privacy.json", "generator.safetensors", "generator.json", "nodes.json", "report.html")
"""Files of a run that are handed to others."""

_LINE = re.compile(r"([0-9a-f]{64}) [ *]([\w.-]{1,64})")


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def note_sums(folder: Path, names: Sequence[str] = SUMMED) -> None:
    """Writes the sums of these files, those that exist, and keeps the sums of others.

    Raises:
        CheckpointError: the sums there are damaged.
    """
    target = folder / FILE_NAME
    known = read_sums(folder) if target.exists() else {}
    new = {name: sha256_of(folder / name) for name in names if (folder / name).is_file()}
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted((known | new).items()))
    write_atomic(target, text.encode())


def read_sums(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of each file that SHA256SUMS names.

    Raises:
        CheckpointError: a line is no sum of a file of a run, or doubles another.
    """
    sums: dict[str, str] = {}
    text = (folder / FILE_NAME).read_bytes().decode(errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        found = _LINE.fullmatch(line)
        if found is None or found[2] not in SUMMED or found[2] in sums:
            raise CheckpointError(
                f"Line {number} of {folder / FILE_NAME} is no SHA-256 of one of "
                f"{', '.join(SUMMED)}: restore the file from a copy."
            )
        sums[found[2]] = found[1]
    return sums
