"""A run as its folder records it, finished or not, for reports, comparisons and Python.

>>> run = RecordedRun.of("runs/2026-11-22/13-28-36-central")  # doctest: +SKIP
>>> run.privacy["epsilon"], run.rounds[-1]["loss"], run.finished  # doctest: +SKIP
(9.99, 0.41, True)
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from fedsink.errors import CheckpointError
from fedsink.server.folder import RunFolder, own_file, stored_config
from fedsink.values import Config, as_float, read_json

_PICTURE = re.compile(r"round-(\d+)\.png")


@dataclass(frozen=True)
class RecordedRun:
    """Content of a run folder. Each file is read once, when it is first needed.

    An attribute raises CheckpointError where its file exists and is damaged; the error names the
    file and says what to do. Links are not followed: a received one may lead anywhere.

    Attributes:
        folder: of the run.
    """

    folder: RunFolder

    @classmethod
    def of(cls, path: str | Path) -> Self:
        """Returns the run in a folder; "~" is the user's home.

        Raises:
            CheckpointError: the folder holds none.
        """
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


def promise(privacy: dict[str, Any] | None) -> str:
    """Says in a few words what privacy.json promises."""
    if privacy is None:
        return "nothing promised yet"
    if privacy["epsilon"] is None:
        return "nothing protected"
    delta = f", δ = {privacy['delta']:g}" if privacy["delta"] else ""
    return f"ε = {privacy['epsilon']:.4g}{delta} per {privacy['unit']}"


def cautions(privacy: Config, config: Config) -> list[str]:
    """Says in sentences where the promise of privacy.json reads better than it is.

    Args:
        privacy: of the run's privacy.json.
        config: of the run.
    """
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
    return found


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
