"""The folder a run leaves: names, nothing half-written, and SHA256SUMS.

SHA256SUMS says which files belong to one another; `sha256sum -c` reads it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import AliasToken, YAMLError, scan

from fedsink import __version__
from fedsink.environment import typed_name
from fedsink.errors import CheckpointError, ClientError, ConfigError
from fedsink.files import write_atomic
from fedsink.reporting.output_files import append_jsonl, truncate_jsonl, write_json
from fedsink.values import check_format

FORMAT = 2
"""Of a run folder; config.yaml states it. Those of format 1 may have keys that are gone."""

SUMS = "SHA256SUMS"
SUMMED = ("privacy.json", "generator.safetensors", "generator.json", "report.html")
"""Files of a run that are handed to others; nodes.json is signed, and may grow after the end."""

_MOST_SUMS = 1 << 16  # bytes
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
                f"{path} is not an empty folder: give another (hydra.run.dir=, of a sweep "
                "hydra.sweep.dir=, in Python folder=), or continue the run in it by "
                f"{command_for('simulate', 'resume', path)}."
            )
        return folder

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """A folder that holds a run.

        Raises:
            CheckpointError: the folder holds no run.
        """
        folder = cls(path)
        if not own_file(folder.config):
            raise CheckpointError(
                f"{path} holds no fedsink run (no config.yaml): name a folder that "
                "`fedsink simulate` printed in its last line."
            )
        return folder

    def refuse_links(self) -> None:
        """Refuses links below the folder: a received one could lead anywhere, and be written to.

        Raises:
            CheckpointError: by the link's name.
        """
        for path in self.path.rglob("*"):
            if path.is_symlink():
                raise CheckpointError(
                    f"{path} is a link, and a run that continues writes through it: put the file "
                    "or folder itself there."
                )

    def create(self) -> None:
        """Makes the folder and its parts."""
        self.samples.mkdir(parents=True, exist_ok=True)
        self.checkpoint.mkdir(exist_ok=True)

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Makes an empty folder, and keeps other processes from running in it.

        Raises:
            ClientError: another process runs in it.
            ConfigError: the folder holds something already.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with self.held():
            self.fresh(self.path)
            yield

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other processes from running in the folder.

        Raises:
            ClientError: another process runs in it.
        """
        told = f"Another process runs in {self.path}: wait for its end, or stop it first."
        with locked(os.open(self.path, os.O_RDONLY | os.O_DIRECTORY), told):
            yield

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


@contextmanager
def locked(descriptor: int, taken: str) -> Iterator[None]:
    """Holds the lock of an open file or folder, and closes it in the end.

    Raises:
        ClientError: another process holds it; with the text `taken`.
    """
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClientError(taken) from None
        yield
    finally:
        os.close(descriptor)


def command_for(command: str, key: str, path: Path) -> str:
    """`fedsink COMMAND key=path` as typed in any shell, whatever the path's letters are."""
    return f"{typed_name()} {command} {shlex.quote(f'{key}={path}')}"


def store_config(folder: RunFolder, config: Mapping[str, Any]) -> None:
    """Writes config.yaml: from then on the folder is one that can be resumed."""
    stated = {"format": FORMAT, "fedsink": __version__, **config}
    write_atomic(folder.config, OmegaConf.to_yaml(OmegaConf.create(stated)).encode())


def stored_config(folder: RunFolder) -> dict[str, Any]:
    """Returns the configuration that a run was started with.

    Guarantees:
        - Nothing in the file is resolved: a received folder shows nothing of this machine.

    Raises:
        CheckpointError: config.yaml cannot be read, is not a table, refers to other values, is of
            another format, or is that of a study.
    """
    try:
        text = folder.config.read_text("utf-8")
        if any(isinstance(token, AliasToken) for token in scan(text)):
            raise ValueError("it refers to a part of itself")
        config: Any = OmegaConf.to_container(OmegaConf.load(StringIO(text)), resolve=False)
        refuse_references(config)
    except (YAMLError, OmegaConfBaseException, OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise CheckpointError(f"{folder.config} cannot be read: {reason}.") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{folder.config} is not a run's configuration: not a table.")
    found, version = config.pop("format", 1), config.pop("fedsink", None)
    what = f"The run in {folder.path}" + (
        f", written by fedsink {str(version)[:20]}," if version else ""
    )
    check_format(what, found, 1, FORMAT, error=CheckpointError)
    if config.pop("study", None) is not None:
        raise CheckpointError(
            f"{folder.path} holds a study of an earlier version: name the folder of one of its "
            "runs, which lie in it."
        )
    return config


def refuse_references(value: object) -> None:
    """Refuses a configuration of another machine with ${…}, which would be resolved on this one.

    Raises:
        ConfigError: a key or a value at any depth holds "${".
    """
    if isinstance(value, Mapping):
        for entry in (*value, *value.values()):
            refuse_references(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            refuse_references(entry)
    elif isinstance(value, str) and "${" in value:
        raise ConfigError(f"A stored configuration is resolved: it holds no {value[:40]!r}.")


def check_sums(folder: Path, names: Sequence[str]) -> None:
    """Refuses files that are not those of the run's end, by SHA256SUMS.

    Raises:
        CheckpointError: a file is a link, or has another SHA-256.
    """
    sums = read_sums(folder) if (folder / SUMS).exists() else {}
    for name in names:
        path = folder / name
        if path.is_symlink():
            raise CheckpointError(f"{path} is a link, and a run's files are its own.")
        if name in sums and path.is_file() and sha256_of(path) != sums[name]:
            raise CheckpointError(
                f"{path} has another SHA-256 than {SUMS} says: it was changed after the run's end. "
                "Restore it from a copy."
            )


def own_file(path: Path) -> bool:
    """Returns whether a file is there, and no link: a received one may lead anywhere."""
    return path.is_file() and not path.is_symlink()


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
    known.pop("nodes.json", None)
    new = {name: sha256_of(folder / name) for name in names if (folder / name).is_file()}
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted((known | new).items()))
    write_atomic(target, text.encode())


def read_sums(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of each file that SHA256SUMS names.

    Raises:
        CheckpointError: a line is no sum of a file of a run, or doubles another; or there is
            something else than a file.
    """
    sums: dict[str, str] = {}
    path = folder / SUMS
    if path.exists() and not (own_file(path) and path.stat().st_size <= _MOST_SUMS):
        raise CheckpointError(f"{path} is no file of sums: restore it from a copy.")
    text = path.read_bytes().decode(errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        found = _LINE.fullmatch(line)
        if found is None or found[2] not in (*SUMMED, "nodes.json") or found[2] in sums:
            raise CheckpointError(
                f"Line {number} of {folder / SUMS} is no SHA-256 of one of "
                f"{', '.join(SUMMED)}: restore the file from a copy."
            )
        sums[found[2]] = found[1]
    return sums
