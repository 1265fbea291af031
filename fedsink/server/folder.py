"""The folder a run leaves: names, nothing half-written, and SHA256SUMS.

SHA256SUMS says which files belong to one another; `sha256sum -c` reads it.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from fedsink.errors import CheckpointError, ConfigError
from fedsink.reporting.output_files import append_jsonl, truncate_jsonl, write_atomic, write_json

SUMS = "SHA256SUMS"
SUMMED = ("privacy.json", "generator.safetensors", "generator.json", "nodes.json", "report.html")
"""Files of a run that are handed to others."""

_LINE = re.compile(r"([0-9a-f]{64}) [ *]([\w.-]{1,64})")


class RunFolder:
    """Paths and writers of one run folder.

    `config.yaml` · `metrics.jsonl` · `metrics.json` · `privacy.json` · `nodes.json` ·
    `SHA256SUMS` · `partition.json` · `samples/` · `generator.safetensors` + `generator.json` ·
    `checkpoint/` · `start/` · `failed.json`
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.metrics_lines = self.path / "metrics.jsonl"
        self.metrics = self.path / "metrics.json"
        self.privacy = self.path / "privacy.json"
        self.failed = self.path / "failed.json"
        self.nodes = self.path / "nodes.json"
        self.partition = self.path / "partition.json"
        self.samples = self.path / "samples"
        self.checkpoint = self.path / "checkpoint"

    @classmethod
    def fresh(cls, path: Path) -> RunFolder:
        """A folder that holds no run yet.

        Raises:
            ConfigError: the folder holds something already.
        """
        folder = cls(path)
        taken = folder.path.exists() and not folder.path.is_dir()
        if taken or (folder.path.is_dir() and any(folder.path.iterdir())):
            raise ConfigError(
                f"{path} is not an empty folder: give another hydra.run.dir=, or continue the "
                f"run in it by {command_for('simulate', 'resume', path)}."
            )
        return folder

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """A folder that holds a run.

        Raises:
            CheckpointError: the folder holds no run.
        """
        folder = cls(path)
        if not folder.config.is_file():
            raise CheckpointError(
                f"{path} holds no fedsink run (no config.yaml): name a folder that "
                "`fedsink simulate` printed in its last line."
            )
        return folder

    def create(self) -> None:
        """Makes the folder and its parts."""
        self.samples.mkdir(parents=True, exist_ok=True)
        self.checkpoint.mkdir(exist_ok=True)

    def log(self, record: dict[str, Any]) -> None:
        """Appends one round to metrics.jsonl."""
        append_jsonl(self.metrics_lines, record)

    def rewind(self, round: int) -> None:
        """Forgets logged rounds after a checkpoint that is being resumed."""
        if self.metrics_lines.exists():
            truncate_jsonl(self.metrics_lines, "round", round)

    def write(self, path: Path, content: dict[str, Any]) -> None:
        """Writes one JSON file atomically."""
        write_json(path, content)

    @property
    def finished(self) -> bool:
        """True if the run in this folder has ended."""
        return self.metrics.is_file()


def command_for(command: str, key: str, path: Path) -> str:
    """`fedsink COMMAND key=path` as typed in a shell, whatever the path's letters are."""
    return f"fedsink {command} {shlex.quote(f'{key}={path}')}"


def store_config(folder: RunFolder, config: Mapping[str, Any]) -> None:
    """Writes config.yaml: from then on the folder is one that can be resumed."""
    write_atomic(folder.config, OmegaConf.to_yaml(OmegaConf.create(dict(config))).encode())


def stored_config(folder: RunFolder) -> dict[str, Any]:
    """Returns the configuration that a run was started with.

    Raises:
        CheckpointError: config.yaml cannot be read, or is not a table.
    """
    try:
        config: Any = OmegaConf.to_container(OmegaConf.load(folder.config), resolve=True)
    except (YAMLError, OmegaConfBaseException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{folder.config} cannot be read: {reason}.") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{folder.config} is not a run's configuration: not a table.")
    return config


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def note_sums(folder: Path, names: Sequence[str] = SUMMED) -> None:
    """Writes the sums of these files, those that exist, and keeps the sums of others.

    Raises:
        CheckpointError: the sums there are damaged.
    """
    target = folder / SUMS
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
    text = (folder / SUMS).read_bytes().decode(errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        found = _LINE.fullmatch(line)
        if found is None or found[2] not in SUMMED or found[2] in sums:
            raise CheckpointError(
                f"Line {number} of {folder / SUMS} is no SHA-256 of one of "
                f"{', '.join(SUMMED)}: restore the file from a copy."
            )
        sums[found[2]] = found[1]
    return sums
