"""The folder a run leaves: names, nothing half-written, SHA256SUMS, and what it records.

SHA256SUMS says which files belong to one another; `sha256sum -c` reads it. `RecordedRun` is the
content, for reports, comparisons and Python.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import yaml
from yaml import AliasToken, MappingNode, SafeDumper, SafeLoader, ScalarNode, YAMLError

from fedsink import __version__
from fedsink.environment import typed_name
from fedsink.errors import CheckpointError, ClientError, ConfigError
from fedsink.files import write_atomic
from fedsink.reporting.output_files import append_jsonl, truncate_jsonl, write_json
from fedsink.values import Config, as_float, check_format, read_json

FORMAT = 2
"""Of a run folder; config.yaml states it. Those of format 1 may have keys that are gone."""

SUMS = "SHA256SUMS"
SUMMED = ("privacy.json", "generator.safetensors", "generator.json", "report.html")
"""Files of a run that are handed to others; nodes.json is signed, and may grow after the end."""

_MOST_SUMS = 1 << 16  # bytes
_LINE = re.compile(r"([0-9a-f]{64}) [ *]([\w.-]{1,64})")
_PICTURE = re.compile(r"round-(\d+)\.png")


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
        """Returns a folder that holds no run yet; one that holds something is refused."""
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
        """Returns a folder that holds a run."""
        folder = cls(path)
        if not own_file(folder.config):
            raise CheckpointError(
                f"{path} holds no fedsink run (no config.yaml): name a folder that "
                "`fedsink simulate` printed in its last line."
            )
        return folder

    def refuse_links(self) -> None:
        """Refuses links below the folder: a received one could lead anywhere, and be written to."""
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
        """Makes an empty folder, and keeps other processes from running in it."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self.held():
            self.fresh(self.path)
            yield

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other processes from running in the folder."""
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
def locked(descriptor: int, taken: str, patience: float = 0.0) -> Iterator[None]:
    """Holds the lock of an open file or folder, and closes it.

    Who does not get it within `patience` seconds is refused with the text `taken`.
    """
    until = time.monotonic() + patience
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise ClientError(taken) from None
                time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)


def command_for(command: str, key: str, path: Path) -> str:
    """Returns `fedsink COMMAND key=path` as typed in any shell, whatever the path's letters are."""
    return f"{typed_name()} {command} {shlex.quote(f'{key}={path}')}"


def store_config(folder: RunFolder, config: Mapping[str, Any]) -> None:
    """Writes config.yaml: from then on the folder is one that can be resumed."""
    content = {"format": FORMAT, "fedsink": __version__, **config}
    text = yaml.dump(content, Dumper=_Writer, allow_unicode=True, sort_keys=False)
    write_atomic(folder.config, text.encode())


def stored_config(folder: RunFolder) -> dict[str, Any]:
    """Returns the configuration that a run was started with.

    Guarantees:
        - Nothing in the file is resolved: a received folder shows nothing of this machine.
    """
    try:
        text = folder.config.read_text("utf-8")
        if any(isinstance(token, AliasToken) for token in yaml.scan(text)):
            raise ValueError("it refers to a part of itself")
        config: Any = yaml.load(text, Loader=_Reader)
        refuse_references(config)
    except (YAMLError, OSError, ValueError, RecursionError) as error:
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


class _Writer(SafeDumper):
    """Writes as Hydra does: text that YAML could take for a number or a truth value is quoted."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def text(self, data: str) -> ScalarNode:
        try:
            float(data)
        except ValueError:
            return self.represent_scalar(_TEXT, data, "'" if data in [*"yYnN"] else None)
        return self.represent_scalar(_TEXT, data, "'")


class _Reader(SafeLoader):
    """Reads as Hydra does: 1e-5 is a number, a date is text, and no key stands twice."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {
        first: [(tag, form) for tag, form in forms if not tag.endswith(":timestamp")]
        for first, forms in SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in keys:
                raise ValueError(f"it states the key {str(key.value)[:40]!r} twice")
            keys.add(str(key.value))
        return super().construct_mapping(node, deep)


_TEXT = "tag:yaml.org,2002:str"
_EXPONENT = re.compile(r"[-+]?\d[\d_]*\.?\d*[eE][-+]?\d+$")
_Writer.add_representer(str, _Writer.text)
_Reader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, [*"-+0123456789"])


def refuse_references(value: object) -> None:
    """Refuses a configuration of another machine with ${…}, which would be resolved on this one."""
    if isinstance(value, Mapping):
        for entry in (*value, *value.values()):
            refuse_references(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            refuse_references(entry)
    elif isinstance(value, str) and "${" in value:
        raise ConfigError(f"A stored configuration is resolved: it holds no {value[:40]!r}.")


def own_file(path: Path) -> bool:
    """Returns whether a file is there, and no link: a received one may lead anywhere."""
    return path.is_file() and not path.is_symlink()


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sums(folder: Path, names: Sequence[str]) -> None:
    """Refuses links, and files that differ from those of the run's end (SHA256SUMS)."""
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


def note_sums(folder: Path, names: Sequence[str] = SUMMED) -> None:
    """Writes the sums of these files, those that exist, and keeps the sums of others."""
    target = folder / SUMS
    earlier = read_sums(folder) if target.exists() else {}
    earlier.pop("nodes.json", None)
    new = {name: sha256_of(folder / name) for name in names if (folder / name).is_file()}
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted((earlier | new).items()))
    write_atomic(target, text.encode())


def read_sums(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of each file that SHA256SUMS names; a file of other lines is refused."""
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


@dataclass(frozen=True)
class RecordedRun:
    """Content of a run folder, finished or not. Each file is read once, when it is first needed.

    >>> run = RecordedRun.of("runs/2026-11-22/13-28-36-central")  # doctest: +SKIP
    >>> run.privacy["epsilon"], run.rounds[-1]["loss"], run.finished  # doctest: +SKIP
    (9.99, 0.41, True)

    An attribute raises CheckpointError where its file exists and is damaged; the error names the
    file and says what to do. Links are not followed: a received one may lead anywhere.
    """

    folder: RunFolder

    @classmethod
    def of(cls, path: str | Path) -> Self:
        """Returns the run in a folder; "~" is the user's home."""
        return cls(RunFolder.existing(Path(path).expanduser().resolve()))

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, and under `run` the run's name and server seed."""
        return stored_config(self.folder)

    @property
    def finished(self) -> bool:
        """True if the run has ended."""
        return self.folder.finished

    @cached_property
    def privacy(self) -> dict[str, Any] | None:
        """privacy.json: the guarantee; None before it is written."""
        return _table(self.folder.privacy)

    @cached_property
    def rounds(self) -> tuple[dict[str, Any], ...]:
        """metrics.jsonl: a record for each message, in order; none before the first.

        A last line that a kill has torn, or that is being written just now, is left out.
        """
        path = self.folder.metrics_lines
        lines = path.read_bytes().splitlines(keepends=True) if own_file(path) else []
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        return tuple(_record(line, f"Line {n} of {path}") for n, line in enumerate(lines, 1))

    @cached_property
    def result(self) -> dict[str, Any] | None:
        """metrics.json: the final figures; None before the end."""
        return _table(self.folder.metrics)

    @cached_property
    def statements(self) -> list[Any]:
        """nodes.json: what nodes have signed, as it lies there; none where no node was asked."""
        table = _table(self.folder.nodes) or {"nodes": []}
        if not isinstance(listed := table.get("nodes"), list):
            raise CheckpointError(f"{self.folder.nodes} is damaged: it has no list of nodes.")
        return listed

    @cached_property
    def failure(self) -> dict[str, Any] | None:
        """failed.json: `message` and `exit_code` of a deployed run that failed, else None."""
        return _table(self.folder.failed)

    @cached_property
    def pictures(self) -> dict[int, Path]:
        """The sample grids, or scatters of points, by the round that they show, in order."""
        place = self.folder.samples
        paths = [] if place.is_symlink() else filter(own_file, place.glob("*.png"))
        named = [(_PICTURE.fullmatch(path.name), path) for path in paths]
        return dict(sorted((int(name[1]), path) for name, path in named if name))

    @cached_property
    def evaluations(self) -> dict[str, dict[str, Any]]:
        """Results of `fedsink evaluate`, by the files' names without their ending.

        `evaluation` is that of suite=fast, `evaluation-paper` that of suite=paper, and so on.
        """
        paths = sorted(self.folder.path.glob("evaluation*.json"))
        return {path.stem: table for path in paths if (table := _table(path)) is not None}


def _table(path: Path) -> dict[str, Any] | None:
    return _record(path.read_bytes(), str(path)) if own_file(path) else None


def _record(content: bytes, place: str) -> dict[str, Any]:
    try:
        if isinstance(record := read_json(content), dict):
            return record
        why = "it is no JSON object"
    except ValueError as error:
        why = str(error)[:80]
    raise CheckpointError(
        f"{place} is damaged, {why}: restore the file from a copy, or run the command again that "
        "wrote it."
    )


def promise(privacy: dict[str, Any] | None) -> str:
    """Says in a few words what privacy.json promises."""
    if privacy is None:
        return "nothing promised yet"
    if privacy["epsilon"] is None:
        return "nothing protected"
    delta = f", δ = {privacy['delta']:g}" if privacy["delta"] else ""
    return f"ε = {privacy['epsilon']:.4g}{delta} per {privacy['unit']}"


def cautions(privacy: Config, config: Config) -> list[str]:
    """Says in sentences where the promise of privacy.json reads better than it is."""
    epsilon, delta = as_float(privacy.get("epsilon")), as_float(privacy.get("delta"))
    data = config.get("data")
    records = as_float(data.get("nominal_records")) if isinstance(data, Mapping) else math.nan
    asked = as_float(config.get("eps"))
    found: list[str] = []
    if delta * records >= 1.0:
        found.append(
            f"δ = {delta:g} is no less than one record in {records:,.0f}: publishing a record of "
            "one person in full keeps such a promise. Choose a far smaller delta."
        )
    if epsilon == 0.0:
        found.append(
            f"ε = 0 does not say that nothing can be learned: with probability δ = {delta:g} all "
            "of a record may be, and the noise may be as good as none. Read sigma, and ε of a "
            "smaller delta."
        )
    elif epsilon < 0.5 * asked < math.inf:
        found.append(
            f"ε = {epsilon:.3g} is far below eps={asked:g}, which was asked for: δ = {delta:g} may "
            "pay alone for whoever is ever sampled, with hardly any noise. Read sigma."
        )
    assumed = privacy.get("assumed_public")
    if isinstance(assumed, Mapping) and isinstance(facts := assumed.get("facts"), list):
        found.append(f"Assumed public: {', '.join(map(str, facts))}. {assumed.get('meaning')}")
    return found
