"""The installed command in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

FEDSINK = Path(sys.executable).with_name("fedsink")
WITH_PAGE = ("engine=local", "clients=2", "rounds=20", "seed=0", "report.pictures=1")
SMALL = (*WITH_PAGE, "report.html=false")  # the page takes a second or two

# Starting Python and importing torch takes seconds: one process answers many command lines, each
# in an empty folder of its own. Only `main` is called, as the installed script does.
_MANY = """
import contextlib, io, json, os, sys
from pathlib import Path
from fedsink.cli import main
outcomes = []
for folder, arguments in json.load(sys.stdin):
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    out, err, code = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as exit:
            code = exit.code
        except BaseException as error:
            code = repr(error)
    left = sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*"))
    outcomes.append([code, out.getvalue(), err.getvalue(), left])
json.dump(outcomes, sys.stdout)
"""


@dataclass(frozen=True)
class Outcome:
    """What one command line did."""

    code: int
    out: str
    err: str
    left: tuple[str, ...] = ()

    @property
    def last(self) -> str:
        """The last line of standard output."""
        return self.out.rstrip("\n").rpartition("\n")[2]


Command = Callable[..., Outcome]


@pytest.fixture(scope="session")
def fedsink() -> Command:
    """Run the installed script once, in `cwd`."""
    return run_once


def run_once(*arguments: str, cwd: Path, stdin: str | None = None, **more: str) -> Outcome:
    """One process of the installed script."""
    done = subprocess.run(
        [str(FEDSINK), *arguments],
        cwd=cwd,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        input=stdin,
        timeout=300,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def run_many(lines: Sequence[tuple[Path, Sequence[str]]]) -> list[Outcome]:
    """Many command lines in one process, each in a folder of its own."""
    asked = json.dumps([[str(folder), list(arguments)] for folder, arguments in lines])
    done = subprocess.run(
        [sys.executable, "-c", _MANY],
        input=asked,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return [
        Outcome(code, out, err, tuple(left)) for code, out, err, left in json.loads(done.stdout)
    ]


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with modules and a configuration of the user's own, under our names."""
    folder = tmp_path_factory.mktemp("foreign")
    for name in ("server.py", "strategies.py", "clients/__init__.py", "torchvision_of_mine.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text('raise RuntimeError("the user\'s own module was imported")\n')
    (folder / "conf").mkdir()
    (folder / "conf" / "config.yaml").write_text("mode: the user's own\n")
    return folder


@pytest.fixture(scope="session")
def finished(foreign: Path) -> tuple[Outcome, Path]:
    """A finished central run, made by the installed script in the foreign folder."""
    outcome = run_once("simulate", "mode=central", *WITH_PAGE, cwd=foreign)
    return outcome, Path(outcome.last)


@pytest.fixture(scope="session")
def finished_ldp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished local run."""
    folder = tmp_path_factory.mktemp("ldp")
    (outcome,) = run_many([(folder, ["simulate", "mode=ldp", *SMALL])])
    if outcome.code != 0:
        raise RuntimeError(outcome.err)
    return Path(outcome.last)
