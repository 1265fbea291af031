"""The table of docs/python.md: its command lines and its Python start equal runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser

from fedsink.clients.node import close_nodes
from fedsink.commands.hydra_keys import overrides
from fedsink.conf.acting import composed_run
from fedsink.conf.loading import as_overrides, groups
from fedsink.data import sources
from fedsink.errors import DataError
from fedsink.simulation.simulated_run import start

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"
SHORT = ("clients=2", "engine=local", "report.pictures=0", "report.html=false")


def rows() -> list[tuple[str, str]]:
    """Command lines and their Python, except those that continue a run."""
    table = PAGE.read_text().partition("| on the command line | in Python |\n|---|---|\n")[2]
    lines = table.partition("\n\n")[0].splitlines()
    cells = [tuple(re.findall(r"`([^`]+)`", cell) for cell in line.split(" | ")) for line in lines]
    found = []
    for shell, python in cells:
        found += zip(shell, python, strict=True) if len(shell) == len(python) else []
        if len(shell) < len(python):  # another way to say the same
            found += [(shell[0], each) for each in python]
    return [row for row in found if "resume" not in row[0]]


def simulate(
    values: dict[str, Any] | None = None, /, *, folder: Any = None, **keys: Any
) -> list[str]:
    """The overrides that `fedsink.simulate` makes of its arguments."""
    given = {**(values or {}), **keys} | ({} if folder is None else {"hydra.run.dir": folder})
    return as_overrides(given, groups())


def runs(python: str) -> list[list[str]]:
    """The overrides of every run that a cell of the table starts."""
    if "simulate(" not in python:
        python = f"simulate({python})"
    made = eval(python, {"simulate": simulate, "Path": Path, "DIR": "DIR"})
    return made if "for" in python.split() else [made]


@pytest.mark.medium
@pytest.mark.quick("strategy.rows=20-*")
@pytest.mark.parametrize(("shell", "python"), rows())
def test_a_row_is_the_same_run_twice_and_trains(
    shell: str, python: str, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    sweep = "--multirun" in shell
    typed = overrides([w for w in shlex.split(shell) if not w.startswith("--")], sweep=sweep)
    parsed = OverridesParser.create().parse_overrides(typed)
    (lines,) = BasicSweeper.split_arguments(parsed, None) if sweep else ([typed],)
    for number, (line, given) in enumerate(zip(lines, runs(python), strict=True)):
        (config, _), (other, _) = composed_run(line), composed_run(given)
        assert {**config, "run": None} == {**other, "run": None}
        keys = {word.partition("=")[0] for word in line}
        place = [f"data.root={tiny_data}"] if "experiment" in keys else []
        short = [word for word in (*SHORT, "rounds=2") if word.partition("=")[0] not in keys]
        config, _ = composed_run([*line, *short, *place])
        if "data.root" in keys:  # no such folder exists: fedsink looks for it, so the key acts
            with pytest.raises(DataError, match="/données/a b"):
                start(config, tmp_path / str(number))
        else:
            assert start(config, tmp_path / str(number)).is_dir()
        close_nodes()
        sources.forget()
